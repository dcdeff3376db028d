"""Tests that every listed bug can be planted, and that the script distinguishes caught bugs from missed ones."""

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from lit_cfl.config import catalogue

ROOT = Path(__file__).parents[2]
ENTRY = '[{name}]\nbug = "{bug}"\nfile = "thing.py"\ntests = ["tests/test_thing.py"]\nold = "{old}"\nnew = "{new}"\n'
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git lists the files to copy")


pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_every_algorithm_has_a_planted_bug_and_there_are_at_least_25():
    import mutants

    subjects = {mutant.name.partition("-")[0] for mutant in mutants.read_mutants()}
    assert {name.lower() for name in catalogue.names("algorithms")} <= subjects
    assert len(mutants.read_mutants()) >= 25


def test_every_bug_can_be_planted_in_the_present_tree_and_changes_something():
    import mutants

    for mutant in mutants.read_mutants():
        text = (ROOT / mutant.file).read_text()
        assert mutant.plant(text) != text, mutant.name  # raises where `old` does not occur exactly once


def test_every_bug_is_described_and_names_tests_there_are_and_the_list_is_sorted():
    import mutants

    for mutant in mutants.read_mutants():
        assert mutant.bug.endswith("."), mutant.name
        assert "|" not in mutant.bug, mutant.name  # the text is a cell of a Markdown table
        assert mutant.tests, mutant.name
        assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests), mutant.name
    names = [mutant.name for mutant in mutants.read_mutants()]
    assert names == sorted(names)


def test_bug_is_planted_at_any_indentation_and_only_where_its_text_occurs_once():
    import mutants

    bug = mutants.Mutant("thing", "", "thing.py", (), "if x:\n    return y", "return 1\nreturn 2")
    assert bug.plant("a\n    if x:\n        return y\nb") == "a\n    return 1\n    return 2\nb"
    assert bug.plant("if x:\n    return y\nif x:\n    return z") == "return 1\nreturn 2\nif x:\n    return z"
    for text, times in (("if x:\n        return y", 0), (2 * "if x:\n    return y\n", 2)):
        with pytest.raises(ValueError, match=f"`old` occurs {times} times in thing.py"):
            bug.plant(text)


def test_table_of_the_documentation_lists_exactly_these_bugs_each_caught_by_a_test_it_names():
    import mutants

    text = mutants.PAGE.read_text().partition(mutants.BEGIN)[2].partition(mutants.END)[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:3] == "| `"]
    assert [row[:3] for row in rows] == [[mutant.name, mutant.file, mutant.bug] for mutant in mutants.read_mutants()]
    for mutant, row in zip(mutants.read_mutants(), rows, strict=True):
        file, _, test = row[3].partition("::")
        assert f"tests/{file}" in {named.partition("::")[0] for named in mutant.tests}, mutant.name
        assert f"def {test.rpartition('::')[2]}(" in (ROOT / "tests" / file).read_text(), mutant.name


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Makes a project with four bugs: one caught, one missed, one whose line is gone, one whose test always fails."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not full'\nmarkers = full\n")
    (tmp_path / "thing.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "tests" / "test_thing.py").write_text(
        "import pytest\nfrom thing import double\n\n\ndef test_fine():\n    assert True\n\n\n"
        "@pytest.mark.full\ndef test_four():\n    assert double(2) == 4\n"
    )
    (tmp_path / "tests" / "test_never.py").write_text("def test_never():\n    assert False\n")
    bugs = [
        ("thing-caught", "It trebles.", "2 * x", "3 * x"),
        ("thing-gone", "A line that is gone.", "x + x", "x"),
        ("thing-missed", "It squares.", "2 * x", "x * x"),
        ("thing-never", "It adds.", "2 * x", "2 + x"),
    ]
    entries = [ENTRY.format(name=name, bug=bug, old=old, new=new) for name, bug, old, new in bugs]
    entries[-1] = entries[-1].replace("test_thing", "test_never")
    (tmp_path / "tests" / "mutants.toml").write_text("\n".join(entries))
    return tmp_path


@needs_git
def test_bugs_count_as_caught_only_by_a_test_that_passes_without_them(tree: Path, monkeypatch: pytest.MonkeyPatch):
    """The recorded tests no longer exist; the test that catches the first bug is in the full lane."""
    import mutants

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # no plugin is needed, and some are slow to import
    monkeypatch.setattr(mutants, "find_earlier_test", lambda name: ["tests/test_thing.py::test_gone"])
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    found = list(mutants.try_all(mutants.read_mutants(tree / "tests" / "mutants.toml"), tree))
    assert [(result.mutant.name, result.caught, result.trouble) for result in found] == [
        ("thing-caught", "tests/test_thing.py::test_four", ""),
        ("thing-gone", "", "thing-gone: `old` occurs 0 times in thing.py"),
        ("thing-missed", "", "it gets through"),
        ("thing-never", "tests/test_never.py::test_never", ""),
        ("thing-never", "", "tests/test_never.py::test_never fails without the bug, too"),
    ]
    assert (tree / "thing.py").read_text() == "def double(x):\n    return 2 * x\n"


def test_the_table_says_which_test_caught_a_bug_before(tmp_path: Path):
    import mutants

    page = tmp_path / "page.md"
    page.write_text("| `a-b` | `a.py` | It is `odd`. | `x/test_a.py::test_b` |\n| `a-bc` | `a.py` | It. | nobody |\n")
    assert mutants.find_earlier_test("a-b", page) == ["tests/x/test_a.py::test_b"]
    assert mutants.find_earlier_test("a-bc", page) == []


def test_table_keeps_the_rows_of_bugs_that_were_not_tried(tree: Path):
    import mutants

    file, page = tree / "tests" / "mutants.toml", tree / "testing.md"
    page.write_text(f"Before.\n{mutants.BEGIN}\n{mutants.END}\nAfter.\n")
    first, _, last, _ = mutants.read_mutants(file)
    mutants.write_table([mutants.Found(first, "tests/test_thing.py::test_four[1 2]", "")], page, file)
    mutants.write_table([mutants.Found(last, "", "it gets through")], page, file)
    assert page.read_text().splitlines() == [
        "Before.",
        mutants.BEGIN,
        *mutants.HEADER.splitlines(),
        "| `thing-caught` | `thing.py` | It trebles. | `test_thing.py::test_four` |",
        "| `thing-missed` | `thing.py` | It squares. | nobody |",
        mutants.END,
        "After.",
    ]
    file.write_text(file.read_text().replace("thing-caught", "thing-renamed"))
    mutants.write_table([], page, file)
    assert "thing-caught" not in page.read_text()


@needs_git
def test_copy_has_what_is_not_committed_and_keeps_links(tree: Path):
    import mutants

    (tree / "package").mkdir()
    (tree / "package" / "more").symlink_to("../tests")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    with ExitStack() as stack:
        copy = mutants.copy_tree(tree, stack)
        assert (copy / "package" / "more").readlink() == Path("../tests")
        assert (copy / "package" / "more" / "test_thing.py").is_file()
