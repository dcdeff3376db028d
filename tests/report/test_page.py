"""The file itself: readable without a script, safe whatever names hold, small, and made by the command."""

import contextlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import add_own_tables, made_run, metric_row, write_table
from test_sources import page_of

from lit_cfl.cli.main import main
from lit_cfl.metric_names import METRICS
from lit_cfl.report.page import MOST_BYTES, as_html, in_script
from lit_cfl.storage.digests import write_sealed

HACK = "</script><script>hacked = 1</script>"


class Reader(HTMLParser):
    """Collects scripts, headings, cells of tables and texts of a page."""

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
    assert text.count("</script>") == plain.count("</script>") == 3
    assert "&lt;script&gt;hacked" in text
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text)[1]
    layers = next(figure for figure in json.loads(data) if figure["name"].endswith("-layers"))
    assert layers["axes"]["x"]["ticktext"][1] == "&lt;script&gt;hacked = 1&lt;/script&gt;"


def test_a_cluster_and_an_algorithm_of_a_comparison_with_html_in_their_names(tmp_path: Path):
    path, name = tmp_path / "compare", "<img src=x onerror=hacked=1>"
    made_run(path / name / "seed-0")
    write_sealed(path / "compare.yaml", f"name: x\nalgorithms: ['{name}']\nseeds: [0]\ntarget: null\n")
    (path / "runs.csv").write_text(f"algorithm,seed,status,error\n{name},1,failed,{name}\n")
    page = page_of(path)
    assert f"{name}, seed 1, failed: {name}." in page.problems
    assert not [tag for tag, attributes in read(as_html(page)).attributes if "onerror" in attributes]


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "\u2028 & \u2029", 'a"b\\'])
def test_json_in_a_script_element_keeps_its_text_and_cannot_end_the_element(text: str):
    written = in_script([{"name": text}])
    assert json.loads(written) == [{"name": text}]
    assert not set("<>&\u2028\u2029") & set(written)


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
    assert len(as_html(page)) < MOST_BYTES / 3
    captions = {figure.name: figure.caption for figure in page.figures}
    for name in ("cfl-similarity", "cfl-map", "cfl-memberships"):
        assert f"500 of {clients:,} clients" in captions[name]


def test_twenty_rounds_of_500_clients_and_ten_algorithms_stay_below_the_limit(tmp_path: Path):
    many = page_of(made_run(tmp_path / "many", clients=500, snapshots=20))
    assert MOST_BYTES / 2 < len(as_html(many)) < MOST_BYTES
    for name in "abcdefghij":
        made_run(tmp_path / "compare" / name / "seed-0", clients=500, snapshots=3)
    names = ", ".join("abcdefghij")
    write_sealed(tmp_path / "compare" / "compare.yaml", f"name: x\nalgorithms: [{names}]\nseeds: [0]\ntarget: 1\n")
    assert len(as_html(page_of(tmp_path / "compare"))) < MOST_BYTES


