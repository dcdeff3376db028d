"""Writes the results of `which_method.py` from recorded runs: a page, a CSV table and pictures."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import locate_config
from experiments.files import Row, read_page_text, write_picture
from experiments.heat_table import heat_table
from experiments.ledger import Ledger
from experiments.markdown import markdown_table
from experiments.which_method import BEST, FIRST, NEWCOMERS, RATE, Protocol, format_options
from experiments.which_method_results import (
    BASELINE,
    BOUND,
    SCORE,
    Entry,
    best_of_data,
    collect_entries,
    rank_systems,
    select_ranked_data,
)
from lit_cfl.pictures.ranks import draw_ranks
from lit_cfl.statistics import Interval, Ranking
from lit_cfl.storage import read_table, write_rows, write_text

_MEANS = {"accuracy": SCORE, "worst10": "worst10_accuracy", "ari": "ari", "clusters": "num_clusters",
          "models": "traffic", "local_steps": "local_steps", "newcomers": "newcomers_accuracy"}  # fmt: skip
_GAPS = ("to_fedavg", "to_fedavg_margin", "to_best", "to_best_margin")
COLUMNS = ("data", "system", "variant", *_MEANS, "one_cluster", "of_oracle", *_GAPS, "seconds", "seeds", "search",
           "options")  # fmt: skip
_HEADS = ("system", "accuracy %", "to FedAvg", "to the best", "of Oracle's gain %", "worst tenth", "clusters", "ARI",
          "models sent", "local steps", "chosen")  # fmt: skip


def page_of(out: Path) -> Path:
    """Returns the path of the page, a file next to the folder `out`."""
    return out.with_name(f"{out.name}.md")


def write_page(out: Path, protocol: Protocol, ledger: Ledger, draw: bool = True) -> str:
    """Writes `<out>.md`, and `results.csv` and (if `draw`) the pictures in `out`; returns the progress as text."""
    found = collect_entries(protocol, ledger)
    groups = best_of_data(protocol, found)
    ranked = select_ranked_data(protocol, groups)
    ranks = rank_systems(ranked) if ranked else None
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "results.csv", COLUMNS, _rows(found), digits=5)
    if ranks and draw:
        _draw(out, groups, list(dict.fromkeys([*ranks.mean_ranks, *protocol.systems])))
        write_picture(draw_ranks(ranks), out / "ranks", dpi=120)
    write_text(page_of(out), "\n".join(_page(out, protocol, ledger, found, groups, ranks)))
    return f"{len(ledger.rows)} runs, {_progress(protocol, found)}"


def _progress(protocol: Protocol, found: Sequence[Entry]) -> str:
    done = sum(entry.completed for entry in found if entry.variant == BEST)
    return f"{done} of {len(protocol.cells())} cells"


def _rows(found: Sequence[Entry]) -> Iterator[Row]:
    for entry in found:
        peers = {e.system: e for e in found if (e.data, e.variant) == (entry.data, entry.variant)}
        best = max((e for e in peers.values() if e.system != BOUND), key=lambda e: e.accuracy, default=entry)
        row: Row = {name: entry.mean(score) for name, score in _MEANS.items()}
        row |= {"data": entry.data, "system": entry.system, "variant": entry.variant}
        row |= {"one_cluster": entry.num_degenerate, "of_oracle": _share(entry, list(peers.values()))}
        row |= {"seconds": entry.seconds, "seeds": len(entry.rows), "options": format_options(entry.options)}
        row["search"] = "completed" if entry.completed and entry.variant == BEST else "first edition"
        for name, other in (("to_fedavg", peers.get(BASELINE)), ("to_best", best)):
            if other is not None and other is not entry:
                gap = entry.minus(other)
                row |= {name: gap.mean, f"{name}_margin": gap.margin}
        yield row


def _share(entry: Entry, peers: Sequence[Entry]) -> float | None:
    """Returns the percentage of Oracle's gain over the baseline that a system reaches; None without such a gain."""
    known = {e.system: e for e in peers}
    if entry.system in (BASELINE, BOUND) or not {BASELINE, BOUND} <= known.keys():
        return None
    gain = known[BOUND].minus(known[BASELINE])
    return 100 * (entry.minus(known[BASELINE]).mean or 0.0) / gain.mean if gain.mean and _apart(gain) else None


