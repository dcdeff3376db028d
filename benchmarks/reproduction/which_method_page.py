"""Writes the answer of `which_method.py`: a page, a table for programs, and a picture, from recorded runs alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduction.files import Row, text, write_picture
from benchmarks.reproduction.heat_table import heat_table
from benchmarks.reproduction.ledger import Ledger
from benchmarks.reproduction.markdown import markdown_table
from benchmarks.reproduction.which_method import BEST, NEWCOMERS, RATE, Protocol, options_told
from benchmarks.reproduction.which_method_results import (
    SCORE,
    Entry,
    complete_data,
    entries,
    ranking,
)
from lit_cfl.statistics import Interval
from lit_cfl.storage import write_rows, write_text

_CONFIGS = Path(__file__).parents[2] / "configs"
BASELINE = "FedAvg"
COLUMNS = (
    "data",
    "system",
    "variant",
    "accuracy",
    "to_fedavg",
    "to_fedavg_margin",
    "to_best",
    "to_best_margin",
    "worst10",
    "ari",
    "models",
    "seconds",
    "newcomers",
    "seeds",
    "options",
)
_HEADS = ("system", "accuracy %", "to FedAvg", "to the best", "worst tenth", "ARI", "models sent", "seconds", "chosen")


def page_of(out: Path) -> Path:
    """Returns the path of the page, which is beside its folder."""
    return out.with_name(f"{out.name}.md")


def write_page(out: Path, protocol: Protocol, ledger: Ledger) -> str:
    """Writes `<out>.md`, and `results.csv` and the picture in `out`. Returns how much is done, in words."""
    found = entries(protocol, ledger)
    groups = complete_data(protocol, found)
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "results.csv", COLUMNS, _rows(found), digits=5)
    if groups:
        _draw(out, groups)
    write_text(page_of(out), "\n".join(_page(out, protocol, ledger, found, groups)))
    return f"{len(ledger.rows)} runs, {len(groups)} of {len(protocol.data)} data sets"


def _rows(found: Sequence[Entry]) -> Iterator[Row]:
    for entry in found:
        peers = [e for e in found if (e.data, e.variant) == (entry.data, entry.variant)]
        base = next((e for e in peers if e.system == BASELINE), None)
        best = max(peers, key=lambda e: e.accuracy)
        row: Row = {
            "data": entry.data,
            "system": entry.system,
            "variant": entry.variant,
            "accuracy": entry.mean(SCORE),
            "worst10": entry.mean("worst10_accuracy"),
            "ari": entry.mean("ari"),
            "models": entry.mean("traffic"),
            "seconds": entry.seconds,
            "newcomers": entry.mean("newcomers_accuracy"),
            "seeds": len(entry.rows),
            "options": options_told(entry.options),
        }
        for name, other in (("to_fedavg", base), ("to_best", best)):
            if other is not None and other is not entry:
                gap = entry.minus(other)
                row |= {name: gap.mean, f"{name}_margin": gap.margin}
        yield row


def _page(
    out: Path, protocol: Protocol, ledger: Ledger, found: Sequence[Entry], groups: Mapping[str, Sequence[Entry]]
) -> Iterator[str]:
    yield from ["# Which method when", ""]
    if not groups:
        yield from ["No data set is complete yet.", ""]
    else:
        yield from _answer(out, groups)
    yield from _protocol(out, protocol, ledger, groups)
    for data, group in groups.items():
        yield from _section(data, group)
    if len(groups) > 1:
        yield from _across(groups)
    yield from _held_out(found)
    yield from _other_clusters(protocol, found)


def _answer(out: Path, groups: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """Answers the reader: by hand, by the picture, by a line for each data set; sections by hand follow."""
    by_hand = out / "in_short.txt"
    written = by_hand.read_text("utf-8").strip() if by_hand.exists() else ""
    short, heading, more = written.partition("\n\n## ")
    yield from [short, ""] if short else []
    yield from [f"![Accuracy of every system on every data set]({out.name}/systems.png)", ""]
    yield "Mean over clients of the test accuracy in %. The colour is the difference to FedAvg, white if its 95 %"
    yield from ["interval contains 0. Systems are ordered by mean rank.", "", "## The best on each data set", ""]
    yield "A system is *not told apart* from the best if the 95 % interval of their difference, paired by seed,"
    yield from [
        "contains 0. The best is chosen by the same test data, which favours it, and the intervals are not corrected",
        f"for the {len(next(iter(groups.values()))) - 1} comparisons of a data set.",
        "",
    ]
    for data, group in groups.items():
        best, base = group[0], _base(group)
        equal = [entry.system for entry in group[1:] if not _apart(entry.minus(best))]
        told = f"{best.system} ({best.accuracy:.1f} %)"
        if equal:
            told += f", not told apart from {_listed(equal)}"
        if best is base:
            gain = "no system is above FedAvg"
        elif base.system in equal:
            gain = f"FedAvg is among them: {len(base.rows)} seeds show no gain"
        else:
            gain = f"FedAvg has {base.accuracy:.1f} %"
        yield f"* **{data}**: {told}; {gain}."
    yield from ["", f"{heading.strip()} {more}", ""] if more else [""]


def _protocol(out: Path, protocol: Protocol, ledger: Ledger, groups: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    yield from ["## Protocol", ""]
    yield "`python -m benchmarks.reproduction which-method` wrote this page. Every number is in"
    yield f"[results.csv]({out.name}/results.csv)."
    yield text("which_method").format(trials=protocol.trials, seeds=len(protocol.seeds))
    hours = sum(float(row["seconds"]) for row in ledger.rows.values()) / 3600
    yield f"The {len(ledger.rows):,} runs took {hours:.1f} core-hours."
    if slower := [data for data, group in groups.items() if any(entry.compiled for entry in group)]:
        yield f"Some runs on {_listed(slower)}"
        yield "trained in the compiled stacks of version 0.2. Their seconds are several times those of that version's"
        yield "other way, one C++ call for each client."
    if missing := [data for data in protocol.data if data not in groups]:
        yield from ["", f"Not complete yet: {_listed(missing)}."]
    yield from ["", "### Data", ""]
    yield from markdown_table(["data", "what it is", "configuration"], list(_data_sets(protocol)))
    yield from ["### Learning rates", ""]
    yield "Trials of each system with each rate, the same on all data sets. If the best system has a rate that another"
    yield from ["one never tried, the other may be behind for this reason alone.", ""]
    rates = sorted(protocol.common[RATE])
    tried = {
        system: [options[RATE] for options in protocol.drawn(system)]
        for system, what in protocol.systems.items()
        if "since" not in what
    }
    rows = [[system, *(str(found.count(rate)) for rate in rates)] for system, found in tried.items()]
    yield from markdown_table(["system", *map(str, rates)], rows)
    yield from ["### Options", "", "What else a trial may have; the first of each is the system's default.", ""]
    grids = {system: what["options"].items() for system, what in protocol.systems.items()}
    rows = [[system, "; ".join(map(_choice, grid))] for system, grid in grids.items()]
    yield from markdown_table(["system", "options"], rows)


def _data_sets(protocol: Protocol) -> Iterator[list[str]]:
    """Yields a row for each data set: its name, what the first comment of its configuration says, and a link."""
    for data, what in protocol.data.items():
        config = what["config"]
        first, _, _ = (_CONFIGS / f"{config}.yaml").read_text("utf-8").partition("\n")
        yield [data, first.removeprefix("# ").partition(" (expect")[0], f"[{config}](../configs/{config}.yaml)"]


def _choice(option: tuple[str, Sequence[Any]]) -> str:
    name, values = option
    return f"{name.rpartition('.')[2]}: {', '.join(map(str, values))}"


def _section(data: str, group: Sequence[Entry]) -> Iterator[str]:
    base = _base(group)
    yield from [f"## {data}", ""]
    yield from markdown_table(_HEADS, [_cells(entry, base, group[0]) for entry in group])


def _cells(entry: Entry, base: Entry, best: Entry) -> list[str]:
    gaps = ["" if entry is other else _interval(entry.minus(other)) for other in (base, best)]
    ari = entry.mean("ari")
    agreement = "" if ari is None else f"{ari:.2f}"
    cells = [entry.system, f"{entry.accuracy:.1f}", *gaps, f"{entry.mean('worst10_accuracy'):.1f}", agreement]
    return [*cells, f"{entry.mean('traffic'):,.0f}", f"{entry.seconds:.0f}", options_told(entry.options)]


def _across(groups: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    found = ranking(groups)
    ranks, least = found.mean_ranks, found.critical_difference
    pairs = list(combinations(ranks, 2))
    apart = [f"{one} and {other}" for one, other in pairs if found.told_apart(one, other)]
    yield from ["## Across the data sets", ""]
    yield (
        f"Friedman's test that all systems are alike gives p = {found.p_value:.2g} over {len(groups)} data sets. By "
        f"Nemenyi's test two systems differ if their mean ranks differ by more than {least:.2f} of {len(ranks)}: "
        f"{len(pairs) - len(apart)} of {len(pairs)} pairs of systems cannot be told apart."
        + (f" The others are {', '.join(apart)}." if apart else "")
    )
    yield ""
    yield from markdown_table(["system", "mean rank"], [[name, f"{rank:.2f}"] for name, rank in ranks.items()])


def _held_out(found: Sequence[Entry]) -> Iterator[str]:
    """Accuracies of newcomers next to those of the clients in training."""
    data_sets = list(dict.fromkeys(entry.data for entry in found if entry.variant == NEWCOMERS))
    if not data_sets:
        return
    yield from ["## Newcomers", ""]
    yield "30 % of the clients join after the last round. The table has their accuracy in %, in brackets that of the"
    yield "other clients."
    yield ""
    known = {(entry.data, entry.system): entry for entry in found if entry.variant == NEWCOMERS}

    def cell(entry: Entry) -> str:
        newcomers = entry.mean("newcomers_accuracy")
        return f"{'-' if newcomers is None else f'{newcomers:.1f}'} ({entry.accuracy:.1f})"

    yield from _matrix(data_sets, known, cell)


def _other_clusters(protocol: Protocol, found: Sequence[Entry]) -> Iterator[str]:
    """Accuracies with half and twice the number of clusters."""
    others = [entry for entry in found if entry.variant.startswith("clusters ")]
    if not others:
        return
    yield from ["## Another number of clusters", ""]
    yield from ["Accuracy in %, options otherwise as chosen with the true number.", ""]
    known = {(f"{entry.data}, {entry.variant.removeprefix('clusters ')}", entry.system): entry for entry in others}
    for entry in found:
        if entry.variant == BEST and any((entry.data, entry.system) == (e.data, e.system) for e in others):
            known[f"{entry.data}, {protocol.data[entry.data]['clusters']} (true)", entry.system] = entry
    yield from _matrix(sorted({column for column, _ in known}), known, lambda entry: f"{entry.accuracy:.1f}")


def _matrix(
    columns: Sequence[str], known: Mapping[tuple[str, str], Entry], cell: Callable[[Entry], str]
) -> Iterator[str]:
    systems = dict.fromkeys(system for _, system in known)
    rows = [[s, *(cell(known[c, s]) if (c, s) in known else "" for c in columns)] for s in systems]
    yield from markdown_table(["system", *columns], rows)


def _draw(out: Path, groups: Mapping[str, Sequence[Entry]]) -> None:
    """Draws `systems.png`: accuracies on the colour of their difference to FedAvg."""
    systems, data_sets = list(ranking(groups).mean_ranks), list(groups)
    means = {(data, entry.system): entry.accuracy for data, group in groups.items() for entry in group}
    accuracy = np.array([[means[data, system] for data in data_sets] for system in systems])
    gain = accuracy - accuracy[systems.index(BASELINE)]
    like = [_like_baseline(group) for group in groups.values()]
    alike = np.array([[system in names for names in like] for system in systems])
    figure = heat_table(accuracy, np.where(alike, 0, gain), systems, data_sets, "points above FedAvg", linear=5.0)
    write_picture(figure, out / "systems", dpi=120)


def _base(group: Sequence[Entry]) -> Entry:
    return next(entry for entry in group if entry.system == BASELINE)


def _like_baseline(group: Sequence[Entry]) -> set[str]:
    """Returns the systems that are not told apart from the baseline, itself among them."""
    base = _base(group)
    return {entry.system for entry in group if entry is base or not _apart(entry.minus(base))}


def _apart(gap: Interval) -> bool:
    low, high = gap.low, gap.high
    return low is not None and high is not None and not low <= 0 <= high


def _interval(gap: Interval) -> str:
    return "-" if gap.mean is None else f"{gap.mean:+.2f} ± {gap.margin or 0.0:.2f}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
