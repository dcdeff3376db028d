"""Plants bugs: every entry of `tests/mutants.toml` must make a test fail.

    python benchmarks/mutants.py [--only PATTERN ...] [--jobs 1]

An entry describes a bug, the file in which `old` is replaced by `new`, and the tests that should catch it. Each bug is
planted in a copy of the tree and removed after its tests have run up to the first failure, starting with the test that
caught it last time. The failing test must pass without the bug. The results are written into the table of
`docs/testing.md`; rows of bugs that were not tried stay. Exit code 1: a bug got through, or cannot be planted.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import Queue
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- written by benchmarks/mutants.py -->", "<!-- until here -->"
HEADER = "| name | file | bug | caught by |\n|---|---|---|---|\n"
SECONDS = 1800  # time limit of the tests of one bug
# bugs are caught by the quick tests, or by tests marked full
_LANES = "not ray and not browser and not slow and not cluster"
_NO_SUCH_TEST = 4  # pytest's exit code
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
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


@dataclass(frozen=True)
class Found:
    """Outcome of a planted bug: the test that caught it, or the reason why it does not count as caught.

    Args:
        caught: Failed test, as pytest names it; "" if none failed.
        trouble: Reason why the bug does not count as caught; "" if it does.
    """

    mutant: Mutant
    caught: str
    trouble: str
    seconds: float = 0.0

    @property
    def row(self) -> str:
        test = re.sub(r"\[.*", "", self.caught).removeprefix("tests/")
        cells = (f"`{self.mutant.name}`", f"`{self.mutant.file}`", self.mutant.bug, f"`{test}`" if test else "nobody")
        return f"| {' | '.join(cells)} |"


def read_mutants(file: Path = LIST) -> list[Mutant]:
    """Reads all planted bugs, in the order of the file."""
    entries = tomllib.loads(file.read_text())
    return [Mutant(name, **entry | {"tests": tuple(entry["tests"])}) for name, entry in entries.items()]


def copy_tree(root: Path, stack: ExitStack) -> Path:
    """Copies the files that git tracks, or would track, into a temporary directory."""
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))) / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(root / name):  # skips files that were deleted but not committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name, follow_symlinks=False)
    return copy


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of the copied tree in one pytest process on one core."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", _LANES]
    command += [*options, *tests]
    alone = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tree, env=alone, capture_output=True, text=True, check=False, timeout=SECONDS)


def find_earlier_test(name: str, page: Path = PAGE) -> list[str]:
    """Looks up in the page's table the test that caught a bug last time."""
    return [f"tests/{test}" for test in re.findall(rf"^\| `{name}` .*\| `([^`]+)` \|$", page.read_text(), re.MULTILINE)]


def try_mutant(mutant: Mutant, tree: Path) -> Found:
    """Plants a bug in the copied tree, runs its tests, and removes the bug again."""
    file, begun = tree / mutant.file, perf_counter()
    try:
        text = file.read_text()
        bug = mutant.plant(text)
    except (OSError, ValueError) as error:
        return Found(mutant, "", str(error))
    file.write_text(bug)
    try:
        done = run_tests(tree, [*find_earlier_test(mutant.name), *mutant.tests], "-x")
        if done.returncode == _NO_SUCH_TEST:
            done = run_tests(tree, mutant.tests, "-x")
    except subprocess.TimeoutExpired:
        return Found(mutant, "", f"the tests did not end in {SECONDS} s")
    finally:
        file.write_text(text)
    failed = _FAILED.search(done.stdout)
    if done.returncode == 1 and failed:
        return Found(mutant, failed[1], "", perf_counter() - begun)
    trouble = "it gets through" if done.returncode == 0 else f"pytest could not run: {done.stdout[-2000:]}"
    return Found(mutant, "", trouble, perf_counter() - begun)


def try_all(chosen: Sequence[Mutant], root: Path = ROOT, jobs: int = 1) -> Iterator[Found]:
    """Yields the outcome of each bug; at the end, corrects those of bugs whose test also fails without the bug."""
    with ExitStack() as stack:
        trees: Queue[Path] = Queue()
        for _ in range(jobs):
            trees.put(copy_tree(root, stack))

        def one(mutant: Mutant) -> Found:
            tree = trees.get()
            try:
                return try_mutant(mutant, tree)
            finally:
                trees.put(tree)

        found = []
        for result in stack.enter_context(ThreadPoolExecutor(jobs)).map(one, chosen):
            found.append(result)
            yield result
        caught = sorted({result.caught for result in found if result.caught})
        done = run_tests(trees.get(), caught) if caught else None
        always = set(_FAILED.findall(done.stdout)) if done else set()
        if done and done.returncode and not always:
            raise RuntimeError(f"the tests could not be run without a bug: {done.stdout[-2000:]}")
        for result in found:
            if result.caught in always:
                yield Found(result.mutant, "", f"{result.caught} fails without the bug, too")


def write_table(found: Sequence[Found], page: Path = PAGE, file: Path = LIST) -> None:
    """Updates the page's table with these outcomes, and drops the rows of removed bugs."""
    before, _, rest = page.read_text().partition(f"{BEGIN}\n")
    table, _, after = rest.partition(END)
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    rows |= {result.mutant.name: result.row for result in found}
    kept = [rows[mutant.name] for mutant in read_mutants(file) if mutant.name in rows]
    page.write_text(before + f"{BEGIN}\n" + HEADER + "".join(f"{row}\n" for row in kept) + END + after)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names, such as 'ifca-*'")
    parser.add_argument("--jobs", type=int, default=1, help="bugs tried at the same time, each in its own copy")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in read_mutants() if any(fnmatch(mutant.name, pattern) for pattern in options.only)]
    found: dict[str, Found] = {}
    for result in try_all(chosen, jobs=options.jobs):
        found[result.mutant.name] = result
        print(f"{result.mutant.name}: {result.trouble or result.caught} ({result.seconds:.0f} s)", flush=True)
    write_table(list(found.values()))
    missed = [name for name, result in found.items() if result.trouble]
    print(f"{len(found) - len(missed)} of {len(found)} caught" + (f"; look at {', '.join(missed)}" if missed else ""))
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
