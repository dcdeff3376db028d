"""The results of a comparison: one row per run, one row per algorithm, and notes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from scipy.stats import chi2

from lit_cfl.compare.comparison import Comparison, training_differences
from lit_cfl.compare.gains import client_gains, losing_clients
from lit_cfl.errors import count_noun, join_ids
from lit_cfl.metric_names import ARI_NOTE, CHOSEN, Row, main_column
from lit_cfl.rounds import describe_late_clustering
from lit_cfl.runs.many import Job
from lit_cfl.runs.run import SAME_START
from lit_cfl.runs.shared_clients import compare_shared, read_scored, scores_everyone
from lit_cfl.scores import CLASSIFIER, Score, Scores, read_scores
from lit_cfl.statistics import LEVEL, Interval, holm, interval, p_value, paired_difference, ratio_of_means, seeds_needed
from lit_cfl.storage.checkpoint import read_fingerprint, share_initial_model
from lit_cfl.storage.csv_log import read_table

_RUNS = {
    "clusters": "clusters/count",
    "clusters_chosen": CHOSEN,
    "ari": "clusters/ari",
    "unplaced": "clusters/unobserved",
    "mib": "traffic/mib",
    "local_steps": "local/steps",
    "local_examples": "local/examples",
    "local_scored_examples": "local/scored_examples",
    "seconds": "time/elapsed_seconds",
    "stopped": "stopped",
}
_KINDS = ("worst10", "tuned", "newcomers")  # further test scores
_COSTS = ("mib", "local_steps", "local_examples")
_TO_TARGET = ("rounds_to_target", *(f"{cost}_to_target" for cost in _COSTS))
_GAP = ("gap_closed", "gap_closed_low", "gap_closed_high")
_NOT_OF_THE_ALGORITHM = ("server", "shared", "personal", "task", "local")  # must be equal for `gaps_closed`
COLUMNS = (
    *("algorithm", "class", "runs", "failed", "test_mean", "test_sd", "val_mean", "val_sd", "tuned_mean", "tuned_sd"),
    *("newcomers_mean", "newcomers_sd", "worst10", "worst10_low", "worst10_high"),
    *("pairs", "pairs_over_shared_clients", "difference", "difference_low", "difference_high"),
    *("point", "seeds_needed", "paired_clients", "losing", *_GAP),
    *("ari_mean", "ari_sd", "clusters_mean", "clusters_sd", "target", "reached", *_TO_TARGET),
    *(*_COSTS, "local_scored_examples", "seconds", "rounds_with_all_clients"),
)


def run_columns(score: Score) -> tuple[str, ...]:
    """Lists the columns of `runs.csv`."""
    return ("algorithm", "seed", "status", "rounds", *_figures(score), *_TO_TARGET, "error")


def _figures(score: Score) -> dict[str, str]:
    """Maps columns of `runs.csv` to the entries of a run's summary that they show."""
    found = {f"{split}_{score.name}": main_column((score,), split) for split in ("test", "val")}
    return found | {f"{kind}_{score.name}": f"test/{kind}_{score.name}" for kind in _KINDS} | _RUNS


@dataclass(frozen=True)
class Results:
    """The results of a comparison.

    Args:
        runs: Rows of algorithms and seeds, with `run_columns`.
        rows: Rows of algorithms, with `COLUMNS`.
        notes: Sentences below the table, the verdict first.
        tables: Rows of `metrics.csv` of each algorithm's finished runs.
        score: Score to compare, the task's first.
        gains: Data frame of `client_gains`; None = unknown.
    """

    runs: Sequence[Row]
    rows: Sequence[Row]
    notes: Sequence[str]
    tables: Mapping[str, Sequence[Sequence[Row]]]
    score: Score = CLASSIFIER[0]
    gains: Any = None

    @property
    def failed(self) -> list[Row]:
        """The rows of failed runs."""
        return [row for row in self.runs if row["status"] == "failed"]


