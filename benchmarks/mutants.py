"""Planted bugs: every `tests/mutants/*.patch` must make a test fail.

    python benchmarks/mutants.py [--only PATTERN ...] [--jobs 1]

A patch begins with a line that says what the bug is and a line `tests: FILE ...` with the tests that should catch it.
Each is applied to a copy of the tree, its tests are run up to the first failure, and it is undone. The test that failed
must pass without the bug. The table in `docs/testing.md` is written from what was found; rows of patches that were not
tried stay. Exit code 1: a bug got through, or a patch does not apply.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import Queue
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutants"
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- written by benchmarks/mutants.py -->", "<!-- until here -->"
HEADER = "| patch | file | bug | caught by |\n|---|---|---|---|\n"
SECONDS = 1800  # for the tests of one bug
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Args:
        patch: the file.
        bug: what it is, in words.
        tests: files that should catch it.
        file: what it changes.
    """

    patch: Path
    bug: str
    tests: tuple[str, ...]
    file: str

    @property
    def name(self) -> str:
        return self.patch.stem

    @classmethod
    def read(cls, patch: Path) -> "Mutant":
        """Raises ValueError where the two lines or the diff are missing."""
        bug, tests, *diff = patch.read_text().splitlines()
        files = [line.removeprefix("+++ b/") for line in diff if line.startswith("+++ b/")]
        if not tests.startswith("tests: ") or len(files) != 1:
            raise ValueError(
                f"{patch.name} does not begin with the bug and `tests: ...`, or changes {len(files)} files"
            )
        return cls(patch, bug, tuple(tests.split()[1:]), files[0])


@dataclass(frozen=True)
class Found:
    """What became of a bug.

    Args:
        caught: the test that failed, as pytest names it; "" = none.
        trouble: why it does not count as caught; "" = it does.
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


def mutants(folder: Path = PATCHES) -> list[Mutant]:
    """All of them, by name."""
    return [Mutant.read(patch) for patch in sorted(folder.glob("*.patch"))]


def apply(patch: Path, tree: Path, *options: str) -> str:
    """Applies a patch to a tree with `git apply` and these options; returns git's complaint, "" if it went well."""
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}  # a repository around it is not meant
    done = subprocess.run(
        ["git", "apply", *options, str(patch.resolve())],
        cwd=tree, env=alone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr.strip() if done.returncode else ""


def copy_of(root: Path, stack: ExitStack) -> Path:
    """A copy of what git tracks, or would, in a temporary directory."""
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))) / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():  # not one that was removed since
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)
    return copy


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """One pytest process on one core, in which the tree is what is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", *options, *tests]
    alone = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tree, env=alone, capture_output=True, text=True, check=False, timeout=SECONDS)


def tried(mutant: Mutant, tree: Path) -> Found:
    """Plants a bug in the tree, runs its tests, and takes it out again."""
    if complaint := apply(mutant.patch, tree):
        return Found(mutant, "", f"the patch does not apply: {complaint.splitlines()[0]}")
    begun = perf_counter()
    try:
        done = run_tests(tree, mutant.tests, "-x")
    except subprocess.TimeoutExpired:
        return Found(mutant, "", f"the tests did not end in {SECONDS} s")
    finally:
        apply(mutant.patch, tree, "--reverse")
    failed = _FAILED.search(done.stdout)
    if done.returncode == 1 and failed:
        return Found(mutant, failed[1], "", perf_counter() - begun)
    trouble = "it gets through" if done.returncode == 0 else f"pytest could not run: {done.stdout[-2000:]}"
    return Found(mutant, "", trouble, perf_counter() - begun)


def try_all(chosen: Sequence[Mutant], root: Path = ROOT, jobs: int = 1) -> Iterator[Found]:
    """What becomes of each, in order. Those whose test fails without the bug, too, come again at the end."""
    with ExitStack() as stack:
        trees: Queue[Path] = Queue()
        for _ in range(jobs):
            trees.put(copy_of(root, stack))

        def one(mutant: Mutant) -> Found:
            tree = trees.get()
            try:
                return tried(mutant, tree)
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


def write_table(found: Sequence[Found], page: Path = PAGE, folder: Path = PATCHES) -> None:
    """Puts the rows into the page; those of other patches stay, unless the patch is gone."""
    before, _, rest = page.read_text().partition(f"{BEGIN}\n")
    table, _, after = rest.partition(END)
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    rows |= {result.mutant.name: result.row for result in found}
    kept = [rows[mutant.name] for mutant in mutants(folder) if mutant.name in rows]
    page.write_text(before + f"{BEGIN}\n" + HEADER + "".join(f"{row}\n" for row in kept) + END + after)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names, such as 'ifca-*'")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time, each in a copy of its own")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in mutants() if any(fnmatch(mutant.name, pattern) for pattern in options.only)]
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
