"""Records what the package computes, and compares it with what it computes after a change.

    python scaffold/check.py                 compares all runs with the records; ends with 1 if something differs
    python scaffold/check.py --only PATTERN  the same for the runs whose name contains PATTERN (`*` = anything), or for
                                             the group of this name
    python scaffold/check.py record          writes the records; with --only, replaces those of some runs
    python scaffold/check.py drop            removes the records of runs that `runs.py` no longer lists
    python scaffold/check.py --list          lists the runs, with the rule by which each is compared

`runs.py` lists the runs: packaged configurations, algorithms with their variants, tasks, kinds of data, partitions,
skews, shifts, nets, and options. `inside.py` holds all that needs the inside of the package. Two worker processes, each
with one thread, are forked after all imports. Real data are found through LITCFL_DATA, else in a folder `shared/data`
of this folder or of one above it; configurations whose data are missing are named and not compared.

What a run is compared by:

* exact rule, for runs that the compiled steps trained alone and whose algorithm asked for no losses: models, clusters
  and traffic to the bit, scores within 1e-9 (1e-5 if the algorithm asked for gradients). On a processor of another
  kind, the rule of tolerances holds instead.
* rule of tolerances, for all others: clusters equal as partitions; models within 1e-5 (float32) or 1e-9 (float64) of
  their norm; traffic and counts equal. A score that counts examples may differ by less than 0.02, since an example at
  the border may change sides: this is a note, not a difference.
* both: losses within 1e-6. In runs of more than `SHORT` rounds the tolerances of models and losses are a hundred
  times as wide: each has a second, short run.

Models are compared by their digests, and by their products with 16 random rows of signs, from which the distance of two
models is known to about a fifth.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records"
sys.path[:0] = [str(HERE), str(HERE.parent)]  # this checkout, whatever is installed
for _name, _value in {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}.items():
    os.environ[_name] = _value
if "LITCFL_DATA" not in os.environ:
    _found = [place / "shared" / "data" for place in HERE.parents if (place / "shared" / "data").is_dir()]
    os.environ.update({"LITCFL_DATA": str(_found[0])} if _found else {})

import numpy as np  # noqa: E402  # after the settings above
import torch  # noqa: E402  # the same

SHORT = 5  # number of rounds up to which the narrow tolerances hold
LONGER = 100  # factor of the tolerances of losses and models after that
ROUGH = 1_000  # the same in bfloat16, which rounds at 2e-3: `loop` trains what a chain in PyTorch trained before
MODELS = {"float32": 1e-5, "float64": 1e-9}
LOSSES, SCORES, BORDER = 1e-6, 1e-9, 0.02
COUNTS = re.compile(
    r"traffic/|local/|clients/|shift/|round$|clusters/(count|assigned|unobserved|chosen)|newcomer|cluster$|_examples"
)
LOSS = re.compile(r"loss|train/|perplexity")
COUNTED = re.compile(r"accuracy|match|f1|auroc|correct|predicted")  # scores that count examples, so that they jump
LINES = 6  # largest number of lines about a run, if there are several
ROWS, SIGNS = 48, 16  # largest number of models whose values are recorded; number of products per model
Record = dict[str, Any]


# --- running ---------------------------------------------------------------------------------------------------------


def run_case(name: str) -> Record:
    """Runs a case in the current folder; returns its record, or the reason why it has none."""
    import warnings

    from runs import all_cases

    case = next(case for case in all_cases() if case.name == name)
    before = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _run(case)
    except Exception as error:  # whatever a run raises is its outcome, and the other runs follow
        if "LITCFL_DATA" in str(error):
            return {"missing": str(error).splitlines()[0][:200]}
        return {"failed": "".join(traceback.format_exception(error)[-3:]).strip()[-1500:]}
    return found | {"seconds": round(time.process_time() - before, 2)}


def _run(case: Any) -> Record:
    from inside import served_models, watched_training

    import lit_cfl

    experiment = case.make()
    with TemporaryDirectory(prefix="run-", dir=".") as folder:
        path = Path(folder).resolve() / "run"
        with watched_training() as asked:
            lit_cfl.run(experiment, path)
        opened = lit_cfl.load_run(path, experiment)
        models = served_models(opened)
        plan = opened.config["plan"]
        return {
            "trained": {"by": plan["engine"], "precision": plan["precision"], **dict(sorted(asked.items()))},
            "metrics": _columns(opened.metrics),
            "tables": {
                file.name: _columns(_read(file)) for file in sorted(path.glob("*.csv")) if file.name != "metrics.csv"
            }
            | ({"client_rounds": _columns(opened.client_rounds)} if (path / "client_rounds.parquet").exists() else {}),
            "clusters": _periodic(opened.memberships, experiment.tracking.snapshots_every),
            "models": {part: describe(rows) for part, rows in models.items()},
        }


def _periodic(memberships: Any, every: int) -> list[list[int]]:
    """Returns the clusters in the first evaluated round of each period, and in the last one, which the records have.

    Files also have the rounds between them in which a client's cluster changed.
    """
    starts = np.flatnonzero(np.diff((memberships["rounds"] - 1) // every, prepend=-1)).tolist()
    kept = sorted({*starts, len(memberships["rounds"]) - 1})
    return memberships["cluster"][kept].tolist()


def _read(file: Path) -> Any:
    import pandas as pd

    return pd.read_csv(file)


def _columns(table: Any) -> dict[str, list[Any]]:
    """Returns a table's columns without times, as plain values; nan becomes None, and empty columns are left out."""
    kept = {}
    for column in table.columns:
        values = [None if value != value else value for value in table[column].tolist()]  # nan differs from itself
        if not column.startswith("time/") and "seconds" not in column and any(value is not None for value in values):
            kept[column] = [float(f"{value:.10g}") if isinstance(value, float) else value for value in values]
    return kept