def collect(comparison: Comparison, path: Path, errors: Mapping[Job, str]) -> Results:
    """Reads the files of the runs and computes the results."""
    jobs = sorted(comparison.jobs(path), key=lambda job: comparison.names.index(job.name))
    done = {job: summary for job in jobs if job not in errors and (summary := job.summary) is not None}
    metrics = {job: read_table(job.folder / "metrics.csv") for job in done}
    scores = next(map(read_scores, done.values()), CLASSIFIER)
    score, column = scores[0], main_column(scores, "test")
    target = comparison.target
    if target is None:
        target = common_target([summary[column] for summary in done.values()], score)
    costs = {job: cost_of(metrics.get(job, []), target, scores) for job in jobs}
    runs = [_run_row(job, done.get(job), costs[job], errors.get(job), score) for job in jobs]
    rows = [_row(comparison, name, runs, target, score) for name in comparison.names]
    gains = client_gains(done, comparison.names[0], score)
    losing, point = losing_clients(gains), 0.01 if score.is_share else abs(rows[0]["test_mean"] or 0) / 100
    for row in rows[1:]:
        row |= _difference(done, row["algorithm"], comparison.names[0], score, point) | losing.get(row["algorithm"], {})
    mark_best(rows, score, lambda name, best: _paired_gain(done, name, best, score)[0])
    gaps = gaps_closed(rows, runs, score)
    rows = [row | dict(zip(_GAP, gaps.get(row["algorithm"], (None, None, None)), strict=True)) for row in rows]
    tables = {name: [rows for job, rows in metrics.items() if job.name == name] for name in comparison.names}
    notes = [*verdict(rows, score), *(comparison.searched or ()), *_notes_on_pairs(comparison, done)]
    notes += _notes_on_columns(comparison, rows, score)
    for row in rows:
        own = [run for run in runs if run["algorithm"] == row["algorithm"]]
        notes += _notes_on_algorithm(comparison, row, own, [job for job in done if job.name == row["algorithm"]], score)
    return Results(runs, rows, notes, tables, score, gains)


def _run_row(job: Job, summary: Row | None, cost: Row | None, error: str | None, score: Score) -> Row:
    row: Row = {"algorithm": job.name, "seed": job.seed}
    if summary is None:
        return row | {"status": "failed" if error else "missing", "error": error}
    row |= {"status": "finished", "rounds": summary["round"]} | (cost or dict.fromkeys(_TO_TARGET))
    row["not_scored"] = 0 if scores_everyone(summary) else summary["clusters/unobserved"]
    return row | {column: summary.get(name) for column, name in _figures(score).items()}


def _row(comparison: Comparison, name: str, runs: Sequence[Row], target: float | None, score: Score) -> Row:
    mine = [run for run in runs if run["algorithm"] == name]
    done = [run for run in mine if run["status"] == "finished"]
    reached = [run for run in done if run["rounds_to_target"] is not None]
    row: Row = {"algorithm": name, "class": type(comparison.experiments[name].algorithm).__name__, "runs": len(done)}
    row["failed"] = len(mine) - len(done)
    scored = {split: f"{split}_{score.name}" for split in ("test", "val", *_KINDS)}
    for what, key in (scored | {"ari": "ari", "clusters": "clusters"}).items():
        found = interval([run[key] for run in done])
        row |= {f"{what}_mean": found.mean, f"{what}_sd": found.deviation}
        row |= {what: found.mean, f"{what}_low": found.low, f"{what}_high": found.high} if what == "worst10" else {}
    options = comparison.experiments[name].to_dict()
    row["added"] = [options.get(option) for option in _NOT_OF_THE_ALGORITHM]
    row |= {"target": target, "reached": len(reached), "rounds_with_all_clients": comparison.rounds_with_all(name)}
    whole = reached if len(reached) == len(done) else []
    row |= {key: interval([run[key] for run in whole]).mean for key in _TO_TARGET}
    costs = (*_COSTS, "local_scored_examples", "seconds")
    return row | {key: interval([run[key] for run in done]).mean for key in costs}


def common_target(finals: Sequence[float | None], score: Score = CLASSIFIER[0]) -> float | None:
    """Finds the worst final score of all runs, rounded to a target that every run reaches.

    It has three decimals; a value below 0.01 has two significant digits.
    """
    known = [value for value in finals if value is not None]
    if not known:
        return None
    worst = min(known) if score.higher_is_better else max(known)
    factor = 10.0 ** (3 if worst == 0 else max(3, 1 - floor(log10(abs(worst)))))
    return floor(worst * factor) / factor if score.higher_is_better else ceil(worst * factor) / factor


def cost_of(rows: Sequence[Row], target: float | None, scores: Scores = CLASSIFIER) -> Row | None:
    """Returns the rounds, MiB and local work until the test score first reaches a target; None if it never does.

    A round counts only if all clients are scored in it; it is early if some have a model for the score alone.

    Args:
        rows: Rows of `metrics.csv`.
        target: Target of the first score, or None.
        scores: Scores of the task.
    """
    column = main_column(scores, "test")
    for row in rows:
        value = row[column]
        if value is None or target is None or (row["clusters/unobserved"] and not scores_everyone(row)):
            continue
        if value == target or scores[0].better(value, target):
            found = {"rounds_to_target": row["round"], "early": bool(row["clusters/unobserved"])}
            return found | {f"{cost}_to_target": row[_RUNS[cost]] for cost in _COSTS}
    return None


