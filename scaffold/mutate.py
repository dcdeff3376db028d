# ruff: noqa
"""mutate.py: random mutants of sources, one at a time, against tests.

    /work/scratch/warm /work/scratch/mutate.py --sources lit_cfl/algorithms lit_cfl/aggregation.py \
        --tests tests/algorithms tests/test_aggregation.py --number 60 --seed 74 --out /tmp/mutants.csv [--again A.csv]

Run it in the root of a worktree; it holds one slot of the warm server, and forks from it for each mutant. The tree is
copied once; in the copy, mutants of cosmic-ray's operators (without those inside annotations, imports and string
literals) are planted one at a time. First `number` places are drawn with random.Random(seed), from all of the sources;
then one mutation at each. The tests run with -x, with a limit of --seconds (default 300): first those named as the
mutated file (test_<stem>.py), then the others; of suites over all algorithms, only the rows of those that use the file.
With --map FILE, only test functions that execute the mutated line run;
FILE is written by a run of all tests under coverage if it does not exist (JSON: "file:line" -> test functions). For
lines that run at import, and other lines that no test function executes, all tests run unless --map is given with
--strict, in which case such a mutant gets through if it survives the tests named as its file.
Columns of the CSV: number, file, line, operator, killed (yes/no/time), by (the failing test), seconds, diff.
--again runs only the mutants of an earlier CSV that got through, on the present tests. --list only prints the draw.
A mutant that gets through is one of: equivalent, tolerance, message, hole; a person decides.
"""

import argparse
import ast
import csv
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import cosmic_ray.plugins as plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path.cwd()
SUITE = re.compile(r"test_(contract|algorithms_on_data|buffers|limits)\.py")
SKIP = re.compile(r"VariableReplacer|VariableInserter|ExceptionReplacer|no.?op", re.I)  # the third one fails in 8.7


def ignored(source, skip_classes=False):
    """Returns the (start, end) positions inside annotations, imports and strings; of classes, also those of the lines
    of decorators and fields.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if skip_classes and isinstance(node, ast.ClassDef):
            found += [((d.lineno, 0), (d.end_lineno, 999)) for d in node.decorator_list]
            found += [
                ((f.lineno, 0), (f.end_lineno, 999)) for f in node.body if isinstance(f, (ast.AnnAssign, ast.Assign))
            ]
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
            parts.append(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts.append(node)
        if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) and t.id[:1].isupper() for t in node.targets):
            if isinstance(node.value, (ast.Subscript, ast.BinOp)) and "|" in ast.unparse(node.value):
                parts.append(node.value)  # an alias of types
        found += [((p.lineno, p.col_offset), (p.end_lineno, p.end_col_offset)) for p in parts if p is not None]
    return found


def mutants_of(file, skip_classes=False):
    """Yields (line, column, operator, occurrence) of a file."""
    source = file.read_text()
    spans, tree = ignored(source, skip_classes), get_ast(source)
    nodes = list(ast_nodes(tree))
    for name in plugins.operator_names():
        if SKIP.search(name):
            continue
        operator, occurrence = plugins.get_operator(name)(), 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                if not any(a <= tuple(start) < b for a, b in spans):
                    yield (*start, name, occurrence)
                occurrence += 1


def draw(sources, number, seed, per_file=None):
    places = defaultdict(list)
    for root in sources:
        for file in sorted(Path(root).rglob("*.py")) if Path(root).is_dir() else [Path(root)]:
            for line, column, name, occurrence in mutants_of(file, bool(per_file)):
                places[str(file), line, column].append((name, occurrence))
    rng = random.Random(seed)
    if per_file:
        files = {file: [p for p in sorted(places) if p[0] == file] for file, _, _ in sorted(places)}
        chosen = [place for own in files.values() for place in rng.sample(own, min(per_file, len(own)))]
    else:
        chosen = rng.sample(sorted(places), min(number, len(places)))
    print(f"{len(places)} places, {sum(map(len, places.values()))} mutants", flush=True)
    return [(file, line, *rng.choice(sorted(places[file, line, column]))) for file, line, column in chosen]


def mutated(file, name, occurrence):
    return mutate_code(Path(file).read_text(), plugins.get_operator(name)(), occurrence)


def copy_tree():
    to = Path(tempfile.mkdtemp(prefix="mutants."))
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True).stdout
    libs = [str(p) for p in Path("lit_cfl/engines").glob("steps-*.lib")]
    for name in [*names.split("\n"), *libs]:
        if name and os.path.lexists(name):  # also links to folders; a deleted file may still be listed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, to / name, follow_symlinks=False)
    return to


def pytest_in_fork(tree, arguments, seconds, output):
    """Runs pytest in a fork, in this tree; returns its exit code, None after the time limit."""
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setsid()
            with open(output, "w") as out:
                os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", buffering=1, closefd=False), open(2, "w", buffering=1, closefd=False)
            sys.dont_write_bytecode = True
            os.chdir(tree)
            sys.path[:] = [str(tree), *(p for p in sys.path if p not in (os.environ.get("PWD"), "", str(ROOT)))]
            import pytest

            code = int(pytest.main(arguments))
        finally:
            os._exit(code)
    end = time.time() + seconds
    while time.time() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None


def map_tests(tree, sources, tests, path):
    """Runs all tests under coverage; writes which test functions execute each line."""
    child = os.fork()
    if not child:
        try:
            os.chdir(tree)
            sys.path[:] = [str(tree), *(p for p in sys.path if p not in ("", str(ROOT)))]
            with open(tree / "output.txt", "w") as out:
                os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
            import coverage
            import pytest

            files = [
                str(f.resolve()) for s in sources for f in (Path(s).rglob("*.py") if Path(s).is_dir() else [Path(s)])
            ]
            measure = coverage.Coverage(data_file=None, include=files, config_file=False)
            measure.set_option("run:dynamic_context", "test_function")
            measure.start()
            pytest.main(["-q", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore", *tests])
            measure.stop()
            found, data = {}, measure.get_data()
            for file in data.measured_files():
                for line, contexts in data.contexts_by_lineno(file).items():
                    found[f"{os.path.relpath(file, tree)}:{line}"] = sorted(filter(None, contexts))
            path.write_text(json.dumps(found))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_ids(tree, tests, contexts):
    """Converts contexts (module.function) to pytest's ids."""
    files = {
        f.stem: f.relative_to(tree)
        for t in tests
        for f in ([tree / t] if t.endswith(".py") else (tree / t).rglob("test_*.py"))
    }
    parts = [c.split(".") for c in contexts]
    known = [(files[p[-2]], p[-1]) for p in parts if len(p) >= 2 and p[-2] in files and p[-1].startswith("test_")]
    return [f"{f}::{name}" for f, name in known if f"def {name}(" in (tree / f).read_text()]


