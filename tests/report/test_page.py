"""Tests the page file: without scripts, safe for any names, small, and written by the command."""

import contextlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import add_own_tables, made_run
from matplotlib.text import Text
from test_sources import page_of

from lit_cfl.cli.main import main
from lit_cfl.pictures.figure import draw
from lit_cfl.pictures.svg import as_svg
from lit_cfl.report.page import MOST_BYTES, as_html

pytestmark = pytest.mark.nightly  # a table of tests states these facts

HACK = "</script><script>hacked = 1</script>"


class Reader(HTMLParser):
    """Parser that collects the texts of a page by their tags, and all attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br", "path", "rect", "line", "circle"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data


def read(html: bytes) -> Reader:
    reader = Reader()
    reader.feed(html.decode())
    return reader


def test_tables_captions_and_descriptions_are_in_the_html(tmp_path: Path):
    page = page_of(made_run(tmp_path / "run"))
    found = read(as_html(page))
    assert found.texts["h1"] == ["Run run"]
    assert [text.strip() for text in found.texts["h2"]] == [section.title for section in page.sections]
    assert "0.400" in found.texts["td"]
    captions = " ".join(found.texts["figcaption"])
    described = [
        attributes["aria-labelledby"] for tag, attributes in found.attributes if "aria-labelledby" in attributes
    ]
    assert described == [f"{figure.name}-alt" for figure in page.figures]
    for figure in page.figures:
        assert figure.caption in captions
        assert figure.alt in found.texts["span"]


def test_nothing_of_the_page_is_fetched(tmp_path: Path):
    html = as_html(page_of(made_run(tmp_path / "run")))
    found = read(html)
    links = [a.get("src") or a.get("href") for tag, a in found.attributes if tag in ("script", "link", "img", "a")]
    assert all(link is None or link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in html.decode()


def test_names_with_html_are_text(tmp_path: Path):
    run = made_run(
        tmp_path / "a<b>&'",
        over=False,
        algorithm={"class_path": f"own.{HACK}", "init_args": {"name": f'"{HACK}'}},
        tracking={"tags": [HACK]},
    )
    add_own_tables(run)
    text = as_html(page_of(run)).decode()
    plain = as_html(page_of(made_run(tmp_path / "plain"))).decode()
    assert "<script>hacked" not in text
    assert "<script" not in text + plain
    assert "&lt;script&gt;hacked" in text
    two = page_of(run, made_run(tmp_path / "other"))
    assert "&lt;script&gt;hacked = 1" in as_svg(two.figures[0])  # the name of an algorithm in a legend is escaped


def test_formulas_in_names_are_text(tmp_path: Path):
    page = page_of(made_run(tmp_path / "run", algorithm={"class_path": "own.$_$"}), made_run(tmp_path / "other"))
    assert ">$_$<" in as_svg(page.figures[0])


def test_a_cluster_and_an_algorithm_of_a_comparison_with_html_in_their_names(tmp_path: Path):
    path, name = tmp_path / "compare", "<img src=x onerror=hacked=1>"
    made_run(path / name / "seed-0")
    (path / "compare.yaml").write_text(f"name: x\nalgorithms: ['{name}']\nseeds: [0]\ntarget: null\n")
    (path / "runs.csv").write_text(f"algorithm,seed,status,error\n{name},1,failed,{name}\n")
    page = page_of(path)
    assert f"{name}, seed 1, failed: {name}." in page.problems
    assert not [tag for tag, attributes in read(as_html(page)).attributes if "onerror" in attributes]


def test_a_name_in_a_comparison_that_looks_like_a_number_is_text(tmp_path: Path):
    path = tmp_path / "compare"
    made_run(path / "010" / "seed-0")
    (path / "compare.yaml").write_text("name: x\nalgorithms: ['010']\nseeds: [0]\ntarget: null\n")
    (path / "runs.csv").write_text("algorithm,seed,status,error\n010,1,failed,it broke\n")
    assert "010, seed 1, failed: it broke." in page_of(path).problems


@pytest.mark.parametrize("clients", [2000, 5000])
def test_pages_of_large_runs_stay_small(clients: int, tmp_path: Path):
    run = made_run(tmp_path / "run", clients=clients, snapshots=0)
    shown = np.arange(0, clients, -(-clients // 2000))
    rng = np.random.default_rng(0)
    for number in (1, 2):
        alike = rng.normal(size=(len(shown), len(shown))).astype(np.float16)
        arrays = {"similarity": alike, "projection": rng.normal(size=(len(shown), 2)).astype(np.float16)}
        clusters = {"cluster": shown % 3, "true_cluster": shown % 3, "compared": np.array(clients)}
        np.savez(run / "snapshots" / f"{number}.npz", clients=shown, **arrays, **clusters)
    page = page_of(run)
    assert len(as_html(page)) < MOST_BYTES
    captions = {figure.name: figure.caption for figure in page.figures}
    for name, count in (("cfl-similarity", 200), ("cfl-map", 500), ("cfl-memberships", 500)):
        assert f"{count} of {clients:,} clients" in captions[name]


def test_twenty_rounds_of_500_clients_and_ten_algorithms_stay_below_the_limit(tmp_path: Path):
    many, rng = made_run(tmp_path / "many", clients=500, snapshots=20, over=False), np.random.default_rng(0)
    for file in (many / "snapshots").iterdir():
        with np.load(file) as arrays:
            kept = dict(arrays)
        # random numbers, which cannot be compressed
        np.savez(file, **kept | {"similarity": rng.normal(size=(500, 500)).astype(np.float16)})
    assert len(as_html(page_of(many))) < MOST_BYTES
    for name in "abcdefghij":
        made_run(tmp_path / "compare" / name / "seed-0", clients=500, snapshots=3)
    names = ", ".join("abcdefghij")
    (tmp_path / "compare" / "compare.yaml").write_text(f"name: x\nalgorithms: [{names}]\nseeds: [0]\ntarget: 1\n")
    assert len(as_html(page_of(tmp_path / "compare"))) < MOST_BYTES


@pytest.fixture(scope="module")
def made(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Runs `lit-cfl report` on a real run; returns the folder of the page and figures, and the output."""
    folder, printed = tmp_path_factory.mktemp("made"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        words = ["report", str(whole), "--out", str(folder / "pages" / "page.html"), "--figures", str(folder / "f")]
        assert main(words) == 0
    return folder, printed.getvalue()


def test_the_command_writes_the_page_of_a_real_run_and_names_it(made: tuple[Path, str], whole: Path):
    folder, printed = made
    assert printed.splitlines() == [f"Figures: {folder / 'f'}", f"Page: {folder / 'pages' / 'page.html'}"]
    found = read((folder / "pages" / "page.html").read_bytes())
    summary = json.loads((whole / "summary.json").read_text())
    assert f"{summary['test/weighted_accuracy']:.3f}" in found.texts["td"]
    assert "FedAvg (baseline)" in found.texts["th"]
    assert not [text for text in found.texts.get("li", []) if "left out" in text]


def test_figures_for_a_paper_are_png_and_pdf_of_a_columns_width(made: tuple[Path, str]):
    from PIL import Image

    folder = made[0] / "f"
    names = {file.stem for file in folder.glob("*.png")}
    assert {"test-weighted_accuracy", "fedgroup-map", "fedgroup-similarity", "fedgroup-memberships"} <= names
    for name in names:
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width == 3.5 * 300
            assert len(picture.convert("L").getcolors()) > 10  # the picture is not empty
        assert fonts_of(folder / f"{name}.pdf") == {b"CIDFontType2", b"Type0"}  # TrueType


def fonts_of(file: Path) -> set[bytes]:
    """Returns the kinds of the fonts in a PDF: publishers refuse Type 3."""
    return set(re.findall(rb"/Type /Font\s+/Subtype /(\w+)", file.read_bytes()))


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


def test_a_page_cannot_be_written_over_a_directory(tmp_path: Path, capsys):
    run = made_run(tmp_path / "run")
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} is a directory" in capsys.readouterr().err
    assert main(["report", str(run), "--out", f"{tmp_path}/pages/"]) == 2
    assert f"name a file, such as {tmp_path}/pages/report.html" in capsys.readouterr().err
    assert main(["report", str(run), "--figures", "paper/curve.PDF"]) == 2
    assert "names a file, but each figure gets a separate file, as PNG and PDF; name a folder, such as paper/curve" in (
        capsys.readouterr().err
    )