def describe(rows: torch.Tensor) -> Record:
    """Describes models `[K, d]`: digest of all bits, and norm and products with rows of signs of up to 48 models."""
    digest = sha256(rows.contiguous().numpy().tobytes()).hexdigest()[:16]
    each = [sha256(row.contiguous().numpy().tobytes()).hexdigest()[:8] for row in rows]
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).round().astype(int)) if len(rows) else []
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (SIGNS, rows.shape[1]))
    values = [rows[int(k)].double().numpy() for k in chosen]
    products = [[_rounded(np.dot(line, value), rows.dtype) for line in signs] for value in values]
    norms = [_rounded(np.linalg.norm(value), rows.dtype) for value in values]
    kind = str(rows.dtype).removeprefix("torch.")
    return {
        "shape": list(rows.shape),
        "dtype": kind,
        "digest": digest,
        "each": each,
        "norms": norms,
        "products": products,
    }


def _rounded(value: Any, dtype: torch.dtype) -> float:
    """Rounds to two digits beyond the tolerance of models of this kind."""
    return float(f"{value:.13g}" if dtype == torch.float64 else f"{value:.9g}")


def run_all(names: Sequence[str], seconds: Mapping[str, float], workers: int = 2) -> dict[str, Record]:
    """Runs the cases in two processes, those that take longest first; returns their records by name."""
    order = sorted(names, key=lambda name: -seconds.get(name, 1.0))
    found: dict[str, Record] = {}
    with TemporaryDirectory(prefix="scaffold-") as folder, chdir(folder):
        os.environ["LITCFL_CACHE"] = str(Path(folder, "cache"))  # empty, so that the loading of data is checked, too
        _write_substitutes(Path(folder))
        import_everything()
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, get_context("fork")) as pool:
            waiting = {pool.submit(run_case, name): name for name in order}
            for number, future in enumerate(as_completed(waiting), 1):
                try:
                    found[waiting[future]] = future.result()
                except BrokenProcessPool:
                    found[waiting[future]] = {"failed": "a worker process died, in this run or in one beside it"}
                if number % 20 == 0 or number == len(order):
                    print(f"{number} of {len(order)} runs", file=sys.stderr, flush=True)
    return {name: found[name] for name in names}


