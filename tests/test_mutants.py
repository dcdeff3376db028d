"""The planted bugs can be planted, and the script that plants them tells what is caught from what is not."""

import shutil
import subprocess
from pathlib import Path

import pytest

from lit_cfl import catalogue

ROOT = Path(__file__).parents[1]
PATCH = "{bug}\ntests: tests/test_thing.py\n--- a/thing.py\n+++ b/thing.py\n@@ -1,2 +1,2 @@\n def double(x):\n{lines}"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_every_algorithm_has_a_planted_bug_and_there_are_at_least_25():
    import mutants

    subjects = {mutant.name.partition("-")[0] for mutant in mutants.mutants()}
    assert {name.lower() for name in catalogue.names("algorithms")} <= subjects
    assert len(mutants.mutants()) >= 25


@needs_git
def test_every_patch_applies_to_the_present_tree():
    import mutants

    complaints = {mutant.name: mutants.apply(mutant.patch, ROOT, "--check") for mutant in mutants.mutants()}
    assert {name: text for name, text in complaints.items() if text} == {}


def test_every_patch_says_what_the_bug_is_and_names_tests_there_are():
    import mutants

    for mutant in mutants.mutants():
        assert mutant.bug.endswith("."), mutant.name
        assert "|" not in mutant.bug, mutant.name  # it stands in a table
        assert mutant.tests, mutant.name
        assert all((ROOT / test).is_file() for test in mutant.tests), mutant.name


def test_table_of_the_documentation_lists_exactly_these_bugs_each_caught_by_a_test_it_names():
    import mutants

    text = mutants.PAGE.read_text().partition(mutants.BEGIN)[2].partition(mutants.END)[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:3] == "| `"]
    assert [row[:3] for row in rows] == [[mutant.name, mutant.file, mutant.bug] for mutant in mutants.mutants()]
    for mutant, row in zip(mutants.mutants(), rows, strict=True):
        file, _, test = row[3].partition("::")
        assert f"tests/{file}" in mutant.tests, mutant.name
        assert f"def {test.rpartition('::')[2]}(" in (ROOT / "tests" / file).read_text(), mutant.name


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with three planted bugs: one that is caught, one that is not, and one for a line that is gone."""
    (tmp_path / "tests" / "mutants").mkdir(parents=True)
    (tmp_path / "thing.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "tests" / "test_thing.py").write_text(
        "from thing import double\n\n\ndef test_fine():\n    assert True\n\n\n"
        "def test_four():\n    assert double(2) == 4\n"
    )
    bugs = {
        "thing-caught": ("It trebles.", "-    return 2 * x\n+    return 3 * x\n"),
        "thing-gone": ("A line that is gone.", "-    return x + x\n+    return x\n"),
        "thing-missed": ("It squares.", "-    return 2 * x\n+    return x * x\n"),
    }
    for name, (bug, lines) in bugs.items():
        (tmp_path / "tests" / "mutants" / f"{name}.patch").write_text(PATCH.format(bug=bug, lines=lines))
    return tmp_path


@needs_git
def test_bug_that_gets_through_and_patch_that_does_not_apply_are_told(tree: Path, capsys: pytest.CaptureFixture[str]):
    import mutants

    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    found = list(mutants.try_all(mutants.mutants(tree / "tests" / "mutants"), tree))
    assert [(result.mutant.name, result.caught) for result in found] == [
        ("thing-caught", "tests/test_thing.py::test_four"), ("thing-gone", ""), ("thing-missed", ""),
    ]  # fmt: skip
    assert found[0].trouble == ""
    assert "does not apply" in found[1].trouble
    assert found[2].trouble == "it gets through"
    assert (tree / "thing.py").read_text() == "def double(x):\n    return 2 * x\n"


@needs_git
def test_test_that_fails_without_the_bug_catches_nothing(tree: Path):
    import mutants

    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    (tree / "tests" / "test_thing.py").write_text("def test_never():\n    assert False\n")
    caught = mutants.mutants(tree / "tests" / "mutants")[:1]
    assert [result.trouble for result in mutants.try_all(caught, tree)] == [
        "", "tests/test_thing.py::test_never fails without the bug, too",
    ]  # fmt: skip


def test_table_keeps_the_rows_of_bugs_that_were_not_tried(tree: Path):
    import mutants

    folder, page = tree / "tests" / "mutants", tree / "testing.md"
    page.write_text(f"Before.\n{mutants.BEGIN}\n{mutants.END}\nAfter.\n")
    first, _, last = mutants.mutants(folder)
    mutants.write_table([mutants.Found(first, "tests/test_thing.py::test_four[1 2]", "")], page, folder)
    mutants.write_table([mutants.Found(last, "", "it gets through")], page, folder)
    assert page.read_text().splitlines() == [
        "Before.", mutants.BEGIN, *mutants.HEADER.splitlines(),
        "| `thing-caught` | `thing.py` | It trebles. | `test_thing.py::test_four` |",
        "| `thing-missed` | `thing.py` | It squares. | nobody |",
        mutants.END, "After.",
    ]  # fmt: skip
    first.patch.unlink()
    mutants.write_table([], page, folder)
    assert "thing-caught" not in page.read_text()


def test_patch_without_its_two_lines_is_refused(tmp_path: Path):
    import mutants

    (tmp_path / "a.patch").write_text("It trebles.\n--- a/thing.py\n+++ b/thing.py\n")
    with pytest.raises(ValueError, match=r"a\.patch does not begin with"):
        mutants.mutants(tmp_path)
