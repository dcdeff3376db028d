"""Tests the output of `lit-cfl tune --dry-run`, and that it trains and writes nothing."""

from pathlib import Path

import pytest
from studies import ALGORITHMS, study_file

from lit_cfl.cli.main import main


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_has_a_line_per_corner_and_point_and_writes_nothing(capsys: pytest.CaptureFixture[str]):
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