def import_everything() -> None:
    """Imports what runs need, so that each forked worker has it."""
    import lightning  # noqa: F401
    import pandas  # noqa: F401
    import runs
    import sklearn.datasets  # noqa: F401

    import lit_cfl  # noqa: F401

    torch.set_num_threads(1)
    runs.all_cases()


def _write_substitutes(folder: Path) -> None:
    """Writes random images of 24 writers in place of MNIST by writer, whose owners are in no public copy."""
    owners = np.repeat(np.arange(24), 120)
    images = np.random.default_rng(0).integers(0, 256, (len(owners), 28, 28), dtype=np.uint8)
    np.savez(folder / "mnist_by_writer.npz", x=images, y=np.arange(len(owners)) % 10, client=owners)


# --- comparing -------------------------------------------------------------------------------------------------------


class Findings:
    """What differs in a run (`differences`), and what differs within its rule (`notes`)."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.notes: list[str] = []


def is_exact(record: Record) -> bool:
    """Returns whether the compiled steps did all training of a run, and its algorithm asked for no losses."""
    counts = record["trained"]
    return 0 < counts.get("fits", 0) == counts.get("compiled", 0) and not counts.get("losses", 0)


def compare(then: Record, now: Record, same_processor: bool) -> Findings:
    """Compares a run with its record."""
    found = Findings()
    for key in ("failed", "missing"):
        if key in then or key in now:
            if then.get(key) != now.get(key):
                found.differences.append(f"{key}: then {then.get(key, 'no')}, now {now.get(key, 'no')}")
            return found
    exact = is_exact(then) and same_processor
    wide = LONGER if len(then["clusters"]) and max(then["metrics"]["round"]) > SHORT else 1
    wide = max(wide, ROUGH) if then["trained"]["precision"] == "bf16-mixed" else wide
    order = _compare_clusters(then["clusters"], now["clusters"], exact, found)
    _compare_models(then["models"], now["models"], exact, wide, order, found)
    tables = {"metrics.csv": "metrics"}
    close = exact and not then["trained"].get("gradients", 0)  # by autograd now, whose float32 sums round otherwise
    _compare_tables(tables, then, now, close, wide, found)
    for table in sorted({*then["tables"], *now["tables"]}):
        if table != "clients.csv" and any(k != v for k, v in order.items()):
            found.notes.append(f"{table}: not compared, since clusters have other numbers")
            continue
        pair = ({table: one["tables"].get(table, {})} for one in (then, now))
        _compare_tables({table: table}, *pair, close, wide, found, order=order)
    if then["trained"] != now["trained"]:
        found.notes.append(f"trained: then {_words(then['trained'])}; now {_words(now['trained'])}")
    return found


def _words(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counts.items())


def _compare_clusters(then: list[list[int]], now: list[list[int]], exact: bool, found: Findings) -> dict[int, int]:
    """Compares the clusters of all evaluated rounds; returns today's number of each recorded one in the last round."""
    if [len(row) for row in then] != [len(row) for row in now]:
        shapes = [f"{len(each)} rounds of {len(each[0]) if each else 0} clients" for each in (then, now)]
        found.differences.append(f"clusters: then {shapes[0]}, now {shapes[1]}")
        return {}
    renamed: list[int] = []
    for number, (old, new) in enumerate(zip(then, now, strict=True), 1):
        if old == new:
            continue
        if _partition(old) == _partition(new):
            renamed.append(number)
            continue
        first, second = _partition(old), _partition(new)
        moved = [client for client, cluster in enumerate(first) if cluster != second[client]]
        found.differences.append(
            f"clusters: another partition in evaluation {number}, first at client {moved[0]} "
            f"(then {old[moved[0]]}, now {new[moved[0]]}); look at this run by hand"
        )
        return {}
    if renamed:
        kind = found.differences if exact else found.notes
        kind.append(f"clusters: the same partitions, only the numbering differs, in {len(renamed)} evaluations")
    return dict(zip(then[-1], now[-1], strict=True)) if then else {}


