"""Writes `<table>.csv`, with a row per cell, and `<table>.md`, a page with the same numbers, from recorded runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import floor, log10
from pathlib import Path

from experiments.cells import DEFAULT, PUBLISHED, Cell, PaperTable, Setting
from experiments.files import Row
from experiments.ledger import Ledger, is_stale
from experiments.markdown import markdown_table
from experiments.verdicts import POPULATIONS, Measured, Verdict, judge_cell, summarise_runs
from lit_cfl.storage import write_rows, write_text

COLUMNS = (
    "id",
    "paper",
    "table",
    "dataset",
    "model",
    "method",
    "metric",
    "paper_value",
    "paper_std",
    "ours_mean",
    "ours_std",
    "seeds",
    "rounds",
    "last_round_mean",
    "clusters",
    "ari",
    "option",
    "option_mean",
    "option_std",
    "option_seeds",
    "seconds",
    "device",
    "command",
    "verdict",
    "reason",
    "explanation",
)
NOT_YET = "not run yet"
_LISTED_PAIRS = 5  # maximum number of listed pairs; the table has the others
_PART_RUN = f"fewer than {POPULATIONS} populations have run"
Keys = Mapping[tuple[Setting, int], str]  # key of the run of each setting and seed


@dataclass(frozen=True)
class Judged:
    """A cell with our results and its verdict.

    Args:
        cell: The paper's cell.
        found: Result of the runs of each variant, by its name; variants without runs, and those equal to
            the default are left out.
        verdict: Verdict by the rules of `verdicts`.
        reason: Reason why it was not run; empty if it was.
        stale: True if one of its runs is stale.
    """

    cell: Cell
    found: Mapping[str, Measured]
    verdict: Verdict
    reason: str
    stale: bool

    def mean(self, variant: str = DEFAULT) -> float | None:
        """Returns the mean of a variant's runs, or None if it did not run."""
        return self.found[variant].mean if variant in self.found else None


def judge_cells(table: PaperTable, ledger: Ledger, keys: Keys) -> list[Judged]:
    """Judges every cell of a table by the ledger's runs."""
    return [_judge_cell(table, cell, ledger, keys) for cell in table.cells]


def _judge_cell(table: PaperTable, cell: Cell, ledger: Ledger, keys: Keys) -> Judged:
    found, stale = {}, False
    runs: dict[str, list[str]] = {}
    for setting in table.settings(cell):
        runs[setting.variant] = [keys[setting, seed] for seed in setting.seeds]
        if setting.variant not in (DEFAULT, PUBLISHED) and runs[setting.variant] == runs[DEFAULT]:
            continue  # the option has this value by default, so the run is the same
        rows = [ledger.rows[key] for key in runs[setting.variant] if key in ledger.rows]
        stale = stale or any(map(is_stale, rows))
        what = summarise_runs(table.metric(cell, setting.variant), rows)
        if what is not None:
            found[setting.variant] = what
    missing = table.not_run(cell)
    judgement = judge_cell(cell, missing, found.get(DEFAULT), found.get(PUBLISHED), table.redraws(cell))
    still_open = _PART_RUN if DEFAULT in found else explain_open(table, cell)
    why = missing or still_open if judgement == "not run" else ""
    return Judged(cell, found, judgement, why, stale)


def explain_open(table: PaperTable, cell: Cell) -> str:
    """Explains why a cell that can be run has not been run."""
    hours = table.core_hours(cell)
    return NOT_YET if hours is None else f"a run takes about {hours:g} core-hours without a GPU"


def write_pages(folder: Path, table: PaperTable, ledger: Ledger, keys: Keys) -> list[Judged]:
    """Writes a table's two files into a folder; returns the judged cells."""
    cells = judge_cells(table, ledger, keys)
    rows = [_row(table, judged, ledger, keys) for judged in cells]
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / f"{table.name}.csv", COLUMNS, rows, digits=4)
    extras = [_judge_cell(table, cell, ledger, keys) for cell in table.extras]
    write_text(folder / f"{table.name}.md", _page(table, cells, [judged for judged in extras if judged.found]))
    return cells


