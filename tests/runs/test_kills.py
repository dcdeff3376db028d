"""Runs a part of `benchmarks/kills.py`: after a kill or a full disk, a run still completes its files."""

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.nightly

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_run_hurt_at_some_of_its_file_operations_leaves_what_an_unhurt_run_leaves(
    pictures: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Sets one thread, since the children are forks of this process."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("lit_cfl.pictures.files._DPI", 20)  # the resolution that the script sets
    import kills

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    code = kills.main(["--what", "run", "--first", "4", "--every", "24"])
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert code == 0, said
    for how in ("kill", "full"):
        assert f"run, {how}: 6 of 6 equal" in said
