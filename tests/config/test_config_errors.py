"""Tests the command line's errors about unknown words, and the accepted forms of skews, shifts and schedules."""

from pathlib import Path

import pytest
import yaml

from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_data, parse_run
from lit_cfl.config.variants import build
from lit_cfl.datamodules.shift import LabelDrift, SwapAll
from lit_cfl.datamodules.skew import LabelShifts, Rotations
from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import as_yaml

pytestmark = pytest.mark.nightly  # a table of tests states these facts

MNIST = ("--data", "MNIST")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(*words: str) -> str:
    with pytest.raises(InputError) as error:
        parse_data(words)
    return str(error.value)


@pytest.mark.parametrize("command", ["run", pytest.param("data", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("MNIST", "--data MNIST"),
        ("mnits", "--data MNIST"),
        ("FedGruop", "--algorithm FedGroup"),
        ("quickstart", "--config quickstart"),
        ("fedgroup/digits", "--config fedgroup/digits"),
        ("own.yaml", "--config own.yaml"),
        ("7", "its option before it, such as --data MNIST or --config quickstart"),
    ],
)
def test_word_without_an_option_is_refused_with_the_option_it_belongs_to(command: str, word: str, remedy: str, capsys):
    Path("own.yaml").write_text("rounds: 3")
    assert main([command, word]) == 2
    assert capsys.readouterr().err == f"lit-cfl: error: {word!r} has no option before it; write {remedy}\n"


@pytest.mark.parametrize(
    "words",
    [("--tiny",), ("--dry-run",), ("--json",), ("--quiet",), ("--run_dir", "a"), ("--resume", "a"), ("--new_plan",)],
)
def test_options_of_a_run_are_refused_where_nothing_is_trained(words: tuple[str, ...]):
    error = error_of(*MNIST, *words)
    assert error == f"{words[0]} is an option of lit-cfl run; lit-cfl data trains nothing, leave it out"


def test_run_and_data_name_a_path_alike():
    Path("own.csv").write_text("height,weight\n1,2\n")
    words = ("--data", "ArrayData", "--data.source", "own.csv")
    run = parse_run((*words, "--task", "Classification", "--task.net", "MLP", "--algorithm", "FedAvg"))
    for module in (run.experiment.data, parse_data(words).module):
        with pytest.raises(InputError, match=rf"^{Path('own.csv').absolute()} has no column 'y'"):
            module.pool()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--data.skew", "Rotations"), (Rotations([0, 90, 180, 270]),)),
        (("--data.skew", "LabelShifts", "--data.skew.shifts", "[0, 1]"), (LabelShifts([0, 1]),)),
        (("--data.skew", "[Rotations, LabelShifts]"), (Rotations([0, 90, 180, 270]), LabelShifts([0, 3, 6, 9]))),
        (("--data.skew", "{class_path: Rotations, init_args: {degrees: [0, 90]}}"), (Rotations([0, 90]),)),
        (("--data.skew", "[]"), ()),
    ],
)
def test_skew_may_be_one_or_a_list(words: tuple[str, ...], expected: tuple[object, ...]):
    assert parse_data((*MNIST, *words)).module.skew == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--data.shift", "SwapAll"), (SwapAll(),)),
        (("--data.shift", "SwapAll", "--data.shift.probability", "0.3"), (SwapAll(0.3),)),
        (("--data.shift", "[SwapAll, LabelDrift]"), (SwapAll(), LabelDrift())),
        (("--data.shift", "[]"), ()),
    ],
)
def test_shift_may_be_one_or_a_list(words: tuple[str, ...], expected: tuple[object, ...]):
    assert parse_data((*MNIST, *words)).module.shift == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--data.skew", "Rotations()"),
            "data.skew: 'Rotations()' is not known (write Rotations without parentheses). Known: ",
        ),
        (("--data.skew", "Rotatoins"), "skew: 'Rotatoins' is not known (did you mean Rotations?)"),
        (("--data.skew", "Rotatoins", "--data.skew.degrees", "[0]"), "(did you mean Rotations?)"),
        (
            ("--data.skew", "[Rotations, LabelShfts]"),
            "data.skew[1]: 'LabelShfts' is not known (did you mean",
        ),
        (
            ("--data.skew", "[{class_path: LabelShfts}]"),
            "data.skew[0]: 'LabelShfts' is not known (did you mean",
        ),
        (("--data.skew", "SwapAll"), "skew: 'SwapAll' is not known. Known: Blurs, Brightnesses, Colours,"),
        (("--data.skew", "LabelShifts", "--data.skew.shits", "[0]"), "has no option 'shits' (did you mean shifts?)"),
        (
            ("--data.skew", "LabelShifts", "--data.skew.shifts", "[0, x]"),
            "data.skew.shifts[1] is 'x'; give a",
        ),
        (
            ("--data.skew", "LabelShifts", "--data.skew.shifts", "3.5"),
            "data.skew.shifts[0] is 3.5; give a",
        ),
        (("--data.shift", "SwapAl"), "shift: 'SwapAl' is not known (did you mean SwapAll?)"),
        (("--data.shift", "[SwapAl]"), "data.shift[0]: 'SwapAl' is not known (did you mean SwapAll?)"),
        (("--data.shift", "SwapAll", "--data.shift.probabilty", "1"), "(did you mean probability?)"),
        (("--data.shift", "SwapAll", "--data.shift.probability", "x"), "data.shift.probability is 'x'; give a number"),
        (("--data.shift", "null"), "data.shift is null; give one of Incremental, LabelDrift, SwapAll, SwapPart or"),
    ],
)
def test_skew_or_shift_that_is_not_known_names_the_nearest(words: tuple[str, ...], expected: str):
    assert expected in error_of(*MNIST, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "quickstart", "--rounds", "5", "--algorithm", "FedAvg"),
        ("--rounds", "5", "--algorithm", "FedAvg", "--config", "quickstart"),
        ("--rounds", "5", "--config=quickstart", "--algorithm=FedAvg"),
    ],
)
def test_options_count_wherever_the_file_stands(words: tuple[str, ...]):
    experiment = parse_run(words).experiment
    assert (experiment.rounds, type(experiment.algorithm).__name__) == (5, "FedAvg")


