"""Tests the page file: without scripts, safe for any names, small, and written by the command with its figures."""

import re
from pathlib import Path

import numpy as np
import pytest
from inside_shown import figure_on, html_of, page_of
from made_runs import made_run, write_table
from matplotlib.text import Text
from PIL import Image

from lit_cfl.cli.main import main
from lit_cfl.pictures.figure import draw

pytestmark = pytest.mark.nightly  # golden files and definitions state the rest of what pages show
MOST_BYTES = 2 * 2**20
HACK = "</script><script>hacked = 1</script>"


def add_own_tables(path: Path) -> None:
    """Adds tables of shifts, migrations and layers to an unfinished run."""
    shifts = [{"round": 1, "client": 0}, {"round": 3, "client": 0}, {"round": 2, "client": 1}]
    write_table(path / "shift.csv", ("round", "client"), shifts)
    moves = [{"round": 2, "client": 0, "cluster_before": 0, "cluster_after": 1}]
    moves += [{"round": 3, "client": 0, "cluster_before": 1, "cluster_after": 1}]
    write_table(path / "migrations.csv", ("round", "client", "cluster_before", "cluster_after"), moves)
    layers = [
        {"round": 2, "cluster": 0, "layer": name, "silhouette": 0.25 * k, "gap": 0.5, "chosen": k}
        for k, name in enumerate(["first", "<script>hacked = 1</script>"])
    ]
    write_table(path / "layers.csv", ("round", "cluster", "layer", "silhouette", "gap", "chosen"), layers)


def test_a_page_has_no_script_fetches_nothing_and_shows_names_as_text(tmp_path: Path):
    name = "<img src=x onerror=hacked=1>"
    own = {"class_path": f"own.{HACK}", "init_args": {"name": f'"{HACK}'}}
    run = made_run(tmp_path / "compare" / name / "seed-0", over=False, algorithm=own, tracking={"tags": [HACK]})
    made_run(tmp_path / "compare" / "$_$" / "seed-0")
    add_own_tables(run)
    about = f"name: x\nalgorithms: ['{name}', '$_$']\nseeds: [0]\ntarget: null\n"
    (tmp_path / "compare" / "compare.yaml").write_text(about)
    (tmp_path / "compare" / "runs.csv").write_text(f"algorithm,seed,status,error\n{name},1,failed,{name}\n")
    html = html_of(page_of(tmp_path / "compare"))
    assert "<script" not in html
    assert "&lt;script&gt;hacked" in html
    assert "<img" not in html
    assert ">$_$<" in html  # in a legend: no formula
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in html


def test_captions_and_descriptions_of_all_figures_are_in_the_html(tmp_path: Path):
    page = page_of(made_run(tmp_path / "run"))
    html = html_of(page)
    assert re.findall('aria-labelledby="([^"]*)"', html) == [f"{figure.name}-alt" for figure in page.figures]
    for figure in page.figures:
        assert figure.caption.endswith(".")
        assert f"{figure.caption}<details>" in html.replace("&#39;", "'")
        assert f">{figure.alt}</span>" in html.replace("&#39;", "'")


def test_pages_of_large_runs_and_of_many_runs_stay_small(tmp_path: Path):
    run, rng = made_run(tmp_path / "run", clients=5000, snapshots=0), np.random.default_rng(0)
    shown = np.arange(0, 5000, 3)
    arrays = {"similarity": rng.normal(size=(len(shown), len(shown))), "projection": rng.normal(size=(len(shown), 2))}
    clusters = {"cluster": shown % 3, "true_cluster": shown % 3, "compared": np.array(5000)}
    np.savez(run / "snapshots" / "1.npz", clients=shown, **arrays, **clusters)
    page = page_of(run)
    assert len(html_of(page)) < MOST_BYTES
    for name, count in (("cfl-similarity", 200), ("cfl-map", 500), ("cfl-memberships", 500)):
        assert f"{count} of 5,000 clients" in figure_on(page, name).caption
    page = page_of(*(made_run(tmp_path / name, clients=500, snapshots=3) for name in "abcdefghij"))
    assert len(html_of(page)) < MOST_BYTES
    assert [figure.name for figure in page.figures if "150 of 500 clients" in figure.caption][:2] == [
        "cfl-a-similarity",
        "cfl-a-map",
    ]


def test_the_command_writes_a_page_and_figures_for_a_paper_of_a_real_run(whole: Path, tmp_path: Path, capsys):
    page, folder = tmp_path / "pages" / "page.html", tmp_path / "f"
    assert main(["report", str(whole), "--out", str(page), "--figures", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"Figures: {folder}", f"Page: {page}"]
    assert "left out" not in page.read_text()
    drawn = {file.stem for file in folder.glob("*.png")}
    assert {"test-weighted_accuracy", "fedgroup-map", "fedgroup-similarity", "fedgroup-memberships"} <= drawn
    for name in drawn:
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width == 3.5 * 300
            assert len(picture.convert("L").getcolors()) > 10  # the picture is not empty
        fonts = set(re.findall(rb"/Type /Font\s+/Subtype /(\w+)", (folder / f"{name}.pdf").read_bytes()))
        assert fonts == {b"CIDFontType2", b"Type0"}  # TrueType: publishers refuse Type 3


def test_every_text_of_a_figure_has_seven_points_at_the_width_of_a_column(tmp_path: Path):
    run = made_run(tmp_path / "run", clients=60, over=False)
    add_own_tables(run)
    for figure in page_of(run, made_run(tmp_path / "other", clients=60)).figures:
        drawn = draw(figure)
        drawn.draw_without_rendering()
        assert drawn.get_figwidth() == 3.5
        texts = [text for text in drawn.findobj(Text) if text.get_visible() and text.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 7, figure.name
        assert not [text.get_text() for text in texts if "^" in text.get_text()], figure.name  # no small exponents
