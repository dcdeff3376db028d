"""Tests `lit_cfl.tune(...)` in Python, which returns pandas tables, and `lit-cfl tune --dry-run`."""

from pathlib import Path

import pandas as pd
import pytest
from studies import ALGORITHMS, STUDY, study_file

import lit_cfl
from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.storage.yaml_files import parse_yaml

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.ray
@pytest.mark.nightly
@pytest.mark.usefixtures("cluster")
def test_content_of_a_study_is_searched_and_its_tables_come_back():
    lines: list[str] = []
    found = lit_cfl.tune(STUDY | {"num_repeats": 2}, ["--limits.trials", "2"], study_dir="study", say=lines.append)
    assert found.path == Path("study")
    assert list(found.trials["trial_id"]) == ["0000", "0001"]
    assert found.trials["status"].eq("finished").any()
    pd.testing.assert_frame_equal(
        found.trials, pd.read_csv("study/trials.csv", dtype={"trial_id": str, "repeats": str})
    )
    assert found.best is not None
    assert found.best["val/weighted_accuracy"] == found.trials["val/weighted_accuracy"].max()
    assert found.repeated is not None
    assert {run["seed"] for run in found.repeated.runs} == {1, 2}
    recorded = parse_yaml(Path("study/study.yaml").read_text())
    assert [folder for folder in recorded["base"]["code"] if "lit-cfl-" in folder] == []
    again = lit_cfl.tune(resume="study", say=lines.append)
    pd.testing.assert_frame_equal(again.trials, found.trials)


@pytest.mark.parametrize(
    ("study", "words", "expected"),
    [
        (STUDY, ["--dry-run"], "--dry-run is for the command"),
        (STUDY["base"], [], "is an experiment, not a study"),
        (STUDY | {"metric": "val/tuned_accuracy"}, [], "val/tuned_accuracy.*evaluation.fine_tune"),
    ],
)
def test_what_the_command_refuses_is_refused(study, words: list[str], expected: str):
    with pytest.raises(InputError, match=expected):
        lit_cfl.tune(study, words)


def test_a_dry_run_has_a_line_per_corner_and_point_and_writes_nothing(capsys: pytest.CaptureFixture[str]):
    points = [{"algorithm": "IFCA", "IFCA.num_clusters": 3}]
    study = study_file(Path(), space={"algorithm": ALGORITHMS}, points=points, seeds=[3, 4], num_repeats=5)
    assert main(["tune", "--config", str(study), "--dry-run"]) == 0
    first, then, _, *corners = capsys.readouterr().out.splitlines()
    assert first.startswith("3 trials of 4 rounds under the seeds 3, 4 each, over algorithm, IFCA.num_clusters, FedG")
    assert then == "At the end: the best and the default setting on 5 new seeds."
    assert corners == [
        "  IFCA: algorithm = IFCA, IFCA.num_clusters = 2",
        "  IFCA: algorithm = IFCA, IFCA.num_clusters = 3",
        *(
            f"  FedGroup: algorithm = FedGroup, FedGroup.eta_g = {rate:g}, FedGroup.num_clusters = {number}"
            for rate, number in ((0.001, 2), (0.1, 2), (0.001, 3))
        ),
    ]
    assert [file.name for file in Path().iterdir()] == ["study-to-run.yaml"]