def _row(table: PaperTable, judged: Judged, ledger: Ledger, keys: Keys) -> Row:
    cell, settings = judged.cell, table.settings(judged.cell)
    head, _, shift = cell.experiment.partition(", ")
    dataset, _, model = head.rpartition(" ")
    ours, option = judged.found.get(DEFAULT), _choose_variant(judged)
    devices = {
        ledger.rows[keys[setting, seed]]["device"]
        for setting in settings
        for seed in setting.seeds
        if keys[setting, seed] in ledger.rows
    }
    row: Row = {
        "id": cell.id,
        "paper": table.paper,
        "table": table.number,
        "dataset": f"{dataset}, {shift}" if shift else dataset,
        "model": model,
        "method": cell.method,
        "metric": cell.metric,
        "paper_value": cell.value,
        "paper_std": cell.std,
        "device": ", ".join(sorted(devices)),
        "command": settings[0].command(settings[0].seeds[0]) if settings else "",
        "verdict": judged.verdict,
        "reason": "stale: results have changed since" if judged.stale else judged.reason,
        "explanation": _explanation(table, judged),
    }
    if ours is not None:
        row |= {"ours_mean": ours.mean, "ours_std": ours.std, "seeds": len(ours.values), "rounds": ours.rounds}
        row |= {"last_round_mean": sum(ours.last) / len(ours.last), "seconds": ours.seconds}
        row |= {"clusters": ours.clusters, "ari": ours.ari}
    if option is not None:
        found = judged.found[option]
        words = next(setting.words for setting in settings if setting.variant == option)
        row |= {"option": f"{option}: {' '.join(words)}", "option_mean": found.mean}
        row |= {"option_std": found.std, "option_seeds": len(found.values)}
    return row


def _choose_variant(judged: Judged) -> str | None:
    """Returns the variant to show next to the default: the published code's, else the one closest to the paper."""
    others = {name: found.mean for name, found in judged.found.items() if name != DEFAULT}
    if PUBLISHED in others or not others:
        return PUBLISHED if others else None
    paper = judged.cell.value or 0.0
    return min(others, key=lambda name: abs((others[name] or 0.0) - paper))


def _explanation(table: PaperTable, judged: Judged) -> str:
    """Formats the results of every variant but the default, each with mean and number of seeds."""
    listed = [
        f"{name}{f' ({table.why(judged.cell)})' if name == PUBLISHED else ''}: {_number(found.mean)} "
        f"({len(found.values)} seeds)"
        for name, found in judged.found.items()
        if name != DEFAULT
    ]
    return "; ".join(listed)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _page(table: PaperTable, cells: Sequence[Judged], extras: Sequence[Judged]) -> str:
    counts: dict[str, int] = {}
    for judged in cells:
        counts[judged.verdict] = counts.get(judged.verdict, 0) + 1
    found = ", ".join(f"{number} `{name}`" for name, number in sorted(counts.items()))
    lines = [
        f"# {table.paper}, Table {table.number}",
        "",
        f"This table has {len(cells)} cells: {found} ([how a cell is judged](README.md#how-a-cell-is-judged)). "
        f"`python -m experiments {table.name}` writes this page; [{table.name}.csv]({table.name}.csv) has "
        "all numbers.",
        "",
    ]
    for experiment in dict.fromkeys(judged.cell.experiment for judged in cells):
        lines += _section(table, experiment, [judged for judged in cells if judged.cell.experiment == experiment])
    lines += _under_every_option("Options tried", _TRIED, [judged for judged in cells if _has_options(judged)])
    lines += _under_every_option("Besides the table", _BESIDES, extras)
    return "\n".join(lines)


_TRIED = (
    "This table lists every option tried for cells that do not match, and for cells where we tried more than the "
    "published code's options ([what C1 to C40 mean](../../../docs/disputed_points.md))."
)
_BESIDES = (
    "These experiments are not cells of the paper's table. They were run for the papers' [figures](figures.md) and "
    "[claims](claims.md), and on further data."
)


def _has_options(judged: Judged) -> bool:
    """Returns whether the page lists a cell's results under other options."""
    if judged.verdict in ("explained", "not reproduced"):
        return len(judged.found) > 1
    return bool(judged.found.keys() - {DEFAULT, PUBLISHED})


def _under_every_option(title: str, about: str, cells: Sequence[Judged]) -> list[str]:
    """Makes a table of cells' results under every variant, next to the paper's values if there are any."""
    if not cells:
        return []
    with_paper = any(judged.cell.value is not None for judged in cells)
    with_clusters = any(found.ari is not None for judged in cells for found in judged.found.values())
    columns = ["experiment", "method", "metric", *(["paper"] if with_paper else []), "options", "ours"]
    columns += ["clusters", "ARI"] if with_clusters else []
    rows = []
    for judged in cells:
        cell = judged.cell
        paper = ["" if cell.value is None else _paper(cell)] if with_paper else []
        first = [cell.experiment, cell.method, cell.metric.replace("_", " "), *paper]
        for variant, found in judged.found.items():
            rows.append([*first, variant, _with_spread(found), *(_clusters(found) if with_clusters else [])])
    return [f"## {title}", "", about, "", *markdown_table(columns, rows)]


