"""Tests that a user's mistakes give one line and exit code 2, before anything is started or written."""

from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from studies import BASE, base, study_file

from lit_cfl.cli.main import main
from lit_cfl.config.variants import build
from lit_cfl.errors import InputError
from lit_cfl.tune.options import parse_study

pytestmark = pytest.mark.nightly  # a table of tests states these facts


def typed(config: Path, *words: str) -> int:
    code = main(["tune", "--config", str(config), "--study_dir", str(config.parent / "study"), *words])
    assert not ray.is_initialized()
    return code


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({"space": None}, [], "nothing says what to run (no space)"),
        ({}, ["--resources.cpus", "4096"], "resources.cpus is 4096, but no node of this machine has more than"),
        ({}, ["--resources.gpus", "64"], "resources.gpus is 64, but no node of this machine has more than"),
        ({}, ["--limits.target", ".nan"], "limits.target is nan"),
        ({}, ["--limits.trial", "3"], "limits has no option 'trial' (did you mean trials?)"),
        ({}, ["--ray.address", "127.0.0.1:1"], "no Ray cluster answers at RAY_ADDRESS='127.0.0.1:1'"),
        (
            {},
            ["--ray.address", "ray://127.0.0.1:1"],
            "a search cannot run through 'ray://127.0.0.1:1'; run lit-cfl tune",
        ),
        ({}, ["--study_dir", "/proc/study"], "/proc/study cannot be written"),
        (
            {"points": [{"algorithm.eta_g": 0.1}]},
            [],
            "points: number 1, {'algorithm.eta_g': 0.1}: the point has no value for algorithm.num_clusters",
        ),
        (
            {"points": [{"algorithm.eta_g": 0.4, "algorithm.num_clusters": 2}]},
            [],
            "algorithm.eta_g is 0.4; the space allows 0.0 to 0.3",
        ),
        (
            {"points": [{"algorithm.eta_g": 0.1, "algorithm.num_cluster": 2}]},
            [],
            "the point has 'algorithm.num_cluster', which is not searched there (did you mean algorithm.num_clusters?)",
        ),
        (
            {
                "points": [{"algorithm.eta_g": 0.1, "algorithm.num_clusters": k} for k in (2, 3)],
                "limits": {"trials": 2},
            },
            [],
            "limits.trials is 2, but the base's setting, the points and the grid make 3 trials",
        ),
        ({"stopping": {"eta": 0.5}}, [], "stopping.eta is 0.5; give 1 (no trial is stopped) or more"),
        ({"scheduler": "ASHASchedler"}, [], "scheduler 'ASHASchedler' cannot be used (did you mean ASHAScheduler?)"),
        (
            {"scheduler": "ray.tune.schedulers.HyperBandScheduler"},
            [],
            "cannot be used (did you mean ASHAScheduler?). Give one of ASHAScheduler, ",
        ),
        (
            {"scheduler": {"class_path": "ASHAScheduler", "init_args": {"eta": 2}}},
            [],
            "scheduler ASHAScheduler has no option 'eta'",
        ),
        ({}, ["--config", "quickstart"], "quickstart is an experiment, not a study; write a study with `base:"),
    ],
)
def test_the_mistake_is_named_at_once_and_no_file_is_left(
    changes: dict[str, Any], words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert typed(study_file(tmp_path, **changes), *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("lit-cfl: error: ")
    assert len(error.splitlines()) == 1
    assert "--run_dir" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["study-to-run.yaml"]


@pytest.mark.parametrize("resources", [{"gpus": 0.5}, {}])
def test_a_gpu_is_not_asked_for_by_number_where_ray_gives_each_trial_one(
    resources: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr("lit_cfl.engines.choose_plan.count_gpus", lambda: 2)
    assert typed(study_file(tmp_path, base=base(device="cuda:1"), resources=resources)) == 2
    assert "device is 'cuda:1', but a trial sees one GPU, which is cuda:0 there: give cuda" in capsys.readouterr().err


def test_trials_do_not_share_a_gpu_that_nobody_divides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("lit_cfl.engines.choose_plan.count_gpus", lambda: 1)
    assert typed(study_file(tmp_path)) == 2
    message = "resources.gpus is 0, but trials would all train on cuda:0; give each a share of a GPU"
    assert message in capsys.readouterr().err


def test_a_searcher_on_the_command_line_takes_the_place_of_the_files(tmp_path: Path):
    file = study_file(tmp_path, searcher={"class_path": "TPESampler", "init_args": {"seed": 3}})
    word = "{class_path: optuna.samplers.TPESampler, init_args: {seed: 4}}"
    study = parse_study(["--config", str(file), "--searcher", word]).study
    assert study.searcher == {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 4}}


def test_errors_of_a_nets_constructor_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The net is first tried as one of our nets; that attempt must not appear as the cause."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_odd_net.py").write_text(
        "import torch\n\n\nclass Odd(torch.nn.Module):\n"
        "    def __init__(self, depth: int = 1) -> None:\n        raise RuntimeError(f'no depth {depth}')\n"
    )
    net = {"class_path": "own_odd_net.Odd", "init_args": {"depth": 3}}
    optimizer = BASE["task"]["init_args"]["optimizer"]
    experiment = build(base(task={"class_path": "Classification", "init_args": {"net": net, "optimizer": optimizer}}))
    with pytest.raises(InputError, match=r"^Odd raised RuntimeError: no depth 3 \(in .*own_odd_net\.py, line 6\)$"):
        experiment.prepare(0)


def test_a_study_is_not_run_as_an_experiment(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--config", "tune/quickstart"]) == 2
    assert "options of a study; run its file with lit-cfl tune" in capsys.readouterr().err


def test_options_that_a_search_does_not_have_are_not_called_options_of_an_experiment(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["tune", "--config", "tune/quickstart", "--quiet"]) == 2
    assert "--quiet is an option of lit-cfl run, which lit-cfl tune does not have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("study.yaml", "already holds a study; choose another --study_dir, or resume with --resume"),
        ("config.yaml", "holds a run, not a study"),
        ("trials/mine/thesis.txt", "holds 'trials', which does not belong to a study"),
        ("ray/data.bin", "holds 'ray', which does not belong to a study"),
    ],
)
def test_a_directory_with_other_files_is_left_unchanged(
    entry: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "study" / entry
    file.parent.mkdir(parents=True)
    file.write_text("kept")
    assert typed(study_file(tmp_path)) == 2
    assert message in capsys.readouterr().err
    assert file.read_text() == "kept"
    assert [path for path in (tmp_path / "study").rglob("*") if path.is_file()] == [file]


def test_the_base_of_a_study_is_found_next_to_the_file_that_names_it(tmp_path: Path):
    folders = [tmp_path / name for name in ("studies", "mine")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "base-of-study.yaml").write_text(yaml.safe_dump(BASE | {"rounds": 7}))
    study = study_file(folders[0], base="base-of-study.yaml")
    (folders[1] / "limits.yaml").write_text("limits: {trials: 5}\n")
    found = parse_study(["--config", str(study), "--config", str(folders[1] / "limits.yaml")]).study
    assert (found.whole_base["rounds"], found.limits.trials) == (7, 5)
