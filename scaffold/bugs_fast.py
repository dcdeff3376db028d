# ruff: noqa
"""Run in a worktree's root: /work/scratch/warm scaffold/bugs_fast.py --files PATTERN... --out FILE.csv [--map MAP.json]
Plants each bug of scaffold/bugs.toml whose file matches a pattern (fnmatch), one at a time, in a copy of the tree; runs first the test that
caught it before (bugs.csv), then its listed tests (that still exist), then the test functions that execute its lines (--map, made by mutate.py)."""

import argparse, csv, json, os, re, subprocess, sys, time
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path.cwd() / "scaffold"))
import bugs as B, mutate as M

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
p = argparse.ArgumentParser()
p.add_argument("--files", nargs="+", default=["*"])
p.add_argument("--only", nargs="+", default=["*"])
p.add_argument("--out", required=True)
p.add_argument("--map", type=Path)
p.add_argument("--seconds", type=int, default=300)
p.add_argument("--skip", nargs="*", default=[], help="CSVs of earlier runs: caught ones are skipped")
g = p.parse_args()
done = set()
for s in g.skip:
    done |= {r["name"] for r in csv.DictReader(open(s)) if r["caught"]}
known = json.loads(g.map.read_text()) if g.map else {}
tree = M.copy_tree()
B.LIST = Path.cwd() / "scaffold/bugs.toml"
rec = B.read_results()
out = open(g.out, "w", newline="")
w = csv.writer(out)
w.writerow(["name", "file", "caught", "seconds", "trouble"])


def run(tests, lane=True):
    if not tests:
        return ""
    code = M.pytest_in_fork(
        tree,
        [
            "-x",
            "-q",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
            *(["-m", "not nightly"] if lane else ["-m", ""]),
            *tests,
        ],
        g.seconds,
        str(tree / "output.txt"),
    )
    if code is None:
        return "TIME"
    if code in (0, 5):
        return ""
    t = (tree / "output.txt").read_text()
    f = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", t, flags=re.M)
    if code == 4:
        return "" if "not found" in t or "no match" in t else "COLLECT " + t[-200:]
    return f.group(1) if f else "?" + t[-150:]


for bug in B.read_bugs(g.only):
    if bug.name in done or not any(fnmatch(bug.file, f) for f in g.files):
        continue
    begin = time.time()
    try:
        remove = B.planted(bug, tree)
    except (OSError, ValueError) as e:
        w.writerow([bug.name, bug.file, "", 0, str(e)])
        out.flush()
        print(bug.name, e, flush=True)
        continue
    try:
        row = rec.get(bug.name, {})
        first = row.get("table") or row.get("kept") or ""
        caught = ""
        if first and (tree / first.partition("::")[0]).exists():
            caught = run([first], False)
        listed = [t for t in bug.tests if (tree / t.partition("::")[0]).exists()]
        if not caught:
            caught = run([t for t in listed])
        if not caught and known:
            text = Path(bug.file).read_text()
            planted = bug.plant(text).split("\n")
            old = text.split("\n")
            a = next((i for i, (x, y) in enumerate(zip(old, planted)) if x != y), 0)
            n = len(bug.old.split("\n"))
            ctx = sorted({c for i in range(a, a + n + 1) for c in known.get(f"{bug.file}:{i + 1}", [])})
            caught = run(M.test_ids(tree, ["tests"], ctx)[:150])
        if not caught:
            caught = run(bug.tables)
        if not caught:
            caught = run(listed, False)
    finally:
        remove()
    w.writerow([bug.name, bug.file, caught, f"{time.time() - begin:.0f}", "" if caught else "through"])
    out.flush()
    print(bug.name, caught or "GETS THROUGH", f"{time.time() - begin:.0f} s", flush=True)
