"""The planted bugs can be planted, and the script that plants them distinguishes what is caught from what is not."""

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

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
        assert "|" not in mutant.bug, mutant.name  # it stands in a table
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
    """A project with three planted bugs: one that is caught, one that is not, and one for a line that is gone."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "thing.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "tests" / "test_thing.py").write_text(
        "from thing import double\n\n\ndef test_fine():\n    assert True\n\n\n"
        "def test_four():\n    assert double(2) == 4\n"
    )
    bugs = [
        ("thing-caught", "It trebles.", "2 * x", "3 * x"),
        ("thing-gone", "A line that is gone.", "x + x", "x"),
        ("thing-missed", "It squares.", "2 * x", "x * x"),
    ]
    entries = [ENTRY.format(name=name, bug=bug, old=old, new=new) for name, bug, old, new in bugs]
    (tmp_path / "tests" / "mutants.toml").write_text("\n".join(entries))
    return tmp_path


def run_here(tree: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the tree's tests in this process, in place of `mutants.run_tests`, and reports as pytest does."""
    failed = []
    for test in tests:
        file, _, only = test.partition("::")
        thing = ModuleType("thing")
        exec((tree / "thing.py").read_text(), vars(thing))  # noqa: S102  # written above
        text = (tree / file).read_text().replace("from thing import double\n", "")
        names = dict(vars(thing))
        exec(text, names)  # noqa: S102
        for name in [only] if only else [name for name in names if name.startswith("test_")]:
            try:
                names[name]()
            except AssertionError:
                failed.append(f"FAILED {file}::{name} - AssertionError")
    return subprocess.CompletedProcess(tests, 1 if failed else 0, "\n".join(failed), "")


@needs_git
def test_bug_that_gets_through_and_bug_that_cannot_be_planted_are_reported(tree: Path, monkeypatch: pytest.MonkeyPatch):
    import mutants

    monkeypatch.setattr(mutants, "run_tests", run_here)
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    found = list(mutants.try_all(mutants.read_mutants(tree / "tests" / "mutants.toml"), tree))
    assert [(result.mutant.name, result.caught) for result in found] == [
        ("thing-caught", "tests/test_thing.py::test_four"),
        ("thing-gone", ""),
        ("thing-missed", ""),
    ]
    assert found[0].trouble == ""
    assert found[1].trouble == "thing-gone: `old` occurs 0 times in thing.py"
    assert found[2].trouble == "it gets through"
    assert (tree / "thing.py").read_text() == "def double(x):\n    return 2 * x\n"


def test_test_that_caught_a_bug_before_runs_first_unless_it_is_gone(tree: Path, monkeypatch: pytest.MonkeyPatch):
    import mutants

    asked: list[tuple[str, ...]] = []

    def run_tests(tree: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        asked.append(tuple(tests))
        code = mutants._NO_SUCH_TEST if len(tests) > 1 else 0
        return subprocess.CompletedProcess(tests, code, "", "")

    monkeypatch.setattr(mutants, "run_tests", run_tests)
    monkeypatch.setattr(mutants, "find_earlier_test", lambda name: ["tests/test_thing.py::test_gone"])
    bug = mutants.read_mutants(tree / "tests" / "mutants.toml")[0]
    assert mutants.try_mutant(bug, tree).trouble == "it gets through"
    assert asked == [("tests/test_thing.py::test_gone", "tests/test_thing.py"), ("tests/test_thing.py",)]


def test_the_table_says_which_test_caught_a_bug_before(tmp_path: Path):
    import mutants

    page = tmp_path / "page.md"
    page.write_text("| `a-b` | `a.py` | It is `odd`. | `x/test_a.py::test_b` |\n| `a-bc` | `a.py` | It. | nobody |\n")
    assert mutants.find_earlier_test("a-b", page) == ["tests/x/test_a.py::test_b"]
    assert mutants.find_earlier_test("a-bc", page) == []


@needs_git
def test_test_that_fails_without_the_bug_catches_nothing(tree: Path, monkeypatch: pytest.MonkeyPatch):
    import mutants

    monkeypatch.setattr(mutants, "run_tests", run_here)
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    (tree / "tests" / "test_thing.py").write_text("def test_never():\n    assert False\n")
    caught = mutants.read_mutants(tree / "tests" / "mutants.toml")[:1]
    assert [result.trouble for result in mutants.try_all(caught, tree)] == [
        "",
        "tests/test_thing.py::test_never fails without the bug, too",
    ]


def test_pytest_in_a_process_of_its_own_names_the_test_that_failed_also_one_marked_full(
    tree: Path, monkeypatch: pytest.MonkeyPatch
):
    import mutants

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # no plugin is needed, and some are slow to import
    (tree / "pytest.ini").write_text("[pytest]\naddopts = -m 'not full'\nmarkers = full\n")
    file = tree / "tests" / "test_thing.py"
    file.write_text("import pytest\n" + file.read_text().replace("def test_four", "@pytest.mark.full\ndef test_four"))
    (tree / "thing.py").write_text("def double(x):\n    return 3 * x\n")
    done = mutants.run_tests(tree, ["tests/test_thing.py"], "-x")
    assert (done.returncode, mutants._FAILED.findall(done.stdout)) == (1, ["tests/test_thing.py::test_four"])


def test_table_keeps_the_rows_of_bugs_that_were_not_tried(tree: Path):
    import mutants

    file, page = tree / "tests" / "mutants.toml", tree / "testing.md"
    page.write_text(f"Before.\n{mutants.BEGIN}\n{mutants.END}\nAfter.\n")
    first, _, last = mutants.read_mutants(file)
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
