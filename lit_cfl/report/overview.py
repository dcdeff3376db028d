"""The page's first section: one row per group, a summary, and the tables of comparisons."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from lit_cfl.metric_names import ARI_NOTE
from lit_cfl.pictures.figure import finite_number
from lit_cfl.pictures.run_files import RunFiles, attempt
from lit_cfl.progress.tables import significant_decimals
from lit_cfl.report.blocks import Section, Table
from lit_cfl.report.sources import Group
from lit_cfl.runs.shared_clients import describe_small_tests
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_table

_NAMED = 10  # maximum number of algorithms in the headline


def section(groups: Sequence[Group], score: Score, tables: Sequence[Table] = ()) -> Section:
    """Builds the section of the results: final values of each group, then further tables."""
    columns = _columns(score)
    over = all(group.status == "finished" for group in groups)
    rows = [
        [group.name, None if over else group.status, len(group.counted), *(read(group) for read in columns.values())]
        for group in groups
    ]
    head = ["algorithm", "state", "seeds", *columns]
    filled = [0, *(k for k in range(1, len(head)) if any(row[k] is not None for row in rows))]
    table = Table(
        "After the last round",
        [head[k] for k in filled],
        [[row[k] for k in filled] for row in rows],
        note=_note(groups, score, *(head.index(name) in filled for name in ("ARI", "at best"))),
    )
    return Section("Results", [table, *tables])


def _note(groups: Sequence[Group], score: Score, truth: bool, best: bool) -> str:
    """Explains the columns of the table, among them ARI if `truth`, and the best round if `best`."""
    several = any(len(group.runs) > 1 for group in groups)
    some = any(len(group.counted) < len(group.runs) for group in groups)
    spread = f" Mean ± standard deviation over the seeds{', of finished runs' if some else ''}." if several else ""
    lower = "" if score.higher_is_better else " Lower is better."
    ari = f" {ARI_NOTE}" if truth else ""
    at_best = f" At best: {score.title} of the best round." if best else ""
    small = _small_tests(groups)
    return (
        f"{score.heading}: on test data, weighted by examples; mean and worst tenth: over clients.{lower}"
        f"{small}{at_best}{ari}{spread}"
    )


def _small_tests(groups: Sequence[Group]) -> str:
    """Describes clients with few test examples, by the first run whose table of clients can be read."""
    for run in (run for group in groups for run in group.counted):
        rows = [row for row in run.table("clients") if not row.get("newcomer")]
        sizes = [int(size) for row in rows if (size := finite_number(row.get("n_test"))) is not None]
        if sizes:
            small = describe_small_tests(sizes)
            return f" {small}." if small else ""
    return ""


def _columns(score: Score) -> dict[str, Callable[[Group], str | None]]:
    name, title = score.name, score.title
    return {
        title: lambda group: _last(group, f"test/weighted_{name}", 3),
        "mean": lambda group: _last(group, f"test/mean_{name}", 3),
        "worst tenth": lambda group: _last(group, f"test/worst10_{name}", 3),
        f"validation {title}": lambda group: _last(group, f"val/weighted_{name}", 3),
        "at best": lambda group: _of_summary(group, score.best_column),
        "loss": lambda group: _last(group, "test/loss", 3),
        "newcomers": lambda group: _of_summary(group, f"test/newcomers_{name}"),
        "clusters": lambda group: _last(group, "clusters/count", 1, plain=True),
        "ARI": lambda group: _last(group, "clusters/ari", 2),
        "without a model": lambda group: _last(group, "clusters/unobserved", 1, plain=True, zero=False),
        "traffic, MiB": lambda group: _last(group, "traffic/mib", 1, fine=True),
        "local steps": lambda group: _last(group, "local/steps", 0, plain=True),
        "time, s": lambda group: _last(group, "time/elapsed_seconds", 1),
        "round": lambda group: _last(group, "round", 1, plain=True),
    }


def last_value(run: RunFiles, column: str) -> float | None:
    """Returns a metric of the last round; None if unknown."""
    return finite_number(run.rows[-1].get(column)) if run.rows else None


def _last(
    group: Group, column: str, digits: int, plain: bool = False, zero: bool = True, fine: bool = False
) -> str | None:
    values = [last_value(run, column) for run in group.counted if run.rows]
    if fine:  # small values get more decimals
        digits = max([digits, *(significant_decimals(value) for value in values if value)])
    return None if not zero and not any(values) else _spread(values, digits, plain)


def _of_summary(group: Group, entry: str) -> str | None:
    values = [finite_number((run.summary or {}).get(entry)) for run in group.counted if run.rows]
    return _spread(values, 3)


def _spread(values: Sequence[float | None], digits: int, plain: bool = False) -> str | None:
    found = [value for value in values if value is not None]
    if not found or len(found) < len(values):
        return None
    if plain and len(set(found)) == 1:
        return f"{found[0]:.{digits}f}".removesuffix(".0")
    return f"{fmean(found):.{digits}f}" + (f" ± {stdev(found):.{digits}f}" if len(found) > 1 else "")


def describe_uneven(groups: Sequence[Group]) -> str | None:
    """Explains that groups are scored on unequal numbers of clients in the last round; None if they are equal."""
    scored = {}
    for group in groups:
        numbers = [last_value(run, "clients/evaluated") for run in group.counted if run.rows]
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(numbers):
            scored[group.name] = fmean(known)
    if len(set(scored.values())) < 2:
        return None
    listed = ", ".join(f"{name} on {number:g}" for name, number in scored.items())
    return (
        f"over different numbers of clients ({listed}): a client without a model is not scored (evaluation.clients: "
        "all scores it, too)"
    )


def headline(groups: Sequence[Group], score: Score) -> list[str]:
    """Summarises the results in a few sentences; only the tests of a comparison say which are better or worse."""
    lines, column = [], f"test/weighted_{score.name}"
    values = {group.name: [last_value(run, column) for run in group.counted if run.rows] for group in groups}
    known = {name: [value for value in own if value is not None] for name, own in values.items()}
    means = {name: fmean(own) for name, own in known.items() if own and len(own) == len(values[name])}
    partly = [name for name, own in known.items() if own and name not in means]
    if means:
        over = all(run.over for group in groups for run in group.counted)
        listed = ", ".join(f"{name} {mean:.3f}" for name, mean in list(means.items())[:_NAMED])
        more = f" and {len(means) - _NAMED} more" if len(means) > _NAMED else ""
        lines.append(f"Test {score.title} {'after the last round' if over else 'so far'}: {listed}{more}.")
        uneven = describe_uneven([group for group in groups if group.name in means]) if over else None
        lines += [f"These are {uneven}."] if uneven else []
    if partly:
        lines.append(f"Test {score.title} is unknown under some seeds of {', '.join(partly)}.")
    return lines


def read_comparison(path: Path, score: Score) -> tuple[list[str], list[Table], list[str]]:
    """Reads `results.csv` and `runs.csv` of a comparison. Returns its verdict, its table, and its problems in words."""
    problems: list[str] = []
    file, runs = path / "results.csv", path / "runs.csv"
    said, tables = attempt(problems, file, lambda: _read_results(path, score)) or ([], [])
    rows = attempt(problems, runs, lambda: read_table(runs, text=("algorithm",))) or []
    failed = [row for row in rows if row.get("status") == "failed"]
    problems += [f"{row['algorithm']}, seed {row['seed']}, failed: {row.get('error')}." for row in failed]
    return said, tables, problems


def _read_results(path: Path, score: Score) -> tuple[list[str], list[Table]]:
    from lit_cfl.compare.results import Results, verdict  # imports Lightning
    from lit_cfl.compare.tables import cells, read_notes

    rows = read_table(path / "results.csv", text=("algorithm",))
    said = verdict(rows, score)
    head, *lines = cells(Results([], rows, [], {}, score))
    note = " ".join(note for note in read_notes(path) if note not in said)
    return said, [Table("Compared seed by seed", head, lines, note=note)]
