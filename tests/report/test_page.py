"""Tests the page file: without scripts, safe for any names, small, written by the command, and drawn by Chromium."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import searched_study
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
    some = [figure.name for figure in page.figures if "150 of 500 clients" in figure.caption]
    assert some[:2] == ["cfl-a-similarity", "cfl-a-map"]


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


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    run = made_run(folder / "run", clients=60, snapshots=4, over=False)
    sources = {"run": (run, made_run(folder / "other", clients=60)), "study": (searched_study(folder / "study"),)}
    found = {name: folder / f"{name}.html" for name in sources}
    for name, paths in sources.items():
        found[name].write_text(html_of(page_of(*paths)), "utf-8")
    return found


def show(driver: Any, page: Path, width: int = 1280, dark: bool = False) -> None:
    """Opens a page in a window so tall that the whole page is visible."""
    colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
    size = {"width": width, "height": 12000, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())


def requests(driver: Any) -> set[str]:
    """Returns the addresses requested since the last call, other than the page and its own content."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    return {url for url in urls if not url.startswith(("data:", "blob:", "file:"))}


@pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs chromium and chromium-driver")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["wide, light", "narrow, dark"])
@pytest.mark.parametrize("name", ["run", "study"])
def test_every_figure_is_drawn_without_an_error_or_a_request(
    name: str, width: int, dark: bool, driver: Any, pages: dict[str, Path]
):
    driver.get_log("browser")
    requests(driver)
    show(driver, pages[name], width, dark)
    assert [entry for entry in driver.get_log("browser") if entry["level"] != "INFO"] == []
    assert requests(driver) == set()
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    inside = "return [...document.querySelectorAll('.plot')].map(box => [box.scrollWidth <= box.clientWidth + 1,"
    drawn = driver.execute_script(inside + "box.querySelectorAll('path, image').length > 3])")
    assert len(drawn) >= 3
    assert all(map(all, drawn))
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    text = driver.execute_script("return getComputedStyle(document.querySelector('.plot text')).fill")
    assert (brightness(paper) < 60, brightness(text) > 180) == (dark, dark)


def brightness(colour: str) -> float:
    numbers = colour.partition("(")[2].rstrip(")").split(",")[:3]
    return sum(float(number) for number in numbers) / 3
