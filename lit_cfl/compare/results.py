"""The results of a comparison: one row per run, one row per algorithm, and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, log10
from pathlib import Path
from statistics import fmean

from lit_cfl.compare.comparison import Comparison, training_differences
from lit_cfl.errors import count_noun, join_ids
from lit_cfl.metric_names import ARI_NOTE, CHOSEN, Row, main_column
from lit_cfl.rounds import describe_late_clustering
from lit_cfl.runs.many import Job
from lit_cfl.runs.run import SAME_START
from lit_cfl.runs.shared_clients import compare_shared, read_scored, scores_everyone
from lit_cfl.scores import CLASSIFIER, Score, Scores, read_scores
from lit_cfl.statistics import paired_difference, spread
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
_COSTS = ("mib", "local_steps", "local_examples")
_TO_TARGET = ("rounds_to_target", *(f"{cost}_to_target" for cost in _COSTS))
_NOT_OF_THE_ALGORITHM = ("server", "shared", "personal", "task", "local")  # must be equal for `gaps_closed`
COLUMNS = (
    *("algorithm", "class", "runs", "failed", "test_mean", "test_sd", "val_mean", "val_sd", "tuned_mean", "tuned_sd"),
    *("newcomers_mean", "newcomers_sd"),
    *("pairs", "pairs_over_shared_clients", "difference", "difference_low", "difference_high", "gap_closed"),
    *("ari_mean", "ari_sd", "clusters_mean", "clusters_sd", "target", "reached", *_TO_TARGET),
    *(*_COSTS, "local_scored_examples", "seconds", "rounds_with_all_clients"),
)


def run_columns(score: Score) -> tuple[str, ...]:
    """Lists the columns of `runs.csv`."""
    return ("algorithm", "seed", "status", "rounds", *_figures(score), *_TO_TARGET, "error")


def _figures(score: Score) -> dict[str, str]:
    """Maps columns of `runs.csv` to the entries of a run's summary that they show."""
    found = {f"{split}_{score.name}": main_column((score,), split) for split in ("test", "val")}
    return found | {f"{kind}_{score.name}": f"test/{kind}_{score.name}" for kind in ("tuned", "newcomers")} | _RUNS


@dataclass(frozen=True)
class Results:
    """The results of a comparison.

    Args:
        runs: Rows of algorithms and seeds, with `run_columns`.
        rows: Rows of algorithms, with `COLUMNS`.
        notes: Sentences below the table.
        tables: Rows of `metrics.csv` of each algorithm's finished runs.
        score: Score to compare, the task's first.
    """

    runs: Sequence[Row]
    rows: Sequence[Row]
    notes: Sequence[str]
    tables: Mapping[str, Sequence[Sequence[Row]]]
    score: Score = CLASSIFIER[0]

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
    for row in rows[1:]:
        row |= _difference(done, row["algorithm"], comparison.names[0], score)
    gaps = gaps_closed(rows, runs, score)
    rows = [row | {"gap_closed": gaps.get(row["algorithm"])} for row in rows]
    tables = {name: [rows for job, rows in metrics.items() if job.name == name] for name in comparison.names}
    early = _reached_early(metrics, costs)
    notes = [*_mismatches(comparison, list(done)), *_notes(comparison, runs, rows, target, score, early)]
    notes += _explanations(comparison, list(done))
    return Results(runs, rows, notes, tables, score)


def _explanations(comparison: Comparison, done: Sequence[Job]) -> list[str]:
    """Explains for each algorithm why runs have no clustering, by the first of them."""
    notes = []
    for name in comparison.names:
        explain = comparison.experiments[name].algorithm.explain_result
        mine = [job for job in done if job.name == name]
        found = {job.seed: text for job in mine if (text := explain(partial(read_table, job.folder / "clusters.csv")))}
        if found:
            seed, text = next(iter(found.items()))
            notes.append(f"{name}, {len(found)} of {count_noun(len(mine), 'run')} (here seed {seed}): {text}.")
    return notes


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
    scored = {split: f"{split}_{score.name}" for split in ("test", "val", "tuned", "newcomers")}
    for what, key in (scored | {"ari": "ari", "clusters": "clusters"}).items():
        found = spread([run[key] for run in done])
        row |= {f"{what}_mean": found.mean, f"{what}_sd": found.deviation}
    options = comparison.experiments[name].to_dict()
    row["added"] = [options.get(option) for option in _NOT_OF_THE_ALGORITHM]
    row |= {"target": target, "reached": len(reached), "rounds_with_all_clients": comparison.rounds_with_all(name)}
    whole = reached if len(reached) == len(done) else []
    row |= {key: spread([run[key] for run in whole]).mean for key in _TO_TARGET}
    costs = (*_COSTS, "local_scored_examples", "seconds")
    return row | {key: spread([run[key] for run in done]).mean for key in costs}


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

    A round counts only if all clients are scored in it.

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
            return {"rounds_to_target": row["round"]} | {f"{cost}_to_target": row[_RUNS[cost]] for cost in _COSTS}
    return None