def _partition(clusters: Sequence[int]) -> list[int]:
    """Numbers clusters by their first client; -1 (no cluster) stays."""
    numbers: dict[int, int] = {-1: -1}
    return [numbers.setdefault(cluster, len(numbers) - 1) for cluster in clusters]


def _compare_models(
    then: Record, now: Record, exact: bool, wide: int, order: Mapping[int, int], found: Findings
) -> None:
    if [*then] != [*now]:
        found.differences.append(f"models: then {', '.join(then)}; now {', '.join(now)}")
        return
    for name, old in then.items():
        new = now[name]
        if old["digest"] == new["digest"] and old["dtype"] == new["dtype"]:
            continue
        if old["shape"] != new["shape"] or old["dtype"] != new["dtype"]:
            shown = [f"{each['dtype']} {each['shape']}" for each in (old, new)]
            found.differences.append(f"{name}: then {shown[0]}, now {shown[1]}")
            continue
        renumbered = name == "models" and any(k != v for k, v in order.items() if k >= 0)
        apart = _distances(old, new, order if renumbered else {})
        limit = MODELS[then["models"]["dtype"]] * wide  # weights of mixtures are float64, but follow from the models
        other = sum(a != b for a, b in zip(old["each"], new["each"], strict=True))
        text = (
            f"{name}: {other} of {len(old['each'])} have other bits, apart by {max(apart, default=0):.1e} of their norm"
        )
        if exact or not max(apart, default=0.0) <= limit:
            found.differences.append(f"{text}; allowed: {'no other bit' if exact else f'{limit:.0e}'}")
        else:
            found.notes.append(f"{text} (allowed {limit:.0e})")


def _distances(then: Record, now: Record, order: Mapping[int, int]) -> list[float]:
    """Estimates the distance of each pair of models, as a share of the first one's norm."""
    number = len(then["norms"])
    places = [order.get(k, k) for k in range(number)]
    if any(place >= number for place in places):
        places = list(range(number))
    apart = []
    for k, place in enumerate(places):
        difference = np.subtract(then["products"][k], now["products"][place])
        norm = max(then["norms"][k], 1e-30)
        length = float(np.sqrt(np.square(difference).mean()))
        apart.append(max(length, abs(then["norms"][k] - now["norms"][place])) / norm)
    return apart


def _compare_tables(
    names: Mapping[str, str],
    then: Record,
    now: Record,
    exact: bool,
    wide: int,
    found: Findings,
    order: Mapping[int, int] | None = None,
) -> None:
    for shown, key in names.items():
        old, new = then[key], now[key]
        for column in sorted({*old, *new}):
            if column not in old or column not in new:
                found.differences.append(f"{shown}: column {column} only {'then' if column in old else 'now'}")
                continue
            if old[column] == new[column]:
                continue
            if column == "cluster" and order and [order.get(one, one) for one in old[column]] == new[column]:
                continue  # renumbered, which the clusters have said already
            _compare_column(f"{shown} {column}", column, old[column], new[column], exact, wide, found)


def _compare_column(
    shown: str, column: str, then: list[Any], now: list[Any], exact: bool, wide: int, found: Findings
) -> None:
    if len(then) != len(now):
        found.differences.append(f"{shown}: then {len(then)} rows, now {len(now)}")
        return
    worst, at = _largest_difference(then, now)
    text = f"{shown}: {worst:.1e} apart in row {at + 1} (then {then[at]}, now {now[at]})"
    if COUNTS.search(column) or isinstance(then[at], str):
        limit = 0.0
    elif LOSS.search(column):
        limit = LOSSES * wide
    elif exact:
        limit = SCORES
    elif COUNTED.search(column):
        limit = BORDER * (2 if wide == ROUGH else 1)
        if SCORES < worst < limit:
            found.notes.append(f"{text}: one example at the border may do this")
            return
    else:
        limit = MODELS["float32"] * wide
    if not worst <= limit:
        found.differences.append(f"{text}; allowed {limit:.0e}")


