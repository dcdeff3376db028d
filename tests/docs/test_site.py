"""Tests that the site builds without a warning, shows all public names and options, and needs no network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly  # the site is built once; needs the extra docs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path):
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    assert len(pages) > 80
    for page, text in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?([^\"\s>]+)", text)
        loaded += re.findall(r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)\b[^>]*\bhref=\"?([^\"\s>]+)", text)
        assert loaded
        assert [target for target in loaded if "//" in target] == [], page
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//", styles) == []


def test_api_reference_has_every_public_name_and_the_page_of_an_algorithm_its_options(site: Path):
    table = (ROOT / "docs" / "api.md").read_text()
    modules = re.findall(r"^\| `([\w.]+)` \|[^|]*\|([^|]*)\|$", table, flags=re.MULTILINE)
    for module, names in modules:
        shown = set(re.findall(r"<h2 id=\"?[\w.]*?(\w+)\"? ", (site / "api" / f"{module}.html").read_text()))
        packages = {"compare", "tune"} if module == "lit_cfl" else set()  # packages that can be called
        assert set() < set(re.findall(r"`([A-Za-z]\w*)`", names)) <= shown | packages, module
    page = re.sub(r"<[^>]+>", "", (site / "algorithms" / "ifca.html").read_text())
    assert "line 13 would divide" in page
    assert "Let every client in training choose again" in page


def test_search_works_from_the_file_system_without_a_network(site: Path):
    chromium = shutil.which("chromium")
    assert chromium, "install Debian's chromium"
    page = f"{(site / 'index.html').as_uri()}?q=which clusters merge"
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
    done = subprocess.run([chromium, *words, "--virtual-time-budget=20000", page], capture_output=True, text=True)
    (found,) = re.findall(r'class="md-search-result__meta">([^<]*)<', done.stdout)
    assert int(found.split()[0]) > 5, found
    assert "algorithms/stocfl.html" in done.stdout.partition("md-search-result__list")[2]
