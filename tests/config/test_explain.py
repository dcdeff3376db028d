"""Tests the sentences about options that do not fit, and that none is said about options that the parser accepts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from torch.optim import Optimizer

from lit_cfl.config import catalogue
from lit_cfl.config.build import require_values
from lit_cfl.config.explain import explain, find_mistake
from lit_cfl.config.files import read_config
from lit_cfl.config.live_options import Typed, guess_option, known_classes, merge, option_names, options_of, with_lists
from lit_cfl.config.parser import _OF_COMMAND, _read, experiment_parser
from lit_cfl.config.words import arrange
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MLP, Net
from lit_cfl.tune.study import Study


@dataclass
class Group:
    length: int = 1
    unit: Literal["epochs", "steps"] = "epochs"


class Above:
    def __init__(self, depth: int, speed: float = 1.0) -> None: ...


class Own(Above):
    def __init__(self, width: int, group: Group = Group(), ratio: float | torch.Tensor = 0.5, **more: Any) -> None:
        super().__init__(3, **more)


@dataclass
class Kept:
    depth: int = 1


class Changed(Kept):  # not a dataclass itself
    def __init__(self, strength: float) -> None:
        super().__init__(int(strength))


class Untyped:
    def __init__(self, x): ...  # type: ignore[no-untyped-def]  # no types: the mistake


class UntypedNet(Net):
    def __init__(self, input_shape, num_labels): ...  # type: ignore[no-untyped-def]  # no types: the mistake


class SizedNet(Net):
    def __init__(self, input_shape: list[int], num_labels: int): ...


class Root:
    """A class whose options have each kind of type."""

    def __init__(
        self,
        own: Own,
        untyped: Untyped,
        changed: Callable[[], Kept],
        net: Net,
        group: Group | None,
        names: list[str],
        sizes: Sequence[int] | None,
        optimizer: Callable[[list[torch.Tensor]], Optimizer],
        flag: bool,
        either: Literal["full"] | int,
        anything: Any,
        columns: dict[str, str] | None,
        module: torch.nn.Module,
        rate: float | None,
    ) -> None: ...


OWN = {"class_path": f"{__name__}.Own", "init_args": {"width": 3}}


def own(**more: Any) -> dict[str, Any]:
    return {**OWN, "init_args": {**OWN["init_args"], **more}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"own": OWN}, None),
        ({"own": own(speed=2, group={"length": 2}, ratio=1)}, None),
        ({"own": own(speed="fast")}, "own.speed is 'fast'; give a number"),
        # Tensor is a possible type, too, but not for a typed value
        ({"own": own(ratio="x")}, "own.ratio is 'x'; give a number"),
        ({"own": own(group={"length": 2.5})}, "own.group.length is 2.5; give a whole number"),
        ({"own": own(group={"lenght": 2})}, "own.group has no option 'lenght' (did you mean length?)"),
        ({"own": own(group=3)}, "own.group is 3; give its options, such as own.group.length"),
        (
            {"own": own(wdth=2)},
            "own: Own has no option 'wdth' (did you mean width?). Its options: width, group, ratio,",
        ),
        (
            {"module": {"class_path": "torch.nn.Sequential", "init_args": {"args": []}}},
            "module: Sequential has no option 'args'. A file can set none; write a class of your own",
        ),
        ({"own": f"{__name__}.Own"}, f"own: {__name__}.Own needs width; give it under init_args"),
        (
            {"own": f"{__name__}.Group"},
            f"own: '{__name__}.Group' is not a subclass of {__name__}.Own; derive it from that, or",
        ),
        (
            {"own": f"{__name__}.Onw"},
            f"own: '{__name__}.Onw' cannot be found: {__name__} has no class 'Onw' (did you mean Own?)",
        ),
        ({"own": {"width": 3}}, "own names no class; write own: {class_path: NAME, init_args: {...}}"),
        (
            {"net": {"class_path": "MLP", "hidden": 3}},
            "net: 'hidden' is next to class_path; write options under init_args: {class_path: MLP, init_args: {hidden:",
        ),
        ({"net": {"class_path": "MLP", "init_args": None}}, "net: init_args is null; write options below it, one per"),
        (
            {"untyped": f"{__name__}.Untyped"},
            f"untyped: {__name__}.Untyped: its option 'x' has no type; write one, such as x: float",
        ),
        (
            {"net": f"{__name__}.UntypedNet"},
            f"net: {__name__}.UntypedNet: its option 'input_shape' has no type; write one, such as "
            "input_shape: list[int] | None = None",
        ),
        (
            {"net": f"{__name__}.SizedNet"},
            f"net: {__name__}.SizedNet needs input_shape, num_labels; to take values from the data, write "
            "input_shape: list[int] | None = None, num_labels: int | None = None",
        ),
        ({"changed": f"{__name__}.Changed"}, f"changed: {__name__}.Changed needs strength; give it under init_args"),
        ({"net": "MLP"}, None),
        ({"net": {"class_path": "MLP", "init_args": {"hidden": "wide"}}}, "net.hidden is 'wide'; give a whole number"),
        ({"net": "torch.nn.Linear"}, "net: 'torch.nn.Linear' is not a subclass of lit_cfl.nets.Net; derive it from"),
        ({"net": "MPL"}, "net: 'MPL' is not known (did you mean MLP?). Known: FEMNISTCNN, "),
        ({"net": "MLP()"}, "net: 'MLP()' is not known (write MLP without parentheses). Known: "),
        ({"optimizer": "torch.optim.SGD"}, None),  # the parameters to optimize are passed later
        ({"optimizer": "SDG"}, "optimizer: 'SDG' is not known (did you mean SGD?). Known: ASGD, "),
        ({"optimizer": "torch.optim.SDG"}, "optimizer: 'torch.optim.SDG' cannot be found: torch.optim has no class"),
        ({"optimizer": "torch.optm.SGD"}, "optimizer: 'torch.optm.SGD': there is no module 'torch.optm' (did you mean"),
        ({"names": ["a", None]}, "names[1] is null; give text, or leave it out"),
        ({"names": "a"}, "names is 'a'; give a list, such as ['a']"),
        ({"sizes": [1, "b"]}, "sizes[1] is 'b'; give a whole number"),
        ({"sizes": Typed("b")}, "sizes is 'b'; give a list, each entry a whole number"),
        ({"sizes": ["0-2"]}, "sizes[0] is '0-2'; write 0 1 2"),
        ({"sizes": None, "group": None, "anything": object()}, None),
        ({"columns": {"y": "state", "client": "hive"}}, None),
        ({"columns": {"y:state": None}}, "columns.y:state is null; give text, or leave it out"),
        ({"columns": {"x": ["light", "ec"]}}, "columns.x is ['light', 'ec']; give text"),
        ({"columns": {"y": 3}}, "columns.y is 3, which is not text; write it in quotes: '3'"),
        ({"columns": "state"}, "columns is 'state'; give a mapping such as {name: value}"),
        ({"flag": None}, "flag is null; give true or false, or leave it out"),
        ({"flag": 1}, "flag is 1; give true or false"),
        ({"flag": Typed("true")}, None),
        ({"either": True}, "either is True; give full or a whole number"),
        ({"either": "ful"}, "either is 'ful' (did you mean full?); give full or a whole number"),
        ({"rate": Typed("0,05")}, "rate is '0,05'; write 0.05"),
        ({"rate": Typed("nan")}, "rate is 'nan'; give a number"),
        ({"rate": "1e-3"}, None),  # a text for YAML, a number for the parser
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], said: str | None):
    found = find_mistake(Root, given)
    assert found is None if said is None else found is not None and found.startswith(said), found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--a.x=3"], {"a": {"class_path": "A", "init_args": {"x": "3", "y": 2}}, "g": {"n": 1}}),
        (["--a=A", "--a.x=3"], {"a": {"class_path": "A", "init_args": {"x": "3", "y": 2}}, "g": {"n": 1}}),
        (["--a.y=3", "--a=A"], {"a": {"class_path": "A", "init_args": {"y": "3"}}, "g": {"n": 1}}),
        (["--a={class_path: A, init_args: {y: 5}}"], {"a": {"class_path": "A", "init_args": {"y": 5}}, "g": {"n": 1}}),
        (["--a.init_args.y=5"], {"a": {"class_path": "A", "init_args": {"y": "5"}}, "g": {"n": 1}}),
        (["--b.help=B"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 1}, "b": "B"}),
        (["--g.m=[1, 2]"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 1, "m": "[1, 2]"}}),
        (["--g=group.yaml"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 7}}),
        (["--g=null"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": "null"}),
        (["--tiny", "--config=x"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 1}}),
    ],
)
def test_options_of_a_command_line_count_more_than_a_files(words: list[str], expected: Any, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "group.yaml").write_text("n: 7\n")
    files = [{"a": {"class_path": "A", "init_args": {"y": 2}}}, {"g.n": 1}]
    assert merge(files, words) == expected
    assert files == [{"a": {"class_path": "A", "init_args": {"y": 2}}}, {"g.n": 1}]  # the input is unchanged


def test_what_a_class_gives_its_base_is_not_asked_for():
    assert {name: option.required for name, option in options_of(Own).items()} == {
        "width": True,
        "group": False,
        "ratio": False,
        "depth": False,
        "speed": False,
    }
    assert "input_shape" in options_of(MLP)
    assert "params" not in options_of(torch.optim.SGD, placed=1)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("num_clusters", "algorithm.num_clusters"),
        ("lr", "task.optimizer.lr"),
        ("momentum", "task.optimizer.momentum"),
        ("clients_per_round", "cohort_size"),
        ("epochs", "local.epochs"),
        ("batch_size", "local.batch_size"),  # not that of a pre-training or of the data
        ("num_clients", "data.num_clients"),
        ("wandb", "tracking.wandb"),
        ("rouds", "rounds"),
        ("zzz", None),
    ],
)
def test_the_option_that_was_meant_is_named(option: str, meant: str | None):
    names = list(option_names(Experiment, merge([QUICK], [])))
    assert guess_option(option, names) == meant


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        (["--seeds", "0", "1", "2"], ["--seeds=0 1 2"]),
        (["--seeds", "[0,", "1]"], ["--seeds=[0, 1]"]),
        (["--seeds=0"], ["--seeds=0"]),
        (["--algorithm.eta_g", "-1e-3", "--tiny"], ["--algorithm.eta_g=-1e-3", "--tiny"]),
        (["--rounds", "-3", "--x", "-.inf"], ["--rounds=-3", "--x=-.inf"]),
        (["--tiny", "word", "--a", "1", "--config", "x", "y"], ["--config=x", "--tiny", "word", "--a=1", "y"]),
    ],
)
def test_values_are_joined_to_their_options_and_files_come_first(words: list[str], arranged: list[str]):
    assert arrange(words) == arranged


QUICK = read_config(catalogue.configs()["quickstart"])
LISTS = [
    (["--seeds=0 1 2"], ["--seeds=[0, 1, 2]"]),
    (["--seeds=0,1,2"], ["--seeds=[0, 1, 2]"]),
    (["--seeds=4"], ["--seeds=[4]"]),
    (["--seeds=[0, 1]"], ["--seeds=[0, 1]"]),
    (["--data.rotations=0 90"], ["--data.rotations=[0, 90]"]),
    (["--data.rotations=null"], ["--data.rotations=null"]),
    (["--data.skew=Rotations"], ["--data.skew=Rotations"]),
    (["--data.skew=Rotations Scalings"], ["--data.skew=[Rotations, Scalings]"]),
    (["--pictures.formats=png"], ["--pictures.formats=[png]"]),
    (["--tracking.tags=on 1"], ['--tracking.tags=["on", "1"]']),  # texts stay texts
    (["--task.kernel_l2_layers=a*"], ["--task.kernel_l2_layers=a*"]),  # a single text is a list of one
    (
        ["--task.optimizer=Adam", "--task.optimizer.betas=0.9 1"],
        ["--task.optimizer=Adam", "--task.optimizer.betas=[0.9, 1]"],
    ),
    (["--personal=linear[-1] conv[*]"], ['--personal=["linear[-1]", "conv[*]"]']),
    (["--personal=bn1,linear[-1]"], ['--personal=["bn1", "linear[-1]"]']),
    (["--rounds=3 4", "--name=a,b"], ["--rounds=3 4", "--name=a,b"]),
    (["--algorithm=LayerCFL", "--algorithm.layers=auto"], ["--algorithm=LayerCFL", "--algorithm.layers=auto"]),
]


@pytest.mark.parametrize(("words", "written"), LISTS)
def test_a_list_may_be_typed_in_three_ways(words: list[str], written: list[str]):
    assert with_lists(Experiment, [QUICK], words) == written


@pytest.mark.parametrize("name", [name for name in catalogue.configs() if not name.startswith("tune/")])
def test_nothing_is_said_about_a_packaged_configuration_as_written_and_as_resolved(name: str):
    content = read_config(catalogue.configs()[name])
    assert explain(Experiment, [content], [], _OF_COMMAND, "lit-cfl run") is None
    parser = experiment_parser("lit-cfl run")
    read = _read(parser, ["--config", name])
    whole = yaml.safe_load(parser.dump(read, skip_unset=False, skip_validation=True))
    assert explain(Experiment, [whole], [], _OF_COMMAND, "lit-cfl run") is None


@pytest.mark.parametrize("name", [name for name in catalogue.configs() if name.startswith("tune/")])
def test_nothing_is_said_about_a_packaged_study(name: str):
    content = read_config(catalogue.configs()[name])
    assert explain(Study, [content], [], {}, "lit-cfl tune") is None


@pytest.mark.parametrize("kind", catalogue.CLASSES)
def test_nothing_is_said_about_the_defaults_of_a_class(kind: str):
    for name, one in catalogue.classes(kind).items():
        base = next(part for part in one.__mro__ if part.__name__ == catalogue.CLASSES[kind][1])
        assert name in known_classes(base)
        holder = type("Holder", (), {"__init__": lambda self, it: None})
        holder.__init__.__annotations__["it"] = base
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(base, "it")
        try:
            content = yaml.safe_load(parser.dump(parser.parse_args([f"--it={name}"]), skip_unset=False))
        except ArgumentError:  # an option has no default
            content = None
        assert (find_mistake(holder, {"it": name}) is None) == (content is not None), name
        assert content is None or find_mistake(holder, content) is None, name


TEXTS = ("3", "0", "-1", "0.5", "1e-3", ".5", "null", "true", "True", "no", "on", "x", "auto", "a,b", "1 2", "", "~")
TEXTS += ("nan", ".inf", "1_000", "0x1F", "'3'", "2024-01-01", "[1, 2]", "[a]", "[]", "[[1, 2], [3]]", "[0.5, null]")
TEXTS += ("{a: 1}", "[a", "{epochs: 2}")


def drawn_words(rng: np.random.Generator) -> list[str]:
    """Draws classes for the quickstart, and values for some of its options."""
    words = []
    for option, kind in (("algorithm", "algorithms"), ("data", "data"), ("task.net", "nets"), ("task", "tasks")):
        if rng.random() < 0.4:
            words.append(f"--{option}={rng.choice(catalogue.names(kind))}")
    for option, kind in (("data.partition", "partitions"), ("data.skew", "skews"), ("data.shift", "shifts")):
        if rng.random() < 0.15:
            words.append(f"--{option}={rng.choice(catalogue.names(kind))}")
    given = merge([QUICK], words)
    names = list(option_names(Experiment, given))
    drawn = list[str]()
    for option in map(str, rng.choice(names, 3, replace=False)):
        # the parser refuses a value that a later one replaces
        if not any(f"{option}.".startswith(f"{one}.") or f"{one}.".startswith(f"{option}.") for one in drawn):
            drawn.append(option)
            words.append(f"--{option}={rng.choice([*TEXTS, *literals_of(option, given)])}")
    return words


def literals_of(option: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the words that the annotation of an option lists, if its class takes plain values."""
    kind: Any = Experiment
    for part in option.split("."):
        found = options_of(kind).get(part) if isinstance(kind, type) else None
        kind = NoneType if found is None else found.kind
        given = given.get(part, {}) if isinstance(given, Mapping) else {}
    for member in get_args(kind) or (kind,):
        yield from map(str, get_args(member) if get_origin(member) is Literal else ())


def outcome(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Returns the parser's own error, and the explanation; None = there is none."""
    parser, error = experiment_parser("lit-cfl run"), None
    try:
        read = parser.parse_args([f"--config={catalogue.configs()['quickstart']}", *words])
        require_values(parser, read)
        error = "no task" if read.task is None else None
    except (ArgumentError, TypeError, ValueError) as raised:
        error = str(raised)
    return error, explain(Experiment, [QUICK], words, _OF_COMMAND, "lit-cfl run")


@pytest.mark.parametrize("seed", range(4))
def test_what_the_parser_accepts_needs_no_explanation_and_what_it_refuses_gets_one(seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        words = drawn_words(rng)
        error, explained = outcome(words)
        if not any(word.endswith(("=null", "=~")) for word in words):  # some are accepted until the class refuses them
            assert (error is None) == (explained is None), (words, error, explained)
        assert explained is None or ("\n" not in explained and re.match(r"[\w.]+|there is no", explained))