def _difference(done: Mapping[Job, Row], name: str, first: str, score: Score, point: float) -> Row:
    """Computes the columns on an algorithm's mean difference from the first one, with the seeds needed for `point`."""
    gain, shared, unknown = _paired_gain(done, name, first, score)
    needed = None if gain.deviation is None or not point else seeds_needed(point, gain.deviation)
    row: Row = {"pairs": gain.count, "pairs_over_shared_clients": shared, "pairs_unknown": unknown}
    row |= {"point": point, "seeds_needed": needed}
    return row | {"difference": gain.mean, "difference_low": gain.low, "difference_high": gain.high}


def _paired_gain(done: Mapping[Job, Row], name: str, first: str, score: Score) -> tuple[Interval, int, int]:
    """Computes an algorithm's gain over another one, over the seeds with which both have finished.

    If a run does not score every client, the two runs of its seed are compared on the clients that both score.

    Returns:
        The gain, and the numbers of pairs over shared clients whose figures are known and unknown.
    """
    mine, others, over_both = dict[int, float | None](), dict[int, float | None](), list[int]()
    for job, summary in done.items():
        other = replace(job, name=first)
        if job.name != name or other not in done:
            continue
        pair = summary, done[other]
        if not all(map(scores_everyone, pair)):
            scored = read_scored(job.folder, pair[0], score), read_scored(other.folder, pair[1], score)
            if (shared := compare_shared([scored], score)) is not None:
                pair = shared.mine, shared.others
                over_both.append(job.seed)
        mine[job.seed], others[job.seed] = (one[f"test/weighted_{score.name}"] for one in pair)
    unknown = sum(None in (mine[seed], others[seed]) for seed in over_both)
    return paired_difference(mine, others), len(over_both) - unknown, unknown


def mark_best(rows: Sequence[Row], score: Score, gain: Callable[[str, str], Interval]) -> None:
    """Sets `is_best` for the algorithm with the best mean test score, and for those not told from it by a t test.

    The test needs three seeds: over two, it hardly tells any difference.

    Args:
        rows: Rows of algorithms.
        score: Score to compare.
        gain: Returns the paired gain of an algorithm over another one, by their names.
    """
    known = [row for row in rows if row["test_mean"] is not None]
    if len(known) > 1:
        best = (max if score.higher_is_better else min)(known, key=lambda row: row["test_mean"])
        for row in known:
            found = gain(row["algorithm"], best["algorithm"])
            is_equal = found.count > 2 and found.margin is not None and abs(found.mean or 0.0) <= found.margin
            row["is_best"] = row is best or is_equal


Share = tuple[float, float | None, float | None]  # share of a gap, and the ends of its interval


def gaps_closed(rows: Sequence[Row], runs: Sequence[Row], score: Score) -> dict[str, Share]:
    """Computes the share of the gap between FedAvg and Oracle that each algorithm closes, by name.

    The share is that of mean gains over the seeds under which all three have finished and score every client, with its
    interval; see `ratio_of_means`. There is none if Oracle is not better than FedAvg, or cannot be told from it.

    Args:
        rows: Rows of algorithms; an Oracle is compared with the first FedAvg that has the same training, server, shared
            and personal layers.
        runs: Rows of `runs.csv`.
        score: Score to compare.
    """
    first, last = ([row for row in rows if row["class"] == kind] for kind in ("FedAvg", "Oracle"))
    ends = [(one["algorithm"], other["algorithm"]) for one in first for other in last if one["added"] == other["added"]]
    if not ends:
        return {}
    figures: dict[str, dict[int, float]] = {row["algorithm"]: {} for row in rows}
    for run in runs:
        value = run.get(f"test_{score.name}")
        if value is not None and not run["not_scored"]:
            figures[run["algorithm"]][run["seed"]] = value
    base, best = (figures[end] for end in ends[0])
    found: dict[str, Share] = {}
    for name, mine in figures.items():
        shared = sorted(mine.keys() & base.keys() & best.keys())
        gain, gap = ([one[seed] - base[seed] for seed in shared] for one in (mine, best))
        share = ratio_of_means(gain, gap)
        if share is not None and score.better(sum(gap), 0):
            low, high = share[1:] if name not in ends[0] else (None, None)  # FedAvg closes 0 and Oracle 1 of the gap
            found[name] = (share[0] + 0.0, low, high)  # adding 0.0 turns -0.0 into 0.0
    return found


