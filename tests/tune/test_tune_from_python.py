"""Tests `lit_cfl.tune(...)` in Python: it does the same as the command, and returns pandas tables."""

from pathlib import Path

import pandas as pd
import pytest
from studies import STUDY

import lit_cfl
from lit_cfl.errors import InputError
from lit_cfl.storage.yaml_files import parse_yaml

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.ray
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
    assert any("2 trials of 4 rounds" in line for line in lines)
    recorded = parse_yaml(Path("study/study.yaml").read_text())
    assert [folder for folder in recorded["base"]["code"] if "lit-cfl-" in folder] == []
    again = lit_cfl.tune(resume="study", say=lines.append)
    pd.testing.assert_frame_equal(again.trials, found.trials)


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_study_is_judged_by_a_score_after_fine_tuning():
    study = STUDY | {"metric": "val/tuned_accuracy"}
    with pytest.raises(InputError, match=r"metric is 'val/tuned_accuracy', but evaluation\.fine_tune is null"):
        lit_cfl.tune(study, study_dir="study")
    base = STUDY["base"] | {"evaluation": {"fine_tune": {"length": 2, "unit": "steps"}}}
    found = lit_cfl.tune(study | {"base": base}, ["--limits.trials", "2"], study_dir="study", say=lambda line: None)
    assert found.best is not None
    assert found.best["val/tuned_accuracy"] == found.trials["val/tuned_accuracy"].max()
    assert found.trials["val/tuned_accuracy"].notna().any()


@pytest.mark.parametrize(
    ("study", "words", "expected"),
    [
        (STUDY, ["--dry-run"], "--dry-run is for the command"),
        (STUDY["base"], [], "this content is an experiment, not a study"),
        ("quickstart", [], "is an experiment, not a study"),
        (None, ["--resume", "nothere"], "nothere"),
    ],
)
def test_what_the_command_refuses_is_refused(study, words: list[str], expected: str):
    with pytest.raises(InputError, match=expected):
        lit_cfl.tune(study, words)


def test_a_study_is_not_resumed_with_another_content():
    Path("study").mkdir()
    with pytest.raises(InputError, match="--resume continues the study unchanged; leave out the study "):
        lit_cfl.tune(STUDY, resume="study")
