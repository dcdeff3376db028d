"""Tests that the site builds without a warning, and needs no network."""

import os
import re
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