def _page(
    out: Path,
    protocol: Protocol,
    ledger: Ledger,
    found: Sequence[Entry],
    groups: Mapping[str, Sequence[Entry]],
    ranks: Ranking | None,
) -> Iterator[str]:
    by_hand = out / "in_short.txt"
    written = by_hand.read_text("utf-8").strip() if by_hand.exists() else ""
    short, heading, more = written.partition("\n\n## ")
    yield from ["# Which method when", "", *([short, ""] if short else [])]
    yield f"**Second edition: {_progress(protocol, found)}** (a system on a data set) are complete."
    if not all(entry.completed for entry in found):
        yield "Cells marked † have the search of the first edition only."
    if len({(entry.data, entry.system) for entry in found if entry.variant == BEST}) < len(protocol.cells()):
        yield "Missing cells have not run."
    yield ""
    if groups:
        yield from _best_by_data(out, protocol, groups)
    yield from ["", f"{heading.strip()} {more}", ""] if more else [""]
    yield from _protocol(out, protocol, ledger, found)
    for data, group in groups.items():
        yield from _section(data, group)
    if ranks:
        yield from _across(out, ranks)
    yield from _list_changes(found)
    yield from _tabulate_again(out)
    yield from _tabulate_newcomers(found)
    yield from _tabulate_other_numbers(protocol, found)


