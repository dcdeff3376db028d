"""Tests the index of options (against the parsers), lists on a command line, and early errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lit_cfl.cli import early_checks
from lit_cfl.config import catalogue
from lit_cfl.config.given_options import option_names
from lit_cfl.config.option_index import IndexedOption, find_path
from lit_cfl.config.option_tree import (
    KIND_OF_KEY,
    OF_DATA,
    OF_RUN,
    OptionTree,
    UnknownOption,
    class_of,
    experiment_tree,
    is_list,
    require_known_classes,
    study_tree,
)
from lit_cfl.config.parser import _new_parser, experiment_parser, parse_run
from lit_cfl.config.typed_words import with_lists
from lit_cfl.errors import InputError
from lit_cfl.tune.options import study_parser

ROOT = Path(__file__).parents[2]
QUICK = yaml.safe_load(catalogue.configs()["quickstart"].read_text())


def tree(*words: str) -> OptionTree:
    return experiment_tree([QUICK], words)


def options_of(parser: object) -> set[str]:
    strings = parser._option_string_actions  # type: ignore[attr-defined]
    return {name.removeprefix("--").removesuffix("+") for name in strings if name.startswith("--")}


def test_the_index_knows_each_option_of_the_parsers_and_no_other():
    for known, parser in (
        (tree(), experiment_parser("lit-cfl run")),
        (experiment_tree([QUICK], [], (*OF_RUN, *OF_DATA)), _new_parser("lit-cfl data")),
        (study_tree(), study_parser()),
    ):
        asked = options_of(parser) - {"print_config", "print_shtab"}
        assert len(asked) > 20
        assert [name for name in asked if isinstance(known.look_up(name), UnknownOption)] == []
    plain = {name for name in experiment_tree([], []).names() if "." not in name}
    assert plain <= {name.replace("-", "_") for name in options_of(experiment_parser("lit-cfl run"))} | {"dry-run"}


def test_the_options_of_each_class_are_those_that_the_parser_takes():
    from jsonargparse import ArgumentParser

    kinds = {kind: key for key, kind in KIND_OF_KEY.items()}
    checked = 0
    for kind, key in kinds.items():
        for name in catalogue.names(kind):
            found = class_of(name, kind)
            assert found is not None, name
            parser = ArgumentParser(exit_on_error=False)
            module = __import__(found.module, fromlist=[name])
            parser.add_class_arguments(getattr(module, name), "x")
            expected = {option.removeprefix("x.").partition(".")[0] for option in options_of(parser) if "." in option}
            assert found.options.keys() == expected - {"help"}, (name, key)
            checked += 1
    assert checked > 50


def test_each_packaged_configuration_has_known_options_and_classes():
    for name, file in catalogue.configs().items():
        content = yaml.safe_load(file.read_text())
        known = study_tree() if "space" in content else experiment_tree([content], [])
        names = list(content) if "space" in content else list(option_names(content))
        assert [one for one in names if isinstance(known.look_up(one), UnknownOption)] == [], name
        require_known_classes(known)


def test_an_optimizer_of_pytorch_is_read_from_its_source():
    found = find_path("torch.optim.SGD")
    assert found is not None
    assert {"lr", "momentum", "nesterov"} <= found.options.keys()
    assert find_path("somewhere.Else") is None
    assert tree("--task", "own.Task").look_up("task.anything") is None  # a user's class is not read


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
        ("learning_rate", "task.optimizer.lr"),
        ("zzz", None),
    ],
)
def test_the_option_that_was_meant_is_named(option: str, meant: str | None):
    known = tree()
    assert known.guess_option(option) == meant
    assert meant is None or not isinstance(known.look_up(meant), UnknownOption)


def test_an_option_of_ones_own_class_is_guessed_by_the_name_of_its_part():
    assert tree("--task.net", "my_net.Mine").guess_option("net.width") == "task.net.width"


LISTS = [
    (["--seeds", "0", "1", "2"], ["--seeds=[0, 1, 2]"]),
    (["--seeds", "0,1,2"], ["--seeds=[0, 1, 2]"]),
    (["--seeds=0,1"], ["--seeds=[0, 1]"]),
    (["--seeds", "[0, 1]"], ["--seeds", "[0, 1]"]),
    (["--seeds", "[0,", "1]"], ["--seeds=[0, 1]"]),
    (["--seeds", "4"], ["--seeds=[4]"]),
    (["--data.rotations", "0", "90", "--tiny"], ["--data.rotations=[0, 90]", "--tiny"]),
    (["--data.rotations", "null"], ["--data.rotations", "null"]),
    (["--pictures.formats", "png"], ["--pictures.formats=[png]"]),
    (["--tracking.tags", "on", "1"], ['--tracking.tags=["on", "1"]']),  # texts stay texts
    (["--task.kernel_l2_layers", "a*", "b"], ['--task.kernel_l2_layers=["a*", "b"]']),
    (["--task.kernel_l2_layers", "a*"], ["--task.kernel_l2_layers", "a*"]),  # a single text is a list of one
    (["--task.scores", "accuracy", "f1"], ['--task.scores=["accuracy", "f1"]']),
    (["--task.scores", "f1"], ['--task.scores=["f1"]']),
    (
        ["--data.partition", "LabelGroups", "--data.partition.groups", "0,1", "2,3"],
        ["--data.partition", "LabelGroups", "--data.partition.groups=[[0, 1], [2, 3]]"],
    ),
    (
        ["--task.optimizer", "torch.optim.Adam", "--task.optimizer.betas", "0.9", "0.99"],
        ["--task.optimizer", "torch.optim.Adam", "--task.optimizer.betas=[0.9, 0.99]"],
    ),
    (["--algorithm", "own.Mine", "--algorithm.x", "1,2"], ["--algorithm", "own.Mine", "--algorithm.x=[1, 2]"]),
    (["--algorithm.eta_g", "-1e-3"], ["--algorithm.eta_g=-1e-3"]),
    (["--algorithm.eta_g", "-.inf", "--tiny"], ["--algorithm.eta_g=-.inf", "--tiny"]),
    (["--rounds", "-3"], ["--rounds=-3"]),
    # not a list: `quickstart` is an additional word
    (["--rounds", "3", "quickstart"], ["--rounds", "3", "quickstart"]),
    (["--name", "a,b"], ["--name", "a,b"]),
    # these brackets belong to the entries
    (["--personal", "linear[-1]", "conv[*]"], ['--personal=["linear[-1]", "conv[*]"]']),
    (["--personal", "bn1,linear[-1]"], ['--personal=["bn1", "linear[-1]"]']),
]


@pytest.mark.parametrize(("words", "written"), LISTS)
def test_a_list_may_be_typed_in_three_ways_and_a_number_may_be_negative(words: list[str], written: list[str]):
    assert with_lists(words, tree(*words).look_up) == written


def test_every_option_of_ours_that_takes_a_list_reads_the_three_ways_alike():
    known, checked = tree("--data.partition", "LabelGroups", "--data.skew", "Rotations"), 0
    for name in known.names():
        option = known.look_up(name)
        if isinstance(option, IndexedOption) and is_list(option) and "[Sequence" not in option.annotation:
            typed = [[f"--{name}", "7", "8"], [f"--{name}", "7,8"], [f"--{name}=7,8"], [f"--{name}=[7, 8]"]]
            read = [yaml.safe_load(with_lists(words, known.look_up)[0].partition("=")[2]) for words in typed]
            assert [list(map(int, entries)) for entries in read] == [[7, 8]] * 4, name
            checked += 1
    assert checked >= 8


def test_the_command_takes_lists_and_negative_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "quickstart", "--baseline", "null", "--data.rotations", "0,180", "--algorithm.eta_g", "-1e-3"]
    with pytest.raises(InputError, match=r"eta_g is -0\.001"):
        parse_run(words)
    experiment = parse_run([*words[:-2], "--seeds", "3", "1"]).experiment
    assert experiment.seeds == [3, 1]
    assert experiment.to_dict()["data"]["init_args"]["rotations"] == [0, 180]


EARLY = [
    ("run quickstart", "'quickstart' has no option before it; write --config quickstart"),
    ("run --config quickstart --rounds 3 4", "'4' has no option before it"),
    ("run my/new.csv", "'my/new.csv' has no option before it; write --data.source my/new.csv"),
    ("data MNIST", "'MNIST' has no option before it; write --data MNIST"),
    ("run --config quickstart --num_clusters 4", "no option 'num_clusters' (did you mean --algorithm.num_clusters?)"),
    (
        "run --data ArrayData --data.num_clients 9",
        "ArrayData has no option 'num_clients': clients come with the data or",
    ),
    (
        "run --data ArrayData --num_clients 9",
        "no option 'num_clients': clients come with the data or from a partition",
    ),
    ("run --config quickstart --num_clients 9", "no option 'num_clients' (did you mean --data.num_clients?)"),
    ("run --config quickstart --lr 0.1", "there is no option 'lr' (did you mean --task.optimizer.lr?)"),
    ("run --config quickstart --task.optimizer.lrr 1", "SGD has no option 'lrr' (did you mean lr?)"),
    ("run --config quickstart --local.epoch 1", "local has no option 'epoch' (did you mean epochs?)"),
    ("run --config quickstart --local.batch 5", "local has no option 'batch' (did you mean batch_size?)"),
    ("run --config quickstart --cohort 8", "no option 'cohort' (did you mean --cohort_size?)"),
    ("run --config glued.yaml", "local has no option 'epochs:5'; write a space after the colon: epochs: 5"),
    ("run --config old.yaml", "there is no option 'clients_per_round' (did you mean --cohort_size?)"),
    ("data --config old.yaml", "there is no option 'clients_per_round' (did you mean --cohort_size?)"),
    ("run --config quickstart --algorithm FedGrup", "'FedGrup' is not known (did you mean FedGroup?)"),
    (
        "run --config quickstart --task.criterion huber",
        "Classification has no option 'criterion' (for another loss, derive a class from it and define",
    ),
    (
        "run --config quickstart --task.net own.Mine --hidden 64",
        "there is no option 'hidden' (an option of own.Mine is written --task.net.hidden)",
    ),
    ("run --config quickstart --local.lr 0.1", "local has no option 'lr' (did you mean --task.optimizer.lr?)"),
    ("run --config quickstart --algorithm SCAFFOLD", "'SCAFFOLD' is not known. Known: AdaCFL"),
    ("run --config quickstart --data CSVData", "'CSVData' is not known (did you mean ArrayData?)"),
    ("run --config quickstart --algorithm.tau 0.5", "FedGroup has no option 'tau' (an option of StoCFL). Its options"),
    ("run --config quickstart --algorithm.alpha 5", "no option 'alpha' (did you mean pretrain_scale?)"),
    ("run --config quickstart --algorithm StoCFL --algorithm.lambda 1", "no option 'lambda' (did you mean lambda_?)"),
    ("run --config quickstart --algorithm.lambda 1", "no option 'lambda' (lambda_ is an option of Ditto, StoCFL)"),
    ("run --config quickstart --task.lr 1", "Classification has no option 'lr' (did you mean optimizer.lr?)"),
    ("run --config quickstart --task.optimizer.learning_rate 1", "no option 'learning_rate' (did you mean lr?)"),
    ("run --config quickstart --algorithm FedBN", "give --algorithm FedAvg --personal 'batchnorm[*]', or in"),
    (
        "compare --config quickstart --algorithms FedBN",
        "in lit-cfl compare FedBN=FedAvg --FedBN.personal 'batchnorm[*]'",
    ),
    (
        "compare --config quickstart --algorithms a=fedavgm",
        "a: fedavgm is FedAvg with an option; give --algorithm FedAvg",
    ),
    ("run --config quickstart --task.net MPL", "net: 'MPL' is not known (did you mean MLP?)"),
    ("run --config quickstart --task.net MyNet", "net: 'MyNet' is not known (did you mean nets_of_mine.MyNet?)"),
    ("run --config odd.yaml", "data: 'Digit' is not known (did you mean Digits?)"),
    ("run --config patient.yaml", "there is no file 'patient.yaml' (did you mean patients.yaml?)"),
    ("run --resume nothere", "nothere holds no run to resume; give"),
    ("run --resume frist", "frist holds no run to resume (did you mean first?); give"),
    ("run --resume compared", "compared is not a run; resume it with lit-cfl compare --resume compared"),
    ("compare --resume first", "first is not a comparison; resume it with lit-cfl run --resume first"),
    ("compare --resume studied", "studied is not a comparison; resume it with lit-cfl tune --resume studied"),
    ("tune --resume compared", "compared is not a study; resume it with lit-cfl compare --resume compared"),
    ("evaluate nothere", "nothere holds no run (no config.yaml)"),
    ("evaluate frist", "frist holds no run (no config.yaml) (did you mean first?)"),
    ("assign nothere --data Digits", "nothere holds no run (no config.yaml)"),
    (
        "evaluate compared",
        "compared holds no run (no config.yaml), but its folders do: give one of them, such as compared/FedAvg/seed-0",
    ),
    ("report nothere", "there is no directory nothere"),
    ("compare patients.yaml --algorithms FedAvg", "no experiment is given; give a file: --config patients.yaml"),
    ("compare --resume comparde", "comparde holds no comparison to resume (no compare.yaml) (did you mean compared?)"),
    ("compare --resume nothere", "nothere holds no comparison to resume"),
    ("compare --config quickstart --algorithms FedAvg --seeds 0-2", "'0-2' is not a seed; give --seeds 0 1 2"),
    ("compare --config quickstart --algorithms FedAvg --seeds 1-30", "'1-30' is not a seed; give --seeds 1 2 ... 30"),
    ("compare --config quickstart --algorithms FedAvg,FedGrup", "'FedGrup' is not known (did you mean FedGroup?)"),
    ("compare --config quickstart --algorithms FedAvg local=Ditto", "'local' is an option of experiments; give the"),
    (
        "compare --config quickstart --algorithms FedAvg IFCA --num_clusters 3",
        "there is no option 'num_clusters' (did you mean --IFCA.num_clusters?)",
    ),
    ("compare --config quickstart --algorithms FedAvg IFCA --IFCA.num 3", "IFCA: IFCA has no option 'num'"),
    ("tune --resume studeid", "studeid/study.yaml does not exist (did you mean studied?), so"),
    ("tune --resume nothere", "nothere/study.yaml does not exist"),
    (
        "tune --config tune/quickstart --rounds 12",
        "not of a study; set it in the study's base",
    ),
    ("tune --config tune/quickstart --local.epochs 2", "the study's base, or search it in the study's space"),
    ("tune --config tune/quickstart --limits.trial 3", "limits has no option 'trial' (did you mean trials?)"),
    (
        "run --config quickstart --data ArrayData --data.label state",
        "ArrayData has no option 'label' (name the columns of a table: columns: {y: NAME, client: NAME})",
    ),
    ("run --config quickstart --clients 8", "there is no option 'clients' (did you mean --cohort_size?)"),
    (
        "compare --config quickstart --algorithms FedAvg --metric f1",
        "there is no option 'metric'; tables and figures show the first of",
    ),
    ("tune --config tune/quickstart --mode min", "there is no option 'mode'; leave it out: the metric's score has"),
    (
        "tune --config tune/quickstart --num_samples 4",
        "there is no option 'num_samples' (did you mean --limits.trials?)",
    ),
    ("tune --config study.yaml", "base: there is no option 'lr' (did you mean --task.optimizer.lr?)"),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("glued.yaml").write_text("local: {epochs:5, batch_size: 10}\n")
    Path("old.yaml").write_text(yaml.safe_dump(QUICK | {"clients_per_round": 3}))
    Path("odd.yaml").write_text(yaml.safe_dump(QUICK | {"data": {"class_path": "Digit"}}))
    Path("study.yaml").write_text(yaml.safe_dump({"base": QUICK | {"lr": 1}, "space": {"rounds": {"choice": [1]}}}))
    Path("patients.yaml").write_text(yaml.safe_dump(QUICK))
    Path("nets_of_mine.py").write_text("import nowhere\n\n\nclass MyNetwork: ...\n\n\nclass MyNet:\n    pass\n")
    Path("first").mkdir()
    Path("first/config.yaml").touch()
    Path("compared").mkdir()
    Path("compared/compare.yaml").touch()
    Path("studied").mkdir()
    Path("studied/study.yaml").touch()
    Path("compared/FedAvg/seed-0").mkdir(parents=True)
    Path("compared/FedAvg/seed-0/checkpoint.pt").touch()


IN_A_PROCESS = """
import sys
from lit_cfl.cli.main import main
for line in sys.stdin.read().splitlines():
    assert main(line.split()) == 2, line
    print("torch" in sys.modules or "ray" in sys.modules)