def _section(table: PaperTable, experiment: str, cells: Sequence[Judged]) -> list[str]:
    missing = table.experiments[experiment].get("not_run")
    if missing:
        return [f"## {experiment}", "", f"Not run: {missing}.", ""]
    note = table.experiments[experiment].get("note")
    columns = ["method", "metric", "paper", "ours", "published code's options", "verdict"]
    rows = [_table_row(table, judged) for judged in cells]
    if any(found.ari is not None for judged in cells for found in judged.found.values()):
        columns += ["clusters", "ARI"]
        rows = [row + _clusters(judged.found.get(DEFAULT)) for row, judged in zip(rows, cells, strict=True)]
    about = [f"{note}.", ""] if note else []
    return [f"## {experiment}", "", *about, *markdown_table(columns, rows), *_order(cells), *_not_run(cells)]


def _not_run(cells: Sequence[Judged]) -> list[str]:
    """Explains why cells have not been run, naming the methods if the reasons differ."""
    methods: dict[str, list[str]] = {}
    for judged in cells:
        if judged.reason not in ("", NOT_YET):
            methods.setdefault(judged.reason, []).append(judged.cell.method)
    if len(methods) < 2:
        listed = list(methods)
    else:
        listed = [f"{reason} ({', '.join(dict.fromkeys(names))})" for reason, names in methods.items()]
    return [f"Not run: {'; '.join(listed)}.", ""] if listed else []


def _table_row(table: PaperTable, judged: Judged) -> list[str]:
    """Formats a cell, our values and the verdict; names the published code's metric if it differs."""
    cell = judged.cell
    ours, code = (_with_spread(judged.found.get(variant)) for variant in (DEFAULT, PUBLISHED))
    if code and (other := table.metric(cell, PUBLISHED)) != cell.metric:
        code += f", {other.replace('_', ' ')}"
    words = f"{judged.verdict}, stale" if judged.stale else judged.verdict
    return [cell.method, cell.metric.replace("_", " "), _paper(cell), ours, code, words]


def _clusters(found: Measured | None) -> list[str]:
    """Formats the number of clusters after the last round, and the ARI."""
    if found is None:
        return ["", ""]
    return [f"{found.clusters:.4g}", "" if found.ari is None else f"{found.ari:z.2f}"]


def _paper(cell: Cell) -> str:
    """Formats the paper's value, with its standard deviation if given."""
    spread = "" if cell.std is None else f" ± {cell.std:g}"
    return f"{_number(cell.value)}{spread}".replace(" ", "\N{NO-BREAK SPACE}")


def _with_spread(found: Measured | None) -> str:
    """Formats mean, standard deviation (with two significant digits) and number of seeds."""
    if found is None:
        return ""
    words = _number(found.mean)
    if found.mean is not None and found.std:
        decimals = max(0, 1 - floor(log10(found.std)))
        words = f"{found.mean:.{decimals}f} ± {found.std:.{decimals}f}"
    elif found.std == 0:
        words += " ± 0"
    return f"{words} ({len(found.values)})".replace(" ", "\N{NO-BREAK SPACE}")


def _order(cells: Sequence[Judged]) -> list[str]:
    """Compares the ranking of methods with the paper's, under our defaults and under the published code's options."""
    lines = []
    for title, variant in (("our default options", DEFAULT), ("the published code's options", PUBLISHED)):
        known = [
            (judged.cell.method, judged.cell.value, judged.mean(variant if variant in judged.found else DEFAULT))
            for judged in cells
        ]
        pairs = [
            (one, other)
            for one, other in combinations([entry for entry in known if None not in entry], 2)
            if one[1] != other[1]
        ]
        if len({judged.cell.method for judged in cells}) < 2 or not pairs:
            continue
        if variant == PUBLISHED and not any(PUBLISHED in judged.found for judged in cells):
            continue
        turned = [
            f"`{one[0]}` and `{other[0]}`"
            for one, other in pairs
            if ((one[1] or 0) - (other[1] or 0)) * ((one[2] or 0) - (other[2] or 0)) < 0
        ]
        listed = f": {', '.join(turned)}" if 0 < len(turned) <= _LISTED_PAIRS else ""
        lines.append(
            f"* Under {title}, the order of the methods differs from the paper's in {len(turned) or 'none'} of "
            f"{len(pairs)} pairs{listed}."
        )
    return [*lines, ""] if lines else []
