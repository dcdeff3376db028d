"""Plants the bugs of `scaffold/bugs.toml`, one at a time: each must make a test fail.

    python scaffold/bugs.py --check                            # can each bug be planted in the present tree?
    python scaffold/bugs.py [--only PATTERN ...] [--jobs 2]    # plants them; writes scaffold/bugs.csv
    python scaffold/bugs.py --stages tables                    # only the tables, keeps what kept files caught
    python scaffold/bugs.py --summary                          # counts what bugs.csv has recorded

An entry describes a bug, the file in which `old` is replaced by `new`, and the tests that should catch it. Each bug is
planted in a copy of the tree. First the tables of the bug's part run (`TABLES`); if it gets through, the kept files
among its tests. The interpreter that runs them is forked from one that has imported PyTorch and Lightning. A failing
test counts only if it passes without the bug. The exit code is 1 if a bug gets through or cannot be planted.

A commit that removes the text of a bug first plants the bug by its meaning in the new code: it is caught, or a row is
added, or the new code makes it impossible.
"""

import argparse
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST, RESULTS = ROOT / "scaffold" / "bugs.toml", ROOT / "scaffold" / "bugs.csv"
COLUMNS = ("name", "file", "bug", "table", "kept", "trouble")
SECONDS = 600  # time limit of the tests of one bug
LANE = "not ray"

_WAYS = ("tests/engines/test_ways.py", "tests/test_local_work.py")
_ALGORITHMS = ("tests/algorithms/test_contract.py", "tests/algorithms/test_algorithms_on_data.py")
_DATA = ("tests/datamodules/test_kinds_of_data.py", "tests/datamodules/test_shifts.py")
_MISTAKES = ("tests/cli/test_users_mistakes.py",)
_SHOWN = (
    "tests/report/test_definitions.py",
    "tests/report/test_golden_pages.py",
    "tests/progress/test_golden_output.py",
)
_RUNS = ("tests/runs/test_resumed_features.py", "tests/runs/test_damaged_files.py")
TABLES: dict[str, tuple[str, ...]] = {  # the first pattern that fits a file
    "lit_cfl/engines/agreement.py": ("tests/engines/test_modules.py",),
    "lit_cfl/engines/check_module.py": ("tests/engines/test_modules.py", *_WAYS),
    "lit_cfl/engines/check_task.py": ("tests/engines/test_modules.py",),
    "lit_cfl/engines/*": _WAYS,
    "lit_cfl/nets/*": _WAYS,
    "lit_cfl/tasks/*": _WAYS,
    "lit_cfl/testing/*": ("tests/test_local_work.py", *_ALGORITHMS),
    "lit_cfl/algorithms/*": _ALGORITHMS,
    "lit_cfl/clustering/*": (_ALGORITHMS[1],),
    "lit_cfl/data/*": (*_DATA, *_MISTAKES),
    "lit_cfl/datamodules/*": (*_DATA, *_MISTAKES),
    "datamodules/*": (*_DATA, *_MISTAKES),
    "lit_cfl/config/*": (*_MISTAKES, *_RUNS),
    "lit_cfl/cli/*": _MISTAKES,
    "lit_cfl/compare/*": (*_SHOWN, *_MISTAKES),
    "lit_cfl/pictures/*": _SHOWN,
    "lit_cfl/progress/*": _SHOWN,
    "lit_cfl/report/*": _SHOWN,
    "lit_cfl/tracking/*": _RUNS,
    "lit_cfl/runs/*": (*_RUNS, *_SHOWN),
    "lit_cfl/storage/*": _RUNS,
    "tune/*": (*_MISTAKES, *_SHOWN),
    "lit_cfl/statistics.py": _SHOWN,
    "lit_cfl/options.py": _MISTAKES,
    "lit_cfl/experiment.py": (*_MISTAKES, *_RUNS),
    "lit_cfl/*.py": ("tests/test_local_work.py", _ALGORITHMS[1]),
    "*": (),
}
_OWN_TEST = {file.stem for file in (ROOT / "tests" / "algorithms").glob("test_*.py")}  # such as `test_ifca`
GOING = (  # tests that the plan drops or replaces by a table: they do not count as kept
    "tests/benchmarks/test_mutants.py",
    "tests/compare/test_compare_values.py",
    "tests/config/test_bad_input.py",
    "tests/config/test_config_errors.py",
    "tests/docs/test_algorithm_interface.py",
    "tests/docs/test_architecture.py",
    "tests/docs/test_english.py",
    "tests/docs/test_knowledge.py",
    "tests/docs/test_private_names.py",
    "tests/engines/test_plan_refusals.py",
    "tests/pictures/test_drawn_values.py",
    "tests/progress/test_closing_table.py",
    "tests/progress/test_progress.py",
    "tests/report/test_report_study.py",
    "tests/report/test_report_values.py",
    "tests/tune/test_tune_bad_input.py",
    "tests/tune/test_tune_pictures.py",
)
_NO_SUCH_TEST = 4  # pytest's exit code
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Bug:
    """A planted bug.

    Args:
        name: `<subject>-<what>`.
        bug: Description of the bug.
        file: Source file that it changes.
        tests: Test files that should catch it.
        old: Text that occurs once in the file; its later lines are indented relative to the one in which it begins.
        new: Text that replaces `old`.
    """

    name: str
    bug: str
    file: str
    tests: tuple[str, ...]
    old: str
    new: str

    @property
    def tables(self) -> list[str]:
        """Test files of the tables of this bug's part; of an algorithm's file, only the rows of that algorithm."""
        files = list(next(tables for pattern, tables in TABLES.items() if fnmatch(self.file, pattern)))
        name = Path(self.file).stem
        return [*files, "-k", name] if files == [*_ALGORITHMS] and f"test_{name}" in _OWN_TEST else files

    @property
    def kept(self) -> list[str]:
        """Tests that the plan keeps, among those that should catch this bug; first the one that caught it before."""
        earlier = read_results().get(self.name, {}).get("kept", "")
        tests = [*filter(None, [re.sub(r"\[.*", "", earlier)]), *self.tests]
        return [test for test in tests if test.partition("::")[0] not in (*GOING, *self.tables)]

    def plant(self, text: str) -> str:
        """Returns the text of the file with the bug. Raises ValueError unless `old` occurs exactly once."""
        results = []
        for found in re.finditer(re.escape(self.old.partition("\n")[0]), text):
            line = text[text.rfind("\n", 0, found.start()) + 1 :]
            indent = line[: len(line) - len(line.lstrip(" "))]
            old, new = (block.replace("\n", f"\n{indent}") for block in (self.old, self.new))
            if text.startswith(old, found.start()):
                results.append(text[: found.start()] + new + text[found.start() + len(old) :])
        if len(results) != 1:
            raise ValueError(f"{self.name}: `old` occurs {len(results)} times in {self.file}")
        return results[0]


