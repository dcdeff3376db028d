"""Tests that an invalid option is detected by the fields and arguments of its class, without the parser."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch.optim import Optimizer

from lit_cfl.config.given_options import merge_options
from lit_cfl.config.mistakes import Option, find_mistake, options_of
from lit_cfl.nets import MLP, Net


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


OPTIONS = {
    "own": Option(Own),
    "untyped": Option(Untyped),
    "changed": Option(Callable[[], Kept]),
    "net": Option(Net),
    "group": Option(Group | None),
    "names": Option(list[str]),
    "sizes": Option(Sequence[int] | None),
    "optimizer": Option(Callable[[list[torch.Tensor]], Optimizer]),
    "flag": Option(bool),
    "either": Option(Literal["full"] | int),
    "anything": Option(Any),
    "columns": Option(dict[str, str] | None),
    "module": Option(torch.nn.Module),
}
OWN = {"class_path": f"{__name__}.Own", "init_args": {"width": 3}}


def own(**more: Any) -> dict[str, Any]:
    return {**OWN, "init_args": {**OWN["init_args"], **more}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"own": OWN}, None),
        ({"own": own(speed=2, group={"length": 2}, ratio=1)}, None),
        ({"own": own(speed="fast")}, "own.speed: 'fast' is not a number"),
        # Tensor is a possible type, too, but not for a typed value
        ({"own": own(ratio="x")}, "own.ratio: 'x' is not a number"),
        ({"own": own(group={"length": 2.5})}, "own.group.length: '2.5' is not a whole number"),
        ({"own": own(group={"lenght": 2})}, "own.group has no option 'lenght' (did you mean length?)"),
        (
            {"own": own(group=3)},
            "own.group: '3' cannot be used; give its options one by one (own.group.length, own.group.unit), or leave",
        ),
        ({"own": own(wdth=2)}, "Own has no option 'wdth' (did you mean width?). Its options: width, group, ratio,"),
        (
            {"module": {"class_path": "torch.nn.Sequential", "init_args": {"args": []}}},
            "Sequential has no option 'args', nor any other that a configuration can set; write your own class",
        ),
        ({"own": f"{__name__}.Own"}, f"{__name__}.Own needs width; give it under init_args"),
        (
            {"own": f"{__name__}.Group"},
            f"own: '{__name__}.Group' is not a subclass of Own; derive it from {__name__}.Own, or",
        ),
        (
            {"own": f"{__name__}.Onw"},
            f"'{__name__}.Onw' cannot be found: {__name__} has no class 'Onw' (did you mean Own?)",
        ),
        ({"own": {"width": 3}}, "own names no class; write own: {class_path: NAME, init_args: {...}}"),
        (
            {"untyped": "Untyped"},
            f"{__name__}.Untyped: its option 'x' has no type annotation; write one, such as x: float",
        ),
        (
            {"net": f"{__name__}.UntypedNet"},
            f"{__name__}.UntypedNet: its option 'input_shape' has no type annotation; write one, such as "
            "input_shape: list[int] | None = None",
        ),
        (
            {"net": f"{__name__}.SizedNet"},
            f"{__name__}.SizedNet needs input_shape, num_labels; to take values from the data, write "
            "input_shape: list[int] | None = None, num_labels: int | None = None",
        ),
        ({"changed": f"{__name__}.Changed"}, f"{__name__}.Changed needs strength; give it under init_args"),
        ({"net": "MLP"}, None),
        ({"net": {"class_path": "MLP", "init_args": {"hidden": "wide"}}}, "net.hidden: 'wide' is not a whole number"),
        (
            {"net": "torch.nn.Linear"},
            "net: 'torch.nn.Linear' is not a subclass of Net; derive it from lit_cfl.nets.base.Net, or name",
        ),
        ({"optimizer": "torch.optim.SGD"}, None),  # the parameters to optimize are passed later
        ({"optimizer": 3}, "optimizer: '3' is not an optimizer. Write for example torch.optim.SGD"),
        ({"names": ["a", None]}, "names is null; give text, or leave it out"),
        ({"names": "a"}, "names: 'a' is not a list; write [a]"),
        ({"sizes": [1, "b"]}, "sizes: 'b' is not a whole number"),
        ({"sizes": None, "group": None, "anything": object()}, None),
        ({"columns": {"y": "state", "client": "hive"}}, None),
        (
            {"columns": {"y:state": None, "client:hive": None}},
            "columns: 'y:state' has no value; write a space after the colon: y: state",
        ),
        ({"columns": {"x": ["light", "ec"]}}, "columns.x is a list, but it takes one text"),
        ({"columns": {"y": 3}}, "columns.y: 3 is a number, not text; write it in quotes: '3'"),
        ({"columns": "state"}, "columns: 'state' is not a mapping such as {name: value}"),
        ({"flag": None}, "flag is null; give true or false, or leave it out"),
        ({"flag": 1}, "flag: '1' is not true or false"),
        ({"either": True}, "either: 'True' is not the word full or a whole number"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], said: str | None):
    found = find_mistake(given, OPTIONS)
    assert found is None if said is None else found is not None and found.startswith(said), found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--a.x", "3"], {"a": {"class_path": "A", "init_args": {"x": "3", "y": 2}}, "g": {"n": 1}}),
        (["--a", "A", "--a.x=3"], {"a": {"class_path": "A", "init_args": {"x": "3", "y": 2}}, "g": {"n": 1}}),
        (["--a", "B", "--a.z", "3"], {"a": {"class_path": "B", "init_args": {"z": "3"}}, "g": {"n": 1}}),
        (
            ["--a", "{class_path: A, init_args: {y: 5}}"],
            {"a": {"class_path": "A", "init_args": {"y": 5}}, "g": {"n": 1}},
        ),
        (["--a.init_args.y", "5"], {"a": {"class_path": "A", "init_args": {"y": "5"}}, "g": {"n": 1}}),
        (["--g.m", "[1, 2]"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 1, "m": [1, 2]}}),
        (["--g", "group.yaml"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 7}}),
        (["--tiny", "--config", "x"], {"a": {"class_path": "A", "init_args": {"y": 2}}, "g": {"n": 1}}),
    ],
)
def test_options_of_a_command_line_count_more_than_a_files(words: list[str], expected: Any, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "group.yaml").write_text("n: 7\n")
    files = [{"a": {"class_path": "A", "init_args": {"y": 2}}}, {"g.n": 1}]
    assert merge_options(files, words) == expected
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