def _largest_difference(then: list[Any], now: list[Any]) -> tuple[float, int]:
    """Finds the row that differs most: relative to values above 1, else absolute; inf for other kinds of values."""
    worst, at = 0.0, 0
    for row, (old, new) in enumerate(zip(then, now, strict=True)):
        if old == new:
            continue
        numbers = isinstance(old, int | float) and isinstance(new, int | float)
        apart = abs(old - new) / max(1.0, abs(old)) if numbers else float("inf")
        if not apart <= worst:
            worst, at = apart, row
    return worst, at


# --- speed -----------------------------------------------------------------------------------------------------------


def measure_speed(repetitions: int) -> Record:
    """Measures CPU seconds of the whole quickstart and of `import lightning`, in turns; returns medians."""
    seconds: dict[str, list[float]] = {"quickstart": [], "import lightning": []}
    with TemporaryDirectory(prefix="speed-") as folder:
        for number in range(repetitions):
            run = ["-m", "lit_cfl", "run", "--config", "quickstart", "--run_dir", str(Path(folder, f"run{number}"))]
            for name, words in {"quickstart": run, "import lightning": ["-c", "import lightning"]}.items():
                seconds[name].append(_cpu_seconds([sys.executable, *words], folder))
    medians = {name: round(median(values), 2) for name, values in seconds.items()}
    ratios = [run / of_import for run, of_import in zip(*seconds.values(), strict=True)]
    return {"cpu seconds": medians, "ratio": round(median(ratios), 3), "repetitions": repetitions}