def _best_by_data(out: Path, protocol: Protocol, groups: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    if (out / "systems.png").exists():
        yield from [f"![Accuracy of every system on every data set]({out.name}/systems.png)", ""]
    yield "Test accuracy in %, as the mean over clients. The colour is the difference to FedAvg, white if its 95 %"
    yield from ["interval contains 0.", "", "## The best on each data set", ""]
    yield "The best is *not significantly better* than a system if the 95 % interval of their difference, paired by"
    yield "seed, contains 0. The best is chosen by the same test data, which favours it, and the intervals are not"
    yield from ["corrected for multiple comparisons. Oracle knows the true clusters, and is not among the systems.", ""]
    for data, group in groups.items():
        best, base = _best(group), _base(group)
        equal = [e.system for e in group if e is not best and e.system != BOUND and not _apart(e.minus(best))]
        winners = f"{best.system} ({best.accuracy:.1f} %)"
        if equal:
            winners += f", not significantly better than {_join_names(equal)}"
        if best is base:
            gain = "no system is above FedAvg"
        elif base.system in equal:
            gain = f"FedAvg is among them: {len(base.rows)} seeds show no gain"
        else:
            gain = f"FedAvg has {base.accuracy:.1f} %"
        of_data = {system for name, system in protocol.cells() if name == data}
        missing = len(of_data - {entry.system for entry in group})
        left = f" {missing} {'system has' if missing == 1 else 'systems have'} not run." if missing else ""
        yield f"* **{data}**: {winners}; {gain}.{left}"


def _protocol(out: Path, protocol: Protocol, ledger: Ledger, found: Sequence[Entry]) -> Iterator[str]:
    yield from ["## Protocol", ""]
    yield "`python -m experiments which-method` wrote this page, and continues the runs. Every number is in"
    yield f"[results.csv]({out.name}/results.csv)."
    yield read_page_text("which_method").format(trials=protocol.trials, seeds=len(protocol.seeds))
    on_cpu = [float(row["seconds"]) for row in ledger.rows.values() if row.get("device") in (None, "cpu")]
    on_gpu = len(ledger.rows) - len(on_cpu)
    yield f"{len(on_cpu):,} runs took {sum(on_cpu) / 3600:.1f} hours on one core of a shared machine."
    yield from [f"{on_gpu:,} runs were trained on a GPU, up to 18 at a time."] if on_gpu else []
    yield from ["", "### Data", ""]
    yield from markdown_table(["data", "what it is", "configuration"], list(_data_sets(protocol)))
    yield from ["### Options", "", "Options that a search chooses besides the learning rate, default first.", ""]
    rows = [[s, "; ".join(map(_choice, protocol.options(s).items())) or "none"] for s in protocol.systems]
    yield from markdown_table(["system", "options"], rows)
    yield from ["### Learning rates", "", "Number of data sets on which each rate was chosen.", ""]
    rates = sorted([*protocol.common[RATE], *protocol.edges])
    chosen = {
        s: Counter(e.options[RATE] for e in found if (e.system, e.variant) == (s, BEST)) for s in protocol.systems
    }
    counts = [[system, *(str(count[rate] or "") for rate in rates)] for system, count in chosen.items() if count]
    yield from markdown_table(["system", *map(str, rates)], counts)


def _data_sets(protocol: Protocol) -> Iterator[list[str]]:
    """Yields a row per data set: its name, the first comment of its configuration, and a link."""
    for data, what in protocol.data.items():
        config = what["config"]
        first, _, _ = Path(locate_config(config)).read_text("utf-8").partition("\n")
        yield [data, first.removeprefix("# ").partition(" (expect")[0], f"[{config}.yaml](../configs/{config}.yaml)"]


def _choice(option: tuple[str, Sequence[Any]]) -> str:
    name, values = option
    return f"{name.rpartition('.')[2]}: {', '.join(map(str, values))}"


def _section(data: str, group: Sequence[Entry]) -> Iterator[str]:
    yield from [f"## {data}", ""]
    yield from markdown_table(_HEADS, [_cells(entry, group) for entry in group])


def _cells(entry: Entry, group: Sequence[Entry]) -> list[str]:
    gaps = ["" if entry is other else _interval(entry.minus(other)) for other in (_base(group), _best(group))]
    share, ari, steps = _share(entry, group), entry.mean("ari"), entry.mean("local_steps")
    cells = [entry.system + ("" if entry.completed else " †"), f"{entry.accuracy:.1f}", *gaps]
    cells += ["" if share is None else f"{share:.0f}", f"{entry.mean('worst10_accuracy') or 0.0:.1f}"]
    cells += [_clusters(entry), "" if ari is None else f"{ari:.2f}", f"{entry.mean('traffic'):,.0f}"]
    return [*cells, "" if steps is None else f"{steps:,.0f}", format_options(entry.options)]


def _clusters(entry: Entry) -> str:
    """Formats the range of the number of clusters, and how many runs ended with a single cluster."""
    if not entry.clusters:
        return ""
    low, high = min(entry.clusters), max(entry.clusters)
    number = str(low) if low == high else f"{low} to {high}"
    return number + (f" (**one in {entry.num_degenerate}**)" if entry.num_degenerate else "")


def _across(out: Path, found: Ranking) -> Iterator[str]:
    pairs = list(combinations(found.mean_ranks, 2))
    apart = [f"{one} and {other}" for one, other in pairs if found.differ(one, other)]
    yield from ["## Across the data sets", "", f"![Mean ranks and critical difference]({out.name}/ranks.png)", ""]
    yield (
        f"The {len(found.mean_ranks)} systems that ran on {found.data_sets} data sets are ranked. Friedman's test of "
        f"equal systems gives p = {found.p_value:.2g}. By Nemenyi's test two systems differ if their mean ranks "
        f"differ by more than {found.critical_difference:.2f}: {len(pairs) - len(apart)} of {len(pairs)} pairs of "
        "systems do not differ significantly." + (f" The others are {', '.join(apart)}." if apart else "")
    )
    yield ""
    ranks = [[name, f"{rank:.2f}"] for name, rank in found.mean_ranks.items()]
    yield from markdown_table(["system", "mean rank"], ranks)


def _list_changes(found: Sequence[Entry]) -> Iterator[str]:
    """Lists cells in which the completed search chose other options than the first edition did."""
    best = {(e.data, e.system): e for e in found if e.variant == BEST}
    pairs = [(e, best[e.data, e.system]) for e in found if e.variant == FIRST and (e.data, e.system) in best]
    if not pairs:
        return
    yield from ["## Changes by the completed searches", ""]
    yield from ["Cells whose completed search chose other options than the first edition's, and their accuracies.", ""]
    rows = [
        [
            a.data,
            a.system,
            format_options(a.options),
            f"{a.accuracy:.1f}",
            format_options(b.options),
            f"{b.accuracy:.1f}",
        ]
        for a, b in pairs
    ]
    yield from markdown_table(["data", "system", "first edition", "%", "completed", "%"], rows)


def _tabulate_again(out: Path) -> Iterator[str]:
    """Makes a table of recorded runs that were repeated."""
    if not (out / "again.csv").exists():
        return
    rows = read_table(out / "again.csv")
    held = sum(row["holds"] == "True" or row["holds"] is True for row in rows)
    yield from ["## Recorded runs, trained again", ""]
    yield f"{len(rows)} runs of version 0.2 were drawn and trained again: {held} differ from the recorded accuracy by"
    yield "no more than the standard deviation of their five seeds. At `git checkout 9d7f8c04`, `python -m"
    yield "benchmarks.reproduction.which_method_again` did this."
    yield from [read_page_text("which_method_again"), ""]
    cells = [[r["data"], r["system"], str(r["seed"]), *(f"{r[k]:.2f}" for k in ("recorded", "again", "deviation"))]
             for r in rows]  # fmt: skip
    yield from markdown_table(["data", "system", "seed", "recorded %", "again %", "standard deviation"], cells)


def _tabulate_newcomers(found: Sequence[Entry]) -> Iterator[str]:
    """Makes a table of the newcomers' accuracies next to those of the training clients."""
    known = {(entry.data, entry.system): entry for entry in found if entry.variant == NEWCOMERS}
    if not known:
        return
    yield from ["## Newcomers", ""]
    yield "30 % of the clients join after the last round. The table has their accuracy in %, in brackets that of the"
    yield from ["other clients. Options are those that the system's search chose, mostly in the first edition.", ""]

    def cell(entry: Entry) -> str:
        newcomers = entry.mean("newcomers_accuracy")
        return f"{'-' if newcomers is None else f'{newcomers:.1f}'} ({entry.accuracy:.1f})"

    yield from _matrix(list(dict.fromkeys(data for data, _ in known)), known, cell)


def _tabulate_other_numbers(protocol: Protocol, found: Sequence[Entry]) -> Iterator[str]:
    """Makes a table of accuracies with half and with twice the number of clusters."""
    others = [entry for entry in found if entry.variant.startswith("clusters ")]
    if not others:
        return
    yield from ["## Another number of clusters", ""]
    yield from ["Accuracy in %. Other options are those that the search chose with the true number of clusters.", ""]
    known = {(f"{entry.data}, {entry.variant.removeprefix('clusters ')}", entry.system): entry for entry in others}
    chosen = {(e.data, e.system): e.options for e in others}
    for entry in found:
        if entry.variant in (BEST, FIRST) and chosen.get((entry.data, entry.system)) == entry.options:
            known[f"{entry.data}, {protocol.data[entry.data]['clusters']} (true)", entry.system] = entry
    yield from _matrix(sorted({column for column, _ in known}), known, lambda entry: f"{entry.accuracy:.1f}")


def _matrix(
    columns: Sequence[str], known: Mapping[tuple[str, str], Entry], cell: Callable[[Entry], str]
) -> Iterator[str]:
    systems = dict.fromkeys(system for _, system in known)
    rows = [[s, *(cell(known[c, s]) if (c, s) in known else "" for c in columns)] for s in systems]
    yield from markdown_table(["system", *columns], rows)


def _draw(out: Path, groups: Mapping[str, Sequence[Entry]], systems: Sequence[str]) -> None:
    """Draws `systems.png`: accuracies coloured by their difference from FedAvg; blank if a system has not run."""
    found = {(entry.system, data): entry for data, group in groups.items() for entry in group}
    shown = [system for system in systems if any((system, data) in found for data in groups)]
    accuracy, gain = np.full((2, len(shown), len(groups)), np.nan)
    for place in np.ndindex(accuracy.shape):
        system, data = shown[place[0]], list(groups)[place[1]]
        if (system, data) in found:
            entry, base = found[system, data], _base(groups[data])
            accuracy[place] = entry.accuracy
            gain[place] = entry.accuracy - base.accuracy if _apart(entry.minus(base)) else 0
    figure = heat_table(accuracy, gain, shown, list(groups), "points above FedAvg", linear=5.0)
    write_picture(figure, out / "systems", dpi=120)


def _base(group: Sequence[Entry]) -> Entry:
    return next(entry for entry in group if entry.system == BASELINE)


def _best(group: Sequence[Entry]) -> Entry:
    return next(entry for entry in group if entry.system != BOUND)


def _apart(gap: Interval) -> bool:
    low, high = gap.low, gap.high
    return low is not None and high is not None and not low <= 0 <= high


def _interval(gap: Interval) -> str:
    return "-" if gap.mean is None else f"{gap.mean:+.2f} ± {gap.margin or 0.0:.2f}"


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
