"""Tests that a picture that cannot be drawn does not stop a run, comparison, study or report."""

from pathlib import Path
from typing import Any

import pytest
from digits_experiment import digits
from inside_shown import html_of, page_of
from made_runs import made_run

from lit_cfl.algorithms import FedAvg
from lit_cfl.cli.main import main
from lit_cfl.errors import Notice, SaveError
from lit_cfl.pictures import figures
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.figures import Kind
from lit_cfl.pictures.folder import PictureFolder
from lit_cfl.pictures.options import Pictures
from lit_cfl.pictures.panels import Panel
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.pictures.run_files import read_run
from lit_cfl.report import assemble, command, over_rounds, page
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table

NAMES = [kind.name for kind in figures.RUN_FIGURES]


def fails(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("planted")


def kinds(broken: str = "") -> list[Kind]:
    """Makes the figures of a run empty, and the one of this name fail."""
    empty = Figure("x", "x", [[Panel("", "", "")]], "", "")
    made = {broken: fails}
    return [Kind(k.name, k.title, made.get(k.name, lambda *_: empty), k.on_page) for k in figures.RUN_FIGURES]


@pytest.mark.parametrize("broken", ["curve", "shifts"])  # the first and the last
def test_a_picture_of_a_run_may_fail_and_is_drawn_once_it_can_be(
    broken: str, pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lit_cfl.pictures.folder.RUN_FIGURES", kinds(broken))
    monkeypatch.setattr("lit_cfl.pictures.folder.write_figure", lambda _, path, formats: [path.with_suffix(".png")])
    made = read_run(made_run(tmp_path / "run"))
    values, cluster = made.final_scores
    view = RoundView(made.path, made.score, True, lambda: dict(made.memberships or {}), cluster, values, [], {})
    folder = PictureFolder(tmp_path / "p", ["png"])
    with pytest.warns(Notice) as said:
        first, again = folder.draw(view), folder.draw(view)
    (note,) = [str(one.message) for one in said]
    assert note == f"pictures/{broken} cannot be drawn and is left out (ZeroDivisionError: planted)"
    assert [*first] == [*again] == [name for name in NAMES if name != broken]
    monkeypatch.setattr("lit_cfl.pictures.folder.RUN_FIGURES", kinds())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_cfl.pictures.folder.read_run", fails)
        with pytest.warns(Notice, match="pictures cannot be drawn"):
            assert folder.draw(view) == {}
    assert not folder.ended
    assert [*folder.draw(view)] == NAMES
    assert folder.ended
    assert folder.draw(view) == {}


@pytest.mark.parametrize(("full_at", "left"), [("memberships", False), ("curve with the baseline", True)])
def test_a_full_disk_at_the_last_pictures_of_a_run_is_an_error(
    full_at: str, left: bool, pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise the run ended with exit code 0 and without its digests. `left`: The run itself was complete."""

    def write(figure: object, path: Path, formats: object) -> list[Path]:
        if path.name == full_at or (full_at.startswith("curve") and (tmp_path / "run/baseline/SHA256SUMS").exists()):
            raise SaveError(f"{path}.png could not be written (No space left on device)")
        return []

    monkeypatch.setattr("lit_cfl.pictures.folder.write_figure", write)
    experiment = digits(baseline=FedAvg(), pictures=Pictures(["png"]))
    with pytest.raises(SaveError, match="could not be written"):
        run(experiment, tmp_path / "run")
    assert (tmp_path / "run" / "SHA256SUMS").exists() == left
    monkeypatch.setattr("lit_cfl.pictures.folder.write_figure", lambda figure, path, formats: [])
    run(experiment, tmp_path / "run", mode="resume")
    assert (tmp_path / "run" / "SHA256SUMS").exists()


def test_runs_comparisons_and_data_end_without_a_picture_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lit_cfl.runs.run.draw_both", fails)
    with pytest.warns(Notice, match="pictures/curve"):
        finished = run(digits(baseline=FedAvg(), pictures=Pictures(["png"])), tmp_path / "run")
    assert finished.baseline is not None
    monkeypatch.setattr("lit_cfl.pictures.curves.mean_curves", fails)
    words = ["compare", "--config", "fedavg/digits", "--algorithms", "FedAvg", "Ditto", "--rounds", "2", "--seeds", "1"]
    with pytest.warns(Notice, match="pictures/curve cannot be drawn"):
        assert main([*words, "--num_cpus", "1", "--compare_dir", "c"]) == 0
    assert [row["algorithm"] for row in read_table(Path("c/results.csv"))] == ["FedAvg", "Ditto"]
    assert "curve.png" not in Path("c/results.md").read_text()
    monkeypatch.setattr("lit_cfl.cli.data_summary.size_histogram", fails)
    with pytest.warns(Notice, match=r"sizes\.png cannot be drawn"):
        assert main(["data", "--config", "quickstart", "--out", "d"]) == 0
    assert {path.name for path in Path("d").iterdir()} == {"labels.png", "clusters.png", "partition.npz"}


def test_each_figure_of_a_page_and_of_a_paper_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = made_run(tmp_path / "run")
    whole, said = page_of(path), "cannot be drawn and is left out (ZeroDivisionError: planted)."
    for broken in (whole.figures[0], whole.figures[-1]):
        monkeypatch.setattr(page, "as_svg", lambda f, b=broken: fails() if b.name in f.name else "<svg></svg>")
        text = html_of(whole)
        assert f"{broken.title} {said}" in text
        shown = [f'<figure id="{figure.name}"' in text for figure in whole.figures]
        assert shown == [figure is not broken for figure in whole.figures]
    (tmp_path / "way").write_text("in the way")
    with pytest.raises(SaveError):
        command.write_figures(whole, tmp_path / "way")
    drawn = list[str]()

    def write(figure: Figure, path: Path, *_: object, **options: object) -> None:
        drawn.append(fails() if figure is broken else path.name)

    monkeypatch.setattr(command, "write_figure", write)
    with pytest.warns(Notice, match=f"figure {broken.name} cannot be drawn"):
        command.write_figures(whole, tmp_path / "out")
    assert drawn == [figure.name for figure in whole.figures if figure is not broken]
    # so may the functions that make the figures
    monkeypatch.setattr(assemble, "RUN_FIGURES", kinds("map"))
    monkeypatch.setattr(over_rounds, "over_cost", fails)
    assert page_of(path).problems == [f"traffic {said}", f"local work {said}", f"{path}: map {said}"]