_BETTER, _WORSE = ("is better than", "are better than"), ("is worse than", "are worse than")
_UNKNOWN = ("cannot be told from", "cannot be told from")


def verdict(rows: Sequence[Row], score: Score) -> list[str]:
    """Says which algorithms are better or worse than the first, or cannot be told from it, and how many seeds would do.

    By paired t tests over the seeds at 5 %, with Holm's correction for the number of algorithms.

    Args:
        rows: Rows of `results.csv`.
        score: Score to compare.

    Returns:
        One sentence or two; nothing for a single algorithm.
    """
    first, *others = rows
    gains = {row["algorithm"]: _gain(row) for row in others}
    tested = {name: p_value(gain) for name, gain in gains.items() if gain.margin is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    kinds: dict[tuple[str, str], list[str]] = {_BETTER: [], _WORSE: [], _UNKNOWN: []}
    for name, gain in gains.items():
        side = _BETTER if score.better(gain.mean or 0.0, 0.0) else _WORSE
        kinds[side if corrected.get(name, 1.0) < 1 - LEVEL else _UNKNOWN].append(name)
    parts = []
    for (of_one, of_several), names in kinds.items():
        if names:
            listed = " and ".join(", ".join(names).rsplit(", ", 1))
            parts.append(f"{listed} {of_one if len(names) == 1 else of_several} {first['algorithm']}")
    how = "paired t tests over seeds at 5 %, with Holm's correction" if tested else "a test needs two seeds"
    if any(row["pairs"] == 2 for row in others):
        how += "; two seeds hardly tell any difference, so run five or more"
    needed = _describe_seeds(first, [row for row in others if row["algorithm"] in kinds[_UNKNOWN]], score)
    return [f"Test {score.title}: {'; '.join(parts)} ({how}).", *needed] if parts else []


def _describe_seeds(first: Row, others: Sequence[Row], score: Score) -> list[str]:
    """Says how many seeds some algorithms need to be told from the first one; empty if it is unknown."""
    known = [row for row in others if row.get("seeds_needed") is not None]
    if not known:
        return []
    unit = "one point (0.01)" if score.is_share else f"{known[0]['point']:.3g} (1 % of its {score.title})"
    numbers = ", ".join(f"{row['seeds_needed']:,} for {row['algorithm']}" for row in known)
    fewest = min(row["pairs"] for row in known)
    most = (fewest - 1) / chi2.ppf(0.025, fewest - 1)  # upper end of the 95 % interval of the variance
    return [
        f"Seeds needed to tell a difference of {unit} from {first['algorithm']} (two-sided paired t test at 5 %, power "
        f"0.8): {numbers}. That is rough: the deviation is estimated from {fewest} seeds, so it may take up to "
        f"{most:,.{0 if most > 3 else 1}f} times as many."
    ]


def _gain(row: Row) -> Interval:
    mean, high = row["difference"], row["difference_high"]
    return Interval(mean, None if mean is None or high is None else high - mean, row["pairs"] or 0)


NOTE_ON_COSTS = "Rounds, MiB and local steps"  # first words of the note on the columns about a target
_PAIRED = ("frozen part of the module", "initial model", "partition")  # fingerprint entries, equal in paired runs


def _notes_on_pairs(comparison: Comparison, done: Iterable[Job]) -> list[str]:
    """Returns notes on the pairing of runs, such as runs of one seed that started from different weights."""
    if comparison.first.to_dict().get("tiny"):
        return ["Tiny runs only show whether everything runs; they are not paired."]
    notes = []
    prints = {job: read_fingerprint(job.folder) for job in done}
    for seed in comparison.seeds:
        lost = [job.name for job, one in prints.items() if job.seed == seed and not one]
        if lost:
            notes.append(
                f"Under seed {seed}, it is unknown whether the runs of {', '.join(lost)} are paired, since they have "
                "no checkpoint.pt."
            )
        for what in _PAIRED:
            if len({one[what] for job, one in prints.items() if job.seed == seed and one}) > 1:
                notes.append(f"Warning: under seed {seed} the runs do not share one {what}: nothing is paired.")
    if share_initial_model([job.folder for job in prints if job.name == comparison.names[0]]):
        notes.append(f"{SAME_START}.")
    return notes


def _notes_on_columns(comparison: Comparison, rows: Sequence[Row], score: Score) -> list[str]:
    first, name, target = comparison.names[0], score.title, rows[0]["target"]
    several, runs = len(comparison.seeds) > 1, {row["runs"] for row in rows}
    over = count_noun(runs.pop(), "seed") if len(runs) == 1 else "seeds"
    spread = f", mean ± standard deviation over {over}" if several else ". One seed: no deviation and no interval"
    lower = "" if score.higher_is_better else " (lower is better)"
    worst = f"the {'lowest' if score.higher_is_better else 'highest'} {name} that a run ends with"
    until = f"{target or 0:g} ({worst if comparison.target is None else 'as asked'})"
    clients = comparison.first.evaluation.clients
    state = "are scored" if clients == "all" else "have a model"
    known = {column for row in rows for column, value in row.items() if value is not None}
    warm = any(getattr(shift, "participants", "all") == "warm" for shift in comparison.first.data.shift)
    return _those_that_hold(
        (True, f"{score.heading}: weighted test {name} after the last round{lower}{spread}."),
        (several and rows[1:], f"Difference to {first}: mean over paired seeds [95 % interval by Student's t]."),
        ("gap_closed" in known, "Gap closed: share of Oracle's gain over FedAvg [95 % interval by Fieller's theorem]."),
        ("ari_mean" in known, ARI_NOTE),
        ("tuned_mean" in known, f"Tuned {name}: of clients that fine-tuned their models (evaluation.fine_tune)."),
        ("newcomers_mean" in known, f"Newcomers: test {name} of clients that were held out (data.newcomers)."),
        (not isinstance(clients, str), f"Scores are over a fixed sample of {clients} clients (evaluation.clients)."),
        (target is not None, f"{NOTE_ON_COSTS}: until the test {name} is {until} and all clients {state}."),
        (warm, "Shifts differ between algorithms: only the data of clients that have a model shift."),
    )


def _notes_on_algorithm(
    comparison: Comparison, row: Row, runs: Sequence[Row], done: Sequence[Job], score: Score
) -> list[str]:
    name, first = row["algorithm"], comparison.names[0]
    experiment = comparison.experiments[name]
    algorithm, rounds, with_all = experiment.algorithm, experiment.rounds, row["rounds_with_all_clients"]
    trained = ", ".join(training_differences(comparison.first, experiment))
    late = (describe_late_clustering(algorithm, rounds) or "").replace(type(algorithm).__name__, name, 1)
    shared, unknown = row.get("pairs_over_shared_clients"), row.get("pairs_unknown")
    chosen = {run["seed"]: run["clusters_chosen"] for run in runs if run.get("clusters_chosen") is not None}
    seeds = f" (seeds {join_ids(list(chosen))})" if len(chosen) > 1 else ""
    flags = ("stopped", "not_scored", "early")
    stopped, unscored, early = (sum(bool(run.get(flag)) for run in runs) for flag in flags)
    explain = algorithm.explain_result
    found = {job.seed: text for job in done if (text := explain(partial(read_table, job.folder / "clusters.csv")))}
    seed, why = next(iter(found.items()), (None, None))
    return _those_that_hold(
        (with_all, f"† {name} trains every client in {with_all} of {rounds} rounds, whatever the cohort size."),
        (early, f"{name} reached the target with models for the score alone, whose cost does not count."),
        (trained, f"{name} trains with {trained}; in brackets: {first}."),
        (late, f"{late}."),
        (
            shared,
            f"{name}: under {shared} of {row.get('pairs')} seeds the difference is over clients scored in both runs.",
        ),
        (
            unknown,
            f"{name}: {unknown} seeds are left out: the {score.title} of clients scored in both runs is unknown.",
        ),
        (algorithm.caveat, f"{algorithm.caveat}."),
        (chosen, f"{name}: num_clusters: auto chose {join_ids(list(chosen.values()))}{seeds}."),
        (stopped, f"{name}: {stopped} of {len(runs)} runs stopped early; their last round counts."),
        (unscored, f"{name}: in {unscored} of {len(runs)} runs clients have no model at the end and are not scored."),
        (found, f"{name}, {len(found)} of {count_noun(len(done), 'run')} (here seed {seed}): {why}."),
        *((run["status"] == "failed", f"{name}, seed {run['seed']}, failed: {run.get('error')}") for run in runs),
    )


def _those_that_hold(*sentences: tuple[object, str]) -> list[str]:
    return [sentence for condition, sentence in sentences if condition]
