"""Tests that a picture that cannot be drawn does not stop a run, comparison, study or report."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from digits_experiment import digits
from made_runs import made_run

from lit_cfl.algorithms import FedAvg
from lit_cfl.cli.main import main
from lit_cfl.errors import Notice, SaveError
from lit_cfl.pictures import figures as run_figures
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.folder import PictureFolder
from lit_cfl.pictures.options import Pictures
from lit_cfl.pictures.panels import Panel
from lit_cfl.pictures.run_files import read_run
from lit_cfl.report import command, over_rounds, page
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Page
from lit_cfl.report.page import as_html
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table

MAKERS = {
    "curve": "learning_curve",
    "memberships": "memberships",
    "similarity": "similarity",
    "map": "client_map",
    "histogram": "histogram",
    "splits": "splits",
    "shifts": "shifts",
}  # the function that makes each picture of a run


def page_of(path: Path) -> Page:
    return make_page([path], ["lit-cfl", "report"])


def fails(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("planted")


def empty(*_: object, **__: object) -> Figure:
    return Figure("x", "x", [[Panel("", "", "")]], "", "")


def last_view(folder: Path) -> Any:
    """Makes a view of the end of a run for which there is material for all pictures."""
    run = read_run(made_run(folder / "run"))
    values, cluster = run.final_scores
    return SimpleNamespace(
        last=True, path=run.path, memberships=lambda: run.memberships, values=values, cluster=cluster
    )


@pytest.mark.parametrize("broken", MAKERS)
def test_each_picture_of_a_run_may_fail_and_is_drawn_once_it_can_be(
    broken: str, pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, function in MAKERS.items():
        maker = fails if name == broken else empty
        monkeypatch.setattr(f"lit_cfl.pictures.figures.{function}", maker)
    monkeypatch.setattr(
        "lit_cfl.pictures.folder.write_figure", lambda figure, path, formats: [path.with_suffix(".png")]
    )
    folder, view = PictureFolder(tmp_path / "p", ["png"]), last_view(tmp_path)
    with pytest.warns(Notice) as said:
        first, again = folder.draw(view), folder.draw(view)
    assert [str(one.message) for one in said] == [
        f"pictures/{broken} cannot be drawn and is left out (ZeroDivisionError: planted)"
    ]
    assert first.keys() == again.keys() == MAKERS.keys() - {broken}
    assert not folder.ended
    monkeypatch.setattr(f"lit_cfl.pictures.figures.{MAKERS[broken]}", empty)
    assert folder.draw(view).keys() == MAKERS.keys()
    assert folder.ended
    assert folder.draw(view) == {}


def test_files_that_cannot_be_read_for_a_picture_end_nothing(
    pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    view = last_view(tmp_path)
    monkeypatch.setattr("lit_cfl.pictures.folder.read_run", fails)
    folder = PictureFolder(tmp_path / "p", ["png"])
    with pytest.warns(Notice, match="pictures cannot be drawn"):
        assert folder.draw(view) == {}
    assert not folder.ended


def test_a_run_and_its_baseline_end_without_their_curve(
    pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in ("figures", "folder"):
        monkeypatch.setattr(f"lit_cfl.pictures.{module}.learning_curve", fails)
    with pytest.warns(Notice, match="pictures/curve"):
        finished = run(digits(baseline=FedAvg(), pictures=Pictures(["png"])), tmp_path / "run")
    assert finished.baseline is not None
    drawn = {file.name for file in (tmp_path / "run" / "pictures").iterdir()}
    assert "memberships.png" in drawn
    assert "curve.png" not in drawn


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


def test_a_comparison_ends_without_its_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lit_cfl.pictures.curves.mean_curves", fails)
    words = ["compare", "--config", "fedavg/digits", "--algorithms", "FedAvg", "Ditto", "--rounds", "2", "--seeds", "1"]
    with pytest.warns(Notice, match=r"^pictures/curve cannot be drawn and is left out \(ZeroDivisionError: planted\)$"):
        assert main([*words, "--num_cpus", "1", "--compare_dir", "c"]) == 0
    assert [row["algorithm"] for row in read_table(Path("c/results.csv"))] == ["FedAvg", "Ditto"]
    assert "curve.png" not in Path("c/results.md").read_text()


@pytest.mark.parametrize(
    ("broken", "file"),
    [("label_distribution", "labels"), ("size_histogram", "sizes"), ("example_images", "clusters")],
)
def test_data_are_shown_without_a_picture(broken: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"lit_cfl.cli.data_summary.{broken}", fails)
    with pytest.warns(Notice, match=rf"{file}\.png cannot be drawn"):
        assert main(["data", "--config", "quickstart", "--out", str(tmp_path)]) == 0
    drawn = {"labels.png", "sizes.png", "clusters.png"} - {f"{file}.png"}
    assert {path.name for path in tmp_path.iterdir()} == {*drawn, "partition.npz"}


def test_each_figure_of_a_page_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = page_of(made_run(tmp_path / "run"))
    figures = whole.figures
    assert len(figures) > 5
    monkeypatch.setattr(page, "as_svg", lambda figure: "<svg></svg>")  # not drawn, since drawing takes most of the time
    for broken in figures:
        monkeypatch.setattr(page, "as_svg", lambda f, b=broken: fails() if b.name in f.name else "<svg></svg>")
        text = as_html(whole).decode()
        assert f"{broken.title} cannot be drawn and is left out (ZeroDivisionError: planted)." in text
        assert [f'<figure id="{figure.name}"' in text for figure in figures] == [f is not broken for f in figures]


@pytest.mark.parametrize(
    ("module", "maker"),
    [
        (over_rounds, "over_rounds"),
        (over_rounds, "over_cost"),
        *((run_figures, name) for name in ("memberships", "histogram", "splits", "similarity", "client_map")),
    ],
)
def test_what_makes_the_figures_of_a_page_may_fail(
    module: Any, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = made_run(tmp_path / "run")
    whole = page_of(path)
    monkeypatch.setattr(module, maker, fails)
    broken = page_of(path)
    assert any("cannot be drawn and is left out (ZeroDivisionError: planted)." in line for line in broken.problems)
    assert 0 < len(broken.figures) < len(whole.figures)
    assert [section.title for section in broken.sections][-1] == whole.sections[-1].title


def test_figures_for_a_paper_are_drawn_without_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = page_of(made_run(tmp_path / "run"))
    broken, write = made.figures[1], command.write_figure
    monkeypatch.setattr(
        command,
        "write_figure",
        lambda figure, *more, **how: fails() if figure is broken else write(figure, *more, **how),
    )
    seen: list[int] = []
    with pytest.warns(Notice, match=f"figure {broken.name} cannot be drawn"):
        command.write_figures(made, tmp_path / "out", lambda: seen.append(1))
    assert len(seen) == len(made.figures)
    assert {file.stem for file in (tmp_path / "out").glob("*.pdf")} == {f.name for f in made.figures} - {broken.name}


def test_a_figure_that_was_asked_for_and_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(SaveError):
        command.write_figures(page_of(made_run(tmp_path / "run")), tmp_path / "out", list)
