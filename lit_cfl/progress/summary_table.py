"""The table at the end of a run, with notes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from statistics import fmean

from rich.console import Console

from lit_cfl import algorithms
from lit_cfl.metric_names import Row
from lit_cfl.progress.tables import mebibytes, new_table, number
from lit_cfl.runs.run import FinishedRun
from lit_cfl.runs.shared_clients import (
    ScoredClients,
    SharedClients,
    compare_shared,
    describe_small_tests,
    read_scored,
    scores_everyone,
)
from lit_cfl.scores import Score, read_scores
from lit_cfl.storage.csv_log import read_columns

_MAX_SIZES = 50  # maximum number of listed clusters


def closing_table(console: Console, finished: FinishedRun) -> None:
    """Prints the results of a run and its baseline, with notes."""
    parts = [part for part in (finished, finished.baseline) if part is not None]
    score = read_scores(finished.summary)[0]
    truth = any(part.summary["clusters/ari"] is not None for part in parts)  # true clusters are known
    agreement = ["ARI"] if truth else []
    table = new_table("", f"weighted {score.title}", "mean", "worst 10 %", *agreement, "traffic MiB", "time s")
    baseline = finished.baseline
    shared = None if baseline is None else compare_shared(_read_scores(finished, baseline, score), score)
    instead = ({}, {}) if shared is None else (shared.mine, shared.others)
    for part, figures in zip(parts, instead, strict=False):  # there may be no baseline
        table.add_row(*_cells(part.summary | figures, score, truth))
    console.print(table)
    known = [getattr(algorithms, str(part.summary["algorithm"]), None) for part in parts]  # None = a user's own
    caveats = [algorithm.caveat for algorithm in known if algorithm is not None and algorithm.caveat]
    for note in (*_notes(parts, shared, truth, score), *caveats):
        console.print(f"({note})", style="dim", soft_wrap=True)
    for line in _without_truth(finished, score) if finished.summary["clusters/ari"] is None else []:
        console.print(line, soft_wrap=True)
    for note in dict.fromkeys(note for part in parts for note in part.summary.get("notes", ())):
        console.print(f"Note: {note}.", soft_wrap=True)
    console.print(f"Files: {finished.path}", soft_wrap=True)
    console.print(page_line(finished.path), soft_wrap=True)


def page_line(path: Path) -> str:
    """Returns a line with the command that shows a directory as a page."""
    return f"As a page: lit-cfl report {quote(str(path))}"


def _read_scores(mine: FinishedRun, baseline: FinishedRun, score: Score) -> list[tuple[ScoredClients, ScoredClients]]:
    """Reads the clients scored by a run and its baseline, seed by seed."""
    runs = ([read_scored(part.path, part.summary, score) for part in one.seeds or [one]] for one in (mine, baseline))
    return list(zip(*runs, strict=True))


def _notes(parts: Sequence[FinishedRun], shared: SharedClients | None, truth: bool, score: Score) -> list[str]:
    """Explains which clients and seeds the results cover."""
    first, names = parts[0].summary, [str(part.summary["algorithm"]) for part in parts]
    over = f", over the {round(shared.clients, 1):g} clients that both {' and '.join(names)} score" if shared else ""
    means = f", means of {first['seeds']} seeds" if first.get("seeds") else ""
    of = f"test data, last round{over}{means}; mean, worst 10 %: of clients"
    notes = [f"{of}; ARI: agreement with true clusters, 1 = equal" if truth else of]
    test, val = (first.get(f"{part}/weighted_{score.name}") for part in ("test", "val"))
    if test is None and val is not None:  # both are None after divergence
        notes.append("no client has test examples: set data.test, or test of data.partition, such as 0.2")
    one = (parts[0].seeds or parts)[0]
    if test is not None and (small := describe_small_tests(read_scored(one.path, one.summary, score).sizes.values())):
        notes.append(small)
    for name, summary in zip(names, (part.summary for part in parts), strict=True):
        if (newcomers := summary.get(f"test/newcomers_{score.name}")) is not None:
            found = f"weighted {score.title} {number(newcomers)}"
            notes.append(f"{name} on newcomers, which did not train: {found}; clients.csv has the score of each")
        if unplaced := summary["clusters/unobserved"]:
            clients = unplaced + summary["clusters/assigned"]
            how = "they are" if scores_everyone(summary) else "with evaluation.clients: all they are"
            how += " scored with the model that they would receive"
            notes.append(f"{name} has no model yet for {round(unplaced, 1):g} of {round(clients, 1):g} clients; {how}")
    return notes


def _cells(summary: Row, score: Score, truth: bool) -> list[str]:
    names = [f"test/{mean}_{score.name}" for mean in ("weighted", "mean", "worst10")]
    ari = summary["clusters/ari"]
    agreement = ["unknown" if ari is None else f"{ari:.2f}"] if truth else []
    return [
        str(summary["algorithm"]),
        *(number(summary[name]) for name in names),
        *agreement,
        mebibytes(summary["traffic/mib"]),
        f"{summary['time/elapsed_seconds']:.1f}",
    ]


def _without_truth(finished: FinishedRun, score: Score) -> list[str]:
    """Describes the clusters of a run without known true clusters."""
    lines = ["The true clusters of these clients are not known, so agreement with them cannot be measured."]
    for part in finished.seeds or [finished]:
        for_seed = f" of seed {part.summary['seed']}" if finished.seeds else ""
        lines.append(f"Cluster sizes{for_seed}: {_cluster_sizes(part.path)}.")
    if (silhouette := finished.summary["clusters/silhouette"]) is not None:
        lines.append(
            f"Silhouette of the updates at their last comparison: {silhouette:.2f} (1 = well separated, 0 = not "
            "separated)."
        )
    if finished.baseline is not None:
        gains = [gain for pair in _read_scores(finished, finished.baseline, score) for gain in _gains(*pair, score)]
        if gains:
            over, losing = finished.baseline.summary["algorithm"], sum(gain < 0 for gain in gains) / len(gains)
            lines.append(f"Gain per client over {over}: {fmean(gains):+.3f} on average; {losing:.0%} of clients lose.")
    return lines


def _cluster_sizes(path: Path) -> str:
    """Lists the number of clients in training in each cluster of a run, for at most fifty clusters."""
    rows = read_columns(path / "clients.csv", ["cluster", "newcomer"])
    found = Counter(cluster for cluster, newcomer in rows if cluster is not None and not newcomer)
    sizes = [str(found[cluster]) for cluster in sorted(found)]
    more = f" and {len(sizes) - _MAX_SIZES:,} clusters more" if len(sizes) > _MAX_SIZES else ""
    return ", ".join(sizes[:_MAX_SIZES]) + more


def _gains(mine: ScoredClients, others: ScoredClients, score: Score) -> list[float]:
    """Computes the gain of each client scored in two runs; positive is better, regardless of the score's direction."""
    sign = 1 if score.higher_is_better else -1
    both = sorted(mine.values.keys() & others.values.keys())
    return [sign * (mine.values[client] - others.values[client]) for client in both]