@pytest.mark.parametrize("name", ["1e-3", "1.5e3", "7", "null", "a-1e-3"])
def test_a_text_that_looks_like_a_number_is_a_text_again(name: str):
    experiment = parse_run(["--config", "quickstart", "--name", name]).experiment
    assert build(experiment.to_dict()).name == name
    assert yaml.safe_load(as_yaml({"a": name, "b": [1e-5, 2.0, 3, 1e22, None]})) == {
        "a": name,
        "b": [1e-5, 2.0, 3, 1e22, None],
    }


def test_a_tiny_run_has_the_views_of_its_drift_once():
    words = ["--config", "quickstart", "--data.shift", "LabelDrift", "--tiny"]
    assert parse_run(words).experiment.prepare(0).data.num_clients == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("CosineAnneaingLR",),
            "local.lr_schedule: 'CosineAnneaingLR' is not known (did you mean CosineAnnealingLR?). Known: ",
        ),
        (
            ("torch.optim.SGD",),
            "local.lr_schedule: 'torch.optim.SGD' is not a subclass of torch.optim.lr_scheduler.LRScheduler; derive it",
        ),
        (("0.9",), "local.lr_schedule: '0.9' is not known. Known: "),
        (("CosineAnnealingLR",), "local.lr_schedule: CosineAnnealingLR needs T_max; give it under init_args"),
        (
            ("CosineAnnealingLR", "--local.lr_schedule.T_mx", "4"),
            "local.lr_schedule: CosineAnnealingLR has no option 'T_mx' (did you mean T_max?). Its options: ",
        ),
        (
            ("CosineAnnealingLR", "--local.lr_schedule.T_max", "ten"),
            "local.lr_schedule.T_max is 'ten'; give a whole number",
        ),
    ],
)
def test_schedule_that_cannot_be_read_is_refused_with_its_remedy(words: tuple[str, ...], expected: str):
    with pytest.raises(InputError) as error:
        parse_run(["--config", "fedavg/digits", "--local.lr_schedule", *words])
    assert str(error.value).startswith(expected)


def test_options_of_a_schedule_can_be_given_one_by_one_and_schedules_can_follow_each_other():
    words = ["--config", "fedavg/digits", "--local.lr_schedule", "ExponentialLR", "--local.lr_schedule.gamma", "0.9"]
    request = parse_run(words)
    schedule = request.experiment.to_dict()["local"]["lr_schedule"]
    assert schedule["class_path"] == "torch.optim.lr_scheduler.ExponentialLR"
    assert schedule["init_args"]["gamma"] == 0.9
    parts = "{class_path: LinearLR, init_args: {total_iters: 2}}, {class_path: ExponentialLR, init_args: {gamma: 0.5}}"
    both = f"{{class_path: SequentialSchedule, init_args: {{milestones: [2], schedulers: [{parts}]}}}}"
    engine = parse_run([*words[:3], both]).experiment.prepare(0).engine
    assert [engine.rates(round) for round in (0, 2, 4)] == [(pytest.approx(0.1 / 3),), (0.1,), (0.025,)]