"""


@pytest.mark.usefixtures("files")
def test_what_needs_no_pytorch_is_refused_before_it_is_loaded():
    lines = "\n".join(words for words, _ in EARLY)
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["False"] * len(EARLY)
    said = ended.stderr.splitlines()
    assert len(said) == len(EARLY)
    for line, (words, expected) in zip(said, EARLY, strict=True):
        assert expected in line, words


@pytest.mark.parametrize(
    ("value", "option", "known"),
    [
        ("IFCA", "reassign_at_evaluation", True),
        ("IFCA", "pretrain_scale", False),  # an option of the file's FedGroup
        ("{class_path: IFCA, init_args: {num_clusters: 3}}", "reassign_at_evaluation", True),
        ("{class_path: IFCA}", "pretrain_scale", False),
        ("mine/algorithm.yaml", "anything", True),  # files that are named as values are not read here
        ("own.Mine", "anything", True),
        ("null", "anything", True),
    ],
)
def test_options_are_those_of_the_class_that_the_command_line_names(value: str, option: str, known: bool):
    found = tree("--algorithm", value).look_up(f"algorithm.{option}")
    assert isinstance(found, UnknownOption) == (not known)


@pytest.mark.parametrize(
    "words",
    [
        "run --config quickstart --algorithm.help FedGroup",
        "run --config quickstart --print_config",
        "run --config quickstart --task.init_args.net.init_args.hidden 3 --task.net MLP",
        "run --config quickstart --algorithm own.Mine --algorithm.anything 3 --task.net own",
        "run --config quickstart --data.skew+ Rotations --seeds+ 1",
        "run --config quickstart --stop.target 0.9 --plan.threads 2 --tracking.loggers CSVLogger",
    ],
)
def test_what_a_parser_may_take_is_not_refused_early(words: str):
    early_checks.check_run(words.split()[1:])
