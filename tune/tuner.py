"""Connects a study to Ray Tune: the tuner, and the source of its trials."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune as ray_tune
from ray.tune.search import Searcher

from lit_cfl.errors import count_noun
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tune.callbacks import EndOfStudy, StudyCallback, full_disk_ends_study, name_of
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.objective import TRAFFIC
from lit_cfl.tune.record import CLIENTS, ERROR, FINISHED, FINISHED_STATUS, NUMBER, ROUNDS, RUNNING, SECONDS, TrialRecord
from lit_cfl.tune.schedulers import EarlierTrial, make_scheduler, stops_early
from lit_cfl.tune.spaces import format_values
from lit_cfl.tune.trials import Trials

_KEPT = (ROUNDS, FINISHED, ERROR, SECONDS, TRAFFIC, CLIENTS)
_KEPT_GROUPS = ("val/", "seed ")


class TrialSource(Searcher):
    """Gives Ray Tune the trials of a study, each with number and values, and prints a line when a trial ends.

    Args:
        trials: The study's trials.
        metric: Metric by which trials are judged.
        say: Prints a line.
    """

    def __init__(self, trials: Trials, metric: str, say: Callable[[str], None]) -> None:
        super().__init__()
        self._trials, self._judged_by, self._say = trials, metric, say
        self._numbers: dict[str, int] = {}  # trial numbers by Ray's id

    def __reduce__(self) -> tuple[type[Searcher], tuple[()]]:
        return Searcher, ()  # pickles nothing for Ray's records, which are never read

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        with full_disk_ends_study():
            record = self._trials.next()
        if record is None:
            return Searcher.FINISHED if self._trials.over else None
        self._numbers[trial_id] = record.number
        return {NUMBER: record.number, **record.values}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._trials.report(self._numbers[trial_id], _figures(result))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        number, figures = self._numbers[trial_id], _figures(result or {})
        with full_disk_ends_study():
            self._trials.end(number, figures, died=error)
        if error or ROUNDS in figures:  # otherwise the study ended before the trial started
            self._say(end_line(self._trials, self._trials.records[number], self._judged_by))

    def save(self, checkpoint_path: str) -> None:
        pass  # nothing to save: a resumed study reads only the records of the trials

    def restore(self, checkpoint_path: str) -> None:
        pass


def end_line(trials: Trials, record: TrialRecord, metric: str) -> str:
    """Returns the line for a trial that has ended.

    Args:
        trials: The study's trials.
        record: The trial.
        metric: Metric by which trials are judged.
    """
    how = describe_end(record.last_result, metric)
    return f"{trials.num_over}/{trials.limit} {record.trial_id} {how} ({format_values(record.values)})"


def describe_end(last_result: Mapping[str, Any], metric: str) -> str:
    """Describes how a trial ended.

    Args:
        last_result: Last values that the trial reported.
        metric: Metric by which the trial is judged.
    """
    rounds = count_noun(last_result.get(ROUNDS, 0), "round")
    if last_result.get(ERROR):
        return f"failed after {rounds}: {str(last_result[ERROR]).splitlines()[0]}"
    how = "finished" if last_result.get(FINISHED) else f"stopped after {rounds}"
    return f"{how}: {metric} {last_result[metric]:.4f}"


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key in _KEPT or key.startswith(_KEPT_GROUPS)}


def earlier_trials(prepared: PreparedStudy, trials: Trials) -> list[EarlierTrial]:
    """Returns the trials of a resumed study with the results that they had reported to its scheduler."""
    if not stops_early(prepared.study):
        return []
    trained = [record for record in trials.records.values() if record.repeats is None]
    return [
        EarlierTrial(
            record.trial_id,
            {NUMBER: record.number, **record.values},
            _results(prepared, record, trials.folder / record.trial_id),
            ended=record.status != RUNNING,
        )
        for record in trained
    ]


def _results(prepared: PreparedStudy, record: TrialRecord, path: Path) -> list[dict[str, Any]]:
    job, last, metric = prepared.job, record.last_result, prepared.job.objective.metric
    file = (path if len(job.seeds) == 1 else path / f"seed-{job.seeds[0]}") / "metrics.csv"
    # the last row may be incomplete after a kill
    rows = read_table(file, file.read_bytes().rfind(b"\n") + 1) if file.exists() else []
    is_running = record.status == RUNNING
    # for a finished trial, the last result is taken from the record
    end = prepared.default.rounds if is_running else last.get(ROUNDS, 0)
    results = [
        {ROUNDS: row["round"], metric: row[metric]}
        for row in rows
        if row["round"] < end and row.get(metric) is not None
    ]
    return results if is_running or not {ROUNDS, metric} <= last.keys() else [*results, dict(last)]


_WORKER_DEATHS = 3  # worker deaths that one trial survives
_NO_LIMIT = -1  # Ray's value for no limit: the study itself decides when to stop


def new_tuner(
    prepared: PreparedStudy,
    trials: Trials,
    trainable: Any,
    records: Path,
    say: Callable[[str], None],
    after_step: Callable[[], None],
) -> ray_tune.Tuner:
    """Makes the tuner that runs a study's trials.

    Args:
        prepared: Checked study.
        trials: Trials of the study.
        trainable: Function or class that Ray Tune runs.
        records: Folder of Ray's records, which are never read again.
        say: Prints a line.
        after_step: Called after each step of Ray, in which a trial may have ended.
    """
    study, limits, objective = prepared.study, prepared.study.limits, prepared.job.objective
    reached = [r for r in trials.records.values() if r.status == FINISHED_STATUS]
    end = EndOfStudy(objective, limits.target, [r.last_result[objective.metric] for r in reached])
    return ray_tune.Tuner(
        trainable,
        tune_config=ray_tune.TuneConfig(
            metric=objective.metric,
            mode=objective.mode,
            num_samples=_NO_LIMIT,
            search_alg=TrialSource(trials, objective.metric, say),
            scheduler=make_scheduler(
                study, prepared.default.rounds, prepared.first_clustering_round, earlier_trials(prepared, trials)
            ),
            time_budget_s=None if limits.minutes is None else 60 * limits.minutes,
            reuse_actors=True,
            trial_dirname_creator=name_of,
        ),
        run_config=ray_tune.RunConfig(
            name=records.name,
            storage_path=str(records.parent),
            failure_config=ray_tune.FailureConfig(max_failures=_WORKER_DEATHS),
            stop=end,
            callbacks=[StudyCallback(say, after_step)],
            verbose=0,
        ),
    )