def _cpu_seconds(words: Sequence[str], folder: str) -> float:
    """Runs a process in a folder; returns its CPU seconds, with those of its children."""
    cache = str(Path(folder, "cache"))
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "WANDB_MODE": "offline", "LITCFL_CACHE": cache}
    environment.pop("OMP_NUM_THREADS")
    before = os.times()
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)  # our own words
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def describe_processor() -> Record:
    """Describes what bits depend on: the vector instructions that PyTorch and the compiled steps use."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {"capability": torch.backends.cpu.get_cpu_capability(), "model": model, "torch": torch.__version__}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


# --- commands --------------------------------------------------------------------------------------------------------


def read_records() -> dict[str, Record]:
    """Reads the records of all groups, by the names of the runs."""
    files = [file for file in sorted(RECORDS.glob("*.json")) if file.name != "machine.json"]
    return {name: record for file in files for name, record in json.loads(file.read_text()).items()}


def write_records(records: Mapping[str, Record], groups: Mapping[str, str]) -> None:
    """Writes one file per group, with one line per run."""
    RECORDS.mkdir(exist_ok=True)
    for group in dict.fromkeys(groups.values()):
        own = {name: records[name] for name, its in groups.items() if its == group and name in records}
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(own[name], separators=(',', ':'))}" for name in own)
        (RECORDS / f"{group}.json").write_text(f"{{\n{rows}\n}}\n")


def selected(groups: Mapping[str, str], pattern: str | None) -> list[str]:
    """Lists the runs of this group, and those whose name contains or matches the pattern; all without a pattern."""
    if pattern in groups.values():
        return [name for name, group in groups.items() if group == pattern]
    if pattern in groups:
        return [pattern]
    return [name for name in groups if pattern is None or pattern in name or fnmatch(name, pattern)]


def record(names: Sequence[str], groups: Mapping[str, str], speed: bool) -> int:
    """Records these runs and keeps the records of others; returns 1 if a run failed."""
    new = run_all(names, {name: one.get("seconds", 1) for name, one in read_records().items()})
    changed = {groups[name] for name in names}
    write_records(read_records() | new, {name: group for name, group in groups.items() if group in changed})
    if speed:
        (RECORDS / "machine.json").write_text(
            json.dumps(describe_processor() | {"speed": measure_speed(5)}, indent=1) + "\n"
        )
    for name, one in new.items():
        for key in ("failed", "missing"):
            if key in one:
                print(f"{name}: {key}: {one[key]}")
    print(
        f"recorded {len(new)} runs, {sum(is_exact(one) for one in new.values() if 'trained' in one)} by the exact rule"
    )
    return int(any("failed" in one for one in new.values()))


def drop(groups: Mapping[str, str]) -> int:
    """Removes the records of runs that are no longer listed, and names them."""
    records = read_records()
    print(*(f"dropped {name}" for name in records if name not in groups), sep="\n")
    write_records(records, groups)
    return 0


def check(names: Sequence[str], groups: Mapping[str, str], speed: bool) -> int:
    """Compares these runs with their records; prints what differs, and returns 1 if something does."""
    began = time.monotonic()
    then, machine = read_records(), json.loads((RECORDS / "machine.json").read_text())
    here = describe_processor()
    same = all(machine[key] == here[key] for key in ("capability", "torch"))
    if not same:
        recorded_on = _words({key: machine[key] for key in here})
        print(f"recorded on {recorded_on}; here {_words(here)}: no run is compared to the bit")
    now = run_all(names, {name: one.get("seconds", 1) for name, one in then.items()})
    differing, noted, uncompared = 0, 0, 0
    for name in names:
        if name not in then:
            print(f"NEW      {name}: has no record")
            differing += 1
            continue
        if "missing" in now[name] and "missing" not in then[name]:
            print(f"NO DATA  {name}: {now[name]['missing']}")
            uncompared += 1
            continue
        found = compare(then[name], now[name], same)
        rule = "exact rule" if "trained" in then[name] and is_exact(then[name]) and same else "rule of tolerances"
        shown = [*found.differences, *(f"note: {note}" for note in found.notes)]
        if len(shown) > LINES and len(names) > 1:
            shown[LINES:] = [f"and {len(shown) - LINES} more; --only {name!r} shows all"]
        if shown:
            print(f"{'DIFFERS ' if found.differences else 'within  '} {name} ({rule})", *shown, sep="\n           ")
        differing, noted = differing + bool(found.differences), noted + bool(found.notes and not found.differences)
    gone = [name for name in then if name not in groups]
    for name in gone:
        print(f"GONE     {name}: recorded, but runs.py no longer lists it; if it should go, `drop` removes its record")
    if speed:
        _print_speed("then", machine["speed"], machine["model"])
        _print_speed("now", measure_speed(3), here["model"])
    print(
        f"{len(names)} runs in {time.monotonic() - began:.0f} s: {differing + len(gone)} differ, {noted} differ within "
        f"their rule, {uncompared} lack their data"
    )
    return int(differing + len(gone) > 0)


def _print_speed(label: str, speed: Record, model: str) -> None:
    seconds = _words(speed["cpu seconds"])
    print(f"quickstart / import lightning, CPU seconds: {label} {speed['ratio']} ({seconds}; {model})")


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["check", "record", "drop"], default="check")
    parser.add_argument("--only", metavar="PATTERN", help="a group, or part of the name of runs (* = anything)")
    parser.add_argument("--list", action="store_true", help="list the runs")
    parser.add_argument("--no-speed", action="store_true", help="leave out the speed of the quickstart")
    asked = parser.parse_args()
    from runs import all_cases

    groups = {case.name: case.group for case in all_cases()}
    names = selected(groups, asked.only)
    if not names:
        parser.error(f"no run has a name like {asked.only}")
    speed = asked.only is None and not asked.no_speed
    if asked.list:
        records = read_records()
        for name in names:
            kept = records.get(name, {})
            rule = "no record" if not kept else next((k for k in ("failed", "missing") if k in kept), "")
            print(f"{groups[name]:<11} {name}: {rule or ('exact' if is_exact(kept) else 'tolerances')}")
        return 0
    if asked.command == "drop":
        return drop(groups)
    return (record if asked.command == "record" else check)(names, groups, speed)


if __name__ == "__main__":
    sys.exit(main())