def classes_of(tree, file):
    """Names the public classes of lit_cfl/algorithms whose modules import this file, directly or not; [] = many."""
    folder, found = tree / "lit_cfl" / "algorithms", set()
    if (tree / file).parent != folder:
        return []
    imports = {
        f.stem: set(re.findall(r"from lit_cfl\.algorithms\.(\w+) import", f.read_text())) for f in folder.glob("*.py")
    }
    imports.pop("__init__")
    names, size = {Path(file).stem}, 0
    while len(names) > size:
        size = len(names)
        names |= {f for f, used in imports.items() if used & names}
    public = re.findall(r"from lit_cfl\.algorithms\.(\w+) import ([^\n]+)", (folder / "__init__.py").read_text())
    for module, listed in public:
        if module in names and module not in ("base", "server_optimizer", "personal_layers", "shared_layers"):
            found |= {name.strip() for name in listed.split(",")}
    return sorted(found) if len(found) <= 6 else []


def run(tree, file, tests, seconds, chosen=None):
    own = [str(t.relative_to(tree)) for root in tests for t in (tree / root).rglob(f"test_{Path(file).stem}.py")]
    begin, output = time.time(), str(tree / "output.txt")
    parts = [own, [*tests, *(f"--ignore={t}" for t in own)]]
    if chosen is not None:
        mine = own  # as a whole, since it may have tests that are newer than the map
        chosen = [t for t in chosen if t.partition("::")[0] not in own]
        suites = [t for t in chosen if SUITE.search(t)]
        names = classes_of(tree, file)
        slow = [t for t in suites if "_on_data" in t]
        few = ["-k", " or ".join(names)] if names else []
        parts = [mine, [t for t in chosen if t not in suites]]
        parts += [[*part, *few] for part in ([t for t in suites if t not in slow], slow) if part]
    for part in filter(None, parts):
        code = pytest_in_fork(tree, ["-q", "-x", "-p", "no:cacheprovider", "--tb=no", *part], seconds, output)
        if code is None:
            return "time", "", time.time() - begin
        if code not in (0, 5):  # 5: no test is selected
            text = Path(output).read_text()
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, flags=re.M)
            return "yes", failed.group(1) if failed else text.strip()[-150:], time.time() - begin
    return "no", "", time.time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", required=True)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=74)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--out", required=True)
    parser.add_argument("--again")
    parser.add_argument(
        "--per_file",
        type=int,
        help="draw this many places of each file, instead of --number of all; no decorators and fields of classes",
    )
    parser.add_argument("--map", type=Path)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    chosen = list(enumerate(draw(given.sources, given.number, given.seed, given.per_file)))
    if given.again:
        with open(given.again) as file:
            through = {int(row["number"]) for row in csv.DictReader(file) if row["killed"] == "no"}
        chosen = [one for one in chosen if one[0] in through]
    tree = copy_tree()
    if given.map and not given.map.exists() and not given.list:
        map_tests(tree, given.sources, given.tests, given.map.resolve())
    known = json.loads(given.map.read_text()) if given.map and given.map.exists() else {}
    with open(given.out, "w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["number", "file", "line", "operator", "killed", "by", "seconds", "diff"])
        for number, (file, line, name, occurrence) in chosen:
            before, after = Path(file).read_text(), mutated(file, name, occurrence)
            diff = list(difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0))
            text = "\n".join(d for d in diff if not d.startswith(("---", "+++", "@@")))
            killed = by = ""
            seconds = 0.0
            if not given.list:
                (tree / file).write_text(after)
                there = test_ids(tree, given.tests, known.get(f"{file}:{line}", []))
                if not there and given.strict:
                    there = [
                        str(t.relative_to(tree))
                        for r in given.tests
                        for t in (tree / r).rglob(f"test_{Path(file).stem}.py")
                    ]
                killed, by, seconds = run(
                    tree, file, given.tests, given.seconds, there if there or given.strict else None
                )
                (tree / file).write_text(before)
            table.writerow([number, file, line, name, killed, by, f"{seconds:.0f}", text])
            out.flush()
            print(number, file, line, name.split("/")[-1], killed, by[-90:], f"{seconds:.0f} s", flush=True)
            print(text, flush=True)
    shutil.rmtree(tree)


if __name__ == "__main__":
    main()