@pytest.fixture(scope="module")
def made(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The page of a real run with its figures, as the command makes it, and what it prints."""
    folder, printed = tmp_path_factory.mktemp("made"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        words = ["report", str(whole), "--out", str(folder / "pages" / "page.html"), "--figures", str(folder / "f")]
        assert main(words) == 0
    return folder, printed.getvalue()


def test_the_command_writes_the_page_of_a_real_run_and_names_it(made: tuple[Path, str], whole: Path):
    folder, printed = made
    assert printed.splitlines()[-1] == f"Page: {folder / 'pages' / 'page.html'}"
    found = read((folder / "pages" / "page.html").read_bytes())
    summary = json.loads((whole / "summary.json").read_text())
    assert f"{summary['test/weighted_accuracy']:.3f}" in found.texts["td"]
    assert "FedAvg (baseline)" in found.texts["th"]
    images = [attributes for tag, attributes in found.attributes if tag == "img"]
    assert len(images) >= 8
    assert all(re.fullmatch(r"client \d+, label \d", str(image["alt"])) for image in images)
    assert any(re.fullmatch(r"(\d: \d+, )+\d+ more|(\d: \d+, )*\d: \d+", text) for text in found.texts["td"])  # labels
    assert not [text for text in found.texts.get("li", []) if "left out" in text]


def test_figures_for_a_paper_are_png_and_pdf_of_a_columns_width(made: tuple[Path, str]):
    from PIL import Image

    folder = made[0] / "f"
    names = {file.stem for file in folder.glob("*.png")}
    assert {"test-weighted_accuracy", "fedgroup-map", "fedgroup-similarity", "fedgroup-memberships"} <= names
    for name in names:
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width == 3.5 * 300
            assert len(picture.convert("L").getcolors()) > 10  # something is drawn
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_data_that_are_gone_are_said_and_the_rest_is_shown(whole: Path, tmp_path: Path, monkeypatch):
    from lit_cfl.report import data_at_hand
    from lit_cfl.report.assemble import Maker

    monkeypatch.setattr(
        "lit_cfl.runs.load_run.load_run", lambda path: (_ for _ in ()).throw(OSError("no disk; really"))
    )
    page = Maker([whole], ["x"]).make()
    assert f"Labels and images of {whole} are left out: its data are not at hand (no disk)." in page.problems
    assert "fedgroup-map" in [figure.name for figure in page.figures]
    assert data_at_hand.DataAtHand().labels_of(0) is None


def test_no_data_are_loaded_where_nobody_wants_them(whole: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("lit_cfl.runs.load_run.load_run", lambda path: pytest.fail("data were loaded"))
    assert main(["report", str(whole), "--no-data", "--out", str(tmp_path / "page.html")]) == 0
    assert "data:image/png" not in (tmp_path / "page.html").read_text()


def test_a_page_cannot_be_written_over_a_directory(tmp_path: Path, capsys):
    run = made_run(tmp_path / "run")
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} is a directory" in capsys.readouterr().err
    assert main(["report", str(run), "--watch", "--figures", "f"]) == 2
    assert "--watch writes the page alone; leave out --figures" in capsys.readouterr().err


def test_watch_writes_again_until_nobody_works_there(tmp_path: Path, monkeypatch, capsys):
    from filelock import FileLock

    from lit_cfl.report import watch

    run, out, looks = made_run(tmp_path / "run", over=False), tmp_path / "page.html", []
    lock = FileLock(run / ".lock")
    lock.acquire()

    def sleep(seconds: float) -> None:
        looks.append(out.read_text())
        if len(looks) == 1:
            write_table(run / "metrics.csv", METRICS, [metric_row(number) for number in range(1, 6)])
        elif len(looks) == 2:
            lock.release()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    clock = iter(range(10**6))
    monkeypatch.setattr(watch.time, "monotonic", lambda: 3.0 * next(clock))
    assert main(["report", str(run), "--out", str(out), "--watch", "--no-data"]) == 0
    last = out.read_text()
    assert "running, round 4 of 4" in looks[0]
    assert "running, round 5 of 4" in looks[1]
    assert 'data-reload="5"' in looks[0]
    assert "interrupted, round 5 of 4" in last
    assert "data-reload" not in last.partition("<script>")[0]
    assert "this was the last time" in capsys.readouterr().out


def test_watch_waits_for_a_directory_and_ctrl_c_leaves_a_page_that_does_not_load_itself_again(
    tmp_path: Path, monkeypatch, capsys
):
    import os
    import signal

    from filelock import FileLock

    from lit_cfl.report import watch

    run, out, looks = tmp_path / "run", tmp_path / "page.html", []
    lock = FileLock(run / ".lock")

    def sleep(seconds: float) -> None:
        looks.append(out.exists())
        if len(looks) == 1:
            run.mkdir()  # still empty
        elif len(looks) == 2:
            made_run(tmp_path / "made", over=False).rename(run)
            lock.acquire()
        elif len(looks) == 3:
            assert 'data-reload="5"' in out.read_text()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert main(["report", str(run), "--out", str(out), "--watch", "--no-data"]) == 128 + signal.SIGINT
    lock.release()
    assert looks == [False, False, True]
    assert "data-reload" not in out.read_text().partition("<script>")[0]
    assert f"Waiting for {run}. Ctrl-C ends this." in capsys.readouterr().out.replace("\n", "")