def read_bugs(patterns: Sequence[str] = ("*",)) -> list[Bug]:
    """Reads the bugs whose names match, in the order of the file."""
    entries = {key: entry | {"tests": tuple(entry["tests"])} for key, entry in tomllib.loads(LIST.read_text()).items()}
    return [Bug(key, **entry) for key, entry in entries.items() if any(fnmatch(key, one) for one in patterns)]


def read_results() -> dict[str, dict[str, str]]:
    """Reads the recorded outcomes by the name of the bug."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def write_results(found: Iterable[dict[str, str]]) -> None:
    """Replaces the outcomes of these bugs, and drops those of bugs that are no longer listed."""
    rows = read_results() | {row["name"]: row for row in found}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[bug.name] for bug in read_bugs() if bug.name in rows)


def copy_tree(copy: Path) -> None:
    """Copies the files that git tracks, or would track, and the compiled steps; compiles all modules."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    compiled = [str(file.relative_to(ROOT)) for file in ROOT.glob("lit_cfl/engines/steps-*.lib")]
    for name in filter(None, [*listed, *compiled]):
        if os.path.lexists(ROOT / name):  # a deleted file may still be listed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    folders = ["lit_cfl", "tune", "datamodules"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], cwd=copy, check=True, capture_output=True)


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests in a fork up to the first failure; returns pytest's exit code and output."""
    output = tree.parent / "output.txt"
    child = os.fork()
    if child == 0:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
        code = 1
        with suppress(BaseException):
            import pytest

            options = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", LANE]
            code = int(pytest.main([*options, *tests]))
        os._exit(code)
    end = time.monotonic() + SECONDS
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if done[0] == 0:
        os.waitpid(child, 0)
        return -1, f"FAILED the tests did not end in {SECONDS} s"
    return os.waitstatus_to_exitcode(done[1]), output.read_text(errors="replace")


def find_failure(tests: Sequence[str]) -> str:
    """Returns the first test that fails, or "" if none does. Raises RuntimeError if the tests cannot run."""
    if not tests:
        return ""
    code, text = run_tests(_tree, tests)
    if code == _NO_SUCH_TEST and "::" in tests[0]:  # the one that caught the bug before
        return find_failure(tests[1:])
    failed = _FAILED.search(text)
    if failed:
        return failed[1]
    if code not in (0, 5):  # 5: no test is in this lane
        raise RuntimeError(f"pytest could not run {' '.join(tests)}: {text[-500:]}")
    return ""