def _reached_early(metrics: Mapping[Job, Sequence[Row]], costs: Mapping[Job, Row | None]) -> list[str]:
    """Lists the algorithms that reach the target while some clients have a model for the score alone."""
    ends = {job: cost["rounds_to_target"] for job, cost in costs.items() if cost is not None}
    early = {
        job.name
        for job, end in ends.items()
        for row in metrics[job]
        if row["round"] == end and row["clusters/unobserved"]
    }
    return [name for name in dict.fromkeys(job.name for job in metrics) if name in early]


def _difference(done: Mapping[Job, Row], name: str, first: str, score: Score) -> Row:
    """Computes an algorithm's mean difference from the first one, over the seeds with which both have finished.

    If a run does not score every client, the two runs of its seed are compared on the clients that both score.
    """
    mine, others, over_both = dict[int, float | None](), dict[int, float | None](), list[int]()
    for job, summary in done.items():
        other = replace(job, name=first)
        if job.name != name or other not in done:
            continue
        pair, shared = (summary, done[other]), None
        if not all(map(scores_everyone, pair)):
            scored = read_scored(job.folder, pair[0], score), read_scored(other.folder, pair[1], score)
            shared = compare_shared([scored], score)
        figures = pair if shared is None else (shared.mine, shared.others)
        mine[job.seed], others[job.seed] = (one[f"test/weighted_{score.name}"] for one in figures)
        if shared is not None:
            over_both.append(job.seed)
    gain = paired_difference(mine, others)
    unknown = sum(None in (mine[seed], others[seed]) for seed in over_both)
    row = {"pairs": gain.count, "pairs_over_shared_clients": len(over_both) - unknown, "pairs_unknown": unknown}
    return row | {"difference": gain.mean, "difference_low": gain.low, "difference_high": gain.high}


