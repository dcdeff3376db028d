"""Tests the summary of all tables, and the check of the recorded pages."""

import re
from pathlib import Path

import pytest
from recorded import recorded

from experiments.command import main
from experiments.ledger import Ledger
from experiments.results import RecordedResults
from experiments.summary import write_summary
from experiments.which_method import Protocol
from experiments.which_method_page import write_page
from lit_cfl.storage import read_table

ROOT = Path(__file__).parents[2]
SCORE = "max_weighted_test_accuracy"
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "experiments" / "docs" / "reproduction"


def test_counts_of_the_readme_are_those_of_the_summary():
    (row,) = re.findall(r"^\| all \|(.+)\|$", (DOCS / "summary.md").read_text(), flags=re.MULTILINE)
    counts = [int(cell) for cell in row.split("|")]
    names = ["all", "match", "match only with the published code's options", "not reproduced", "not run"]
    lines = zip([*names, "without a value in the paper"], counts, strict=True)
    assert "\n".join(f"| {name} | {count} |" for name, count in lines) in README
    matches, page = counts[1], " ".join(README.split())
    numbers = {row["what"]: row for row in read_table(DOCS / "numbers.csv")}
    last = numbers["cells that match by the best round, within 1.5 points by the last"]
    best = f"{last['of']} of the {matches} matches compare the best round on test data, as the papers do."
    assert f"{best} Only {last['value']} of these {last['of']} also match in the last round." in page
    match, near = (numbers[f"cells of Synthetic {what}"]["value"] for what in ("that match", "within 1.5 points"))
    by_rules = match - near + 8  # 8 cells of FedGroup's Table III were judged again
    assert f"Three facts limit what the {matches} matches show" in page
    assert f"{by_rules} of the {matches} matches depend on two rules that were made after results had been seen" in page


def test_summary_counts_verdicts_by_table(tmp_path: Path):
    cell = f"flexcfl-t3-mnist-mclr-{{}}-{SCORE}"
    runs = {cell.format("fedavg"): [{SCORE: 89.0}] * 3, cell.format("ifca"): [{SCORE: 80.0}]}
    write_summary(tmp_path, recorded(tmp_path, runs))
    page = (tmp_path / "summary.md").read_text()
    assert "| [flexcfl-3](flexcfl-3.md) | 80 | 1 |  | 1 | 77 | 1 |" in page
    assert "1 ran with one seed only" in page
    assert (tmp_path / "figures" / "summary.png").exists()


def test_command_writes_the_summary_of_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    results = recorded(tmp_path, {f"flexcfl-t3-mnist-mclr-fedavg-{SCORE}": [{SCORE: 89.0}]})
    monkeypatch.setattr(RecordedResults, "read", lambda folder: results)  # reading takes a minute
    assert main(["summary", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "447 cells: 444 not run, 1 matches, 2 no value" in shown.replace(
        "2 no value, 1 matches", "1 matches, 2 no value"
    )
    assert f"Table: {tmp_path / 'summary.md'}" in shown
    names = {"summary.md", "claims.csv", "claims.md", "figures.csv", "figures.md", "numbers.csv", "flexcfl-3.md"}
    assert names <= {file.name for file in tmp_path.iterdir()}


def test_check_lists_the_pages_that_differ_from_what_the_runs_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    results = recorded(tmp_path / "tables", {f"flexcfl-t3-mnist-mclr-fedavg-{SCORE}": [{SCORE: 89.0}]})
    monkeypatch.setattr(RecordedResults, "read", lambda folder: results)
    monkeypatch.setattr("experiments.command.ANSWER", str(tmp_path / "answer"))
    (tmp_path / "answer").mkdir()
    write_page(tmp_path / "answer", Protocol.read(), Ledger.read(tmp_path / "answer"))
    command = ["summary", "--out", str(tmp_path / "tables")]
    assert main(command) == 0
    assert main([*command, "--check"]) == 0
    page = tmp_path / "tables" / "flexcfl-3.md"
    page.write_text(page.read_text().replace("89", "90"))
    (tmp_path / "answer" / "results.csv").write_text("")
    (tmp_path / "tables" / "claims.csv").unlink()
    capsys.readouterr()
    assert main([*command, "--check"]) == 1
    differing = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "differs" in line]
    assert differing == [str(tmp_path / "answer" / "results.csv"), str(page.with_name("claims.csv")), str(page)]
    assert "90" in page.read_text()  # nothing is written
