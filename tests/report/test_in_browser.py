"""Tests pages in headless Chromium without a network: figures, widths, colours and keyboard."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_cases import searched_study
from inside_shown import html_of, page_of
from made_runs import made_run

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs chromium and chromium-driver"),
]


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
    """Makes a page of a study and a page of two runs."""
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