def gaps_closed(rows: Sequence[Row], runs: Sequence[Row], score: Score) -> dict[str, float]:
    """Computes the share of the gap between FedAvg and Oracle that each algorithm closes, by name.

    The share is that of means over the seeds under which all three have finished and score every client. There is none
    if Oracle is not better than FedAvg.

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
    found = {}
    for name, mine in figures.items():
        base, best = (figures[end] for end in ends[0])
        shared = sorted(mine.keys() & base.keys() & best.keys())
        if shared:
            low, high, own = (fmean(one[seed] for seed in shared) for one in (base, best, mine))
            if score.better(high, low):
                found[name] = (own - low) / (high - low) + 0.0  # adding 0.0 turns -0.0 into 0.0
    return found


NOTE_ON_COSTS = "Rounds, MiB and local steps"  # first words of the note on the columns about a target
_FOR_THE_SCORE = (
    "some clients had not taken part yet and got a model for the score alone, whose training and traffic do not count"
)
_PAIRED = ("frozen part of the module", "initial model", "partition")  # fingerprint entries, equal in paired runs


def _mismatches(comparison: Comparison, done: Sequence[Job]) -> list[str]:
    """Returns notes on the pairing of runs, such as runs of one seed that started from different weights."""
    if comparison.first.to_dict().get("tiny"):
        return ["Tiny runs only show whether everything runs; they are not paired."]
    notes = []
    for seed in comparison.seeds:
        found = {job.name: read_fingerprint(job.folder) for job in done if job.seed == seed}
        if lost := [name for name, one in found.items() if not one]:
            notes.append(
                f"Under seed {seed}, it is unknown whether the runs of {', '.join(lost)} are paired, since they have "
                "no checkpoint.pt."
            )
        prints = {name: one for name, one in found.items() if one}
        for what in _PAIRED:
            values = {one[what] for one in prints.values()}
            if len(values) > 1:
                notes.append(f"Warning: under seed {seed} the runs do not share one {what}: nothing is paired.")
    if share_initial_model([job.folder for job in done if job.name == comparison.names[0]]):
        notes.append(f"{SAME_START}.")
    return notes


def _notes(
    comparison: Comparison,
    runs: Sequence[Row],
    rows: Sequence[Row],
    target: float | None,
    score: Score,
    early: Sequence[str],
) -> list[str]:
    first, seeds, name = comparison.names[0], len(comparison.seeds), score.title
    clients = comparison.first.evaluation.clients
    sample = None if isinstance(clients, str) else clients
    what = f"{score.heading}: weighted test {name} after the last round"
    what += "" if score.higher_is_better else " (lower is better)"
    counts = {row["runs"] for row in rows}
    over = count_noun(counts.pop(), "seed") if len(counts) == 1 else "seeds"
    notes = [f"{what}, mean ± standard deviation over {over}."]
    if seeds == 1:
        notes = [f"{what}. One seed: no deviation and no interval."]
    elif len(rows) > 1:
        notes.append(f"Difference to {first}: mean over paired seeds [95 % interval by Student's t].")
    if any(row["gap_closed"] is not None for row in rows):
        notes.append(
            f"Gap closed: an algorithm's gain in test {name} over FedAvg, as a share of the gain of Oracle, which is "
            f"FedAvg within the true clusters{'' if seeds == 1 else '; from means over seeds'}."
        )
    if any(row["ari_mean"] is not None for row in rows):
        notes.append(ARI_NOTE)
    if any(row["tuned_mean"] is not None for row in rows):
        notes.append(f"Tuned {name}: test {name} of clients that fine-tuned their models (evaluation.fine_tune).")
    if any(row["newcomers_mean"] is not None for row in rows):
        notes.append(f"Newcomers: test {name} of clients that were held out (data.newcomers) and placed at the end.")
    if sample is not None:
        notes.append(f"Scores are over a fixed sample of {sample} clients (evaluation.clients).")
    if target is not None:
        worst = "lowest" if score.higher_is_better else "highest"
        origin = f"the {worst} {name} that a run ends with" if comparison.target is None else "as asked"
        state = "are scored" if comparison.first.evaluation.clients == "all" else "have a model"
        notes.append(
            f"{NOTE_ON_COSTS}: until the test {name} is {target:g} ({origin}). Only rounds in which "
            f"all clients {state} count; nothing is chosen by test data."
            + (f" Where {', '.join(early)} first reached it, {_FOR_THE_SCORE}." if early else "")
        )
    for row in rows:
        experiment = comparison.experiments[row["algorithm"]]
        if row["rounds_with_all_clients"]:
            notes.append(
                f"† {row['algorithm']} trains every client in {row['rounds_with_all_clients']} of "
                f"{experiment.rounds} rounds, whatever the cohort size."
            )
        if own := training_differences(comparison.first, experiment):
            notes.append(f"{row['algorithm']} trains with {', '.join(own)}; in brackets: {first}.")
        if late := describe_late_clustering(experiment.algorithm, experiment.rounds):
            notes.append(late.replace(type(experiment.algorithm).__name__, str(row["algorithm"]), 1) + ".")
        if row.get("pairs_over_shared_clients"):
            notes.append(
                f"{row['algorithm']}: its runs and those of {first} score different clients under "
                f"{row['pairs_over_shared_clients']} of {row['pairs']} seeds; the difference is over the clients that "
                "both score."
            )
        if row.get("pairs_unknown"):
            notes.append(
                f"{row['algorithm']}: under {row['pairs_unknown']} seeds its runs and those of {first} score "
                f"different clients, and the {name} over the clients that both score is unknown; these seeds do not "
                "count in the difference."
            )
    notes += _notes_of_runs(comparison, runs)
    if any(getattr(shift, "participants", "all") == "warm" for shift in comparison.first.data.shift):
        notes.append(
            "Only the data of clients that have a model shift (participants: warm), so the shifts differ between "
            "algorithms."
        )
    return notes


def _notes_of_runs(comparison: Comparison, runs: Sequence[Row]) -> list[str]:
    notes = []
    for name in comparison.names:
        if caveat := comparison.experiments[name].algorithm.caveat:
            notes.append(f"{caveat}.")
        mine = [run for run in runs if run["algorithm"] == name]
        if chosen := {run["seed"]: run["clusters_chosen"] for run in mine if run.get("clusters_chosen") is not None}:
            seeds = f" (seeds {join_ids(list(chosen))})" if len(chosen) > 1 else ""
            notes.append(f"{name}: num_clusters: auto chose {join_ids(list(chosen.values()))}{seeds}.")
        stopped = sum(bool(run.get("stopped")) for run in mine)
        unplaced = sum(bool(run.get("not_scored")) for run in mine)
        if stopped:
            notes.append(f"{name}: {stopped} of {len(mine)} runs stopped early; their last round counts.")
        if unplaced:
            notes.append(
                f"{name}: in {unplaced} of {len(mine)} runs some clients have no model at the end and are not scored "
                "(evaluation.clients: all scores them)."
            )
        for run in mine:
            if run["status"] == "failed":
                notes.append(f"{name}, seed {run['seed']}, failed: {run['error']}")
    return notes