def planted(bug: Bug, tree: Path) -> Callable[[], None]:
    """Plants a bug in a copied tree; returns a function that removes it. Raises ValueError as `Bug.plant`."""
    file = tree / bug.file
    text, stat = file.read_text(), file.stat()
    file.write_text(bug.plant(text))
    os.utime(file, (stat.st_atime, stat.st_mtime + 1000))  # no compiled module is taken for that of the other text

    def build() -> None:
        if file.suffix == ".cpp":
            subprocess.run([sys.executable, "hatch_build.py"], cwd=tree, check=True, capture_output=True)

    def remove() -> None:
        file.write_text(text)
        os.utime(file, (stat.st_atime, stat.st_mtime))
        build()

    build()
    return remove


def try_bug(bug: Bug, stages: str = "both") -> dict[str, str]:
    """Plants a bug in this process' copy of the tree, runs its tests, and removes the bug again."""
    row = dict.fromkeys(COLUMNS, "") | {"name": bug.name, "file": bug.file, "bug": bug.bug}
    try:
        remove = planted(bug, _tree)
    except (OSError, ValueError) as error:
        return row | {"trouble": str(error)}
    try:
        row["table"] = "" if stages == "kept" else find_failure(bug.tables)
        if stages == "tables":
            row["kept"] = "" if row["table"] else read_results().get(bug.name, {}).get("kept", "")
        else:
            row["kept"] = "" if row["table"] else find_failure(bug.kept)
        row["trouble"] = "" if row["table"] or row["kept"] else "it gets through"
    except RuntimeError as error:
        row["trouble"] = str(error)
    finally:
        remove()
    return row


_tree = ROOT  # of this process


def _begin(folder: str) -> None:
    global _tree
    _tree = Path(tempfile.mkdtemp(dir=folder)) / "tree"
    copy_tree(_tree)


def try_all(bugs: Sequence[Bug], jobs: int, stages: str = "both") -> Iterator[dict[str, str]]:
    """Yields the outcome of each bug; at the end, corrects those of bugs whose test also fails without the bug."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    for module in ("lightning", "torchvision", "pandas", "sklearn.cluster", "matplotlib.figure", "datasets", "pytest"):
        __import__(module)  # once for all forks
    with (
        tempfile.TemporaryDirectory(prefix="bugs-") as folder,
        get_context("fork").Pool(jobs, _begin, [folder]) as pool,
    ):
        found = []
        for row in pool.imap_unordered(partial(try_bug, stages=stages), bugs):
            found.append(row)
            yield row
        caught = sorted({row["table"] or row["kept"] for row in found} - {""})
        while caught and (wrong := pool.apply(find_failure, [caught])):
            yield from (
                row | {"trouble": f"{wrong} fails without the bug, too"} for row in found if wrong in row.values()
            )
            caught.remove(wrong)


def summarise() -> str:
    """Counts the recorded outcomes by folder."""
    rows = read_results().values()
    lines = [f"{'part':<28} {'bugs':>5} {'tables':>7} {'kept files':>11} {'through':>8}"]
    parts = Counter(str(Path(row["file"]).parent) for row in rows)
    for part in [*sorted(parts), ""]:
        own = [row for row in rows if part in ("", str(Path(row["file"]).parent))]
        table, kept = (sum(bool(row[column]) and not row["trouble"] for row in own) for column in ("table", "kept"))
        lines.append(f"{part or 'all':<28} {len(own):>5} {table:>7} {kept:>11} {len(own) - table - kept:>8}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names, such as 'ifca-*'")
    parser.add_argument("--jobs", type=int, default=1, help="bugs tried at the same time, each in its own copy")
    parser.add_argument("--through", action="store_true", help="only those that got through, or had trouble")
    parser.add_argument("--stages", default="both", choices=["both", "tables", "kept"], help="tests that run")
    parser.add_argument("--check", action="store_true", help="only say which bugs cannot be planted")
    parser.add_argument("--summary", action="store_true", help="only count the recorded outcomes")
    options = parser.parse_args(arguments)
    bugs = read_bugs(options.only)
    if options.summary:
        print(summarise())
        return 0
    if options.check:
        return check_all(bugs)
    if options.through:
        known = read_results()
        bugs = [bug for bug in bugs if known.get(bug.name, {"trouble": "not tried"})["trouble"]]
    missed = []
    for row in try_all(bugs, options.jobs, options.stages):
        print(f"{row['name']}: {row['trouble'] or row['table'] or row['kept']}", flush=True)
        write_results([row])
        missed += [row["name"]] if row["trouble"] else []
    print(f"{len(bugs) - len(missed)} of {len(bugs)} caught" + (f"; look at {', '.join(missed)}" if missed else ""))
    return bool(missed)


def check_all(bugs: Sequence[Bug]) -> int:
    """Prints the bugs that cannot be planted; returns 1 if there are any."""
    wrong = []
    for bug in bugs:
        try:
            bug.plant((ROOT / bug.file).read_text())
        except (OSError, ValueError) as error:
            wrong.append(str(error))
    print("\n".join([*wrong, f"{len(bugs) - len(wrong)} of {len(bugs)} bugs can be planted"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
