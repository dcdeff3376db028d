"""Runs the rounds of one run: evaluates, writes files, saves, and stops early."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import torch

from lit_cfl.algorithms.base import Info, State
from lit_cfl.data import FederatedData
from lit_cfl.data.federated import lists_of, with_lists
from lit_cfl.engines.check_task import note_loss_above_guessing
from lit_cfl.errors import Interrupted, Notice
from lit_cfl.evaluation import Evaluation
from lit_cfl.experiment import PreparedRun
from lit_cfl.local_work import LocalCosts
from lit_cfl.metric_names import Row
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.rounds import Round, Traffic
from lit_cfl.run_totals import RunTotals, is_due
from lit_cfl.runs.client_rounds import columns_of
from lit_cfl.runs.final_files import write_end
from lit_cfl.runs.resume import differences, require_agreement, require_recorded_config, require_same_digests
from lit_cfl.runs.rows import cluster_rows, membership_arrays, shift_rows, snapshot
from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.storage.checkpoint import Checkpoint, state_from_dict, state_to_dict
from lit_cfl.storage.config_file import write_config
from lit_cfl.tracking.artifacts import Models, cluster_models


class Recorder:
    """Runs a prepared experiment, and writes its directory.

    Args:
        prepared: Prepared experiment.
        directory: Directory of the run's files.
        checkpoint: Checkpoint of the run.
    """

    def __init__(self, prepared: PreparedRun, directory: RunDirectory, checkpoint: Checkpoint) -> None:
        self.prepared, self.directory, self.checkpoint = prepared, directory, checkpoint
        self.experiment, self.engine = prepared.experiment, prepared.engine
        self._recorded: Mapping[str, Any] = prepared.config()  # content of config.yaml
        self.shifting = bool(self.experiment.data.shift)
        self._start = self._saved = monotonic()
        self._seconds_before = 0.0  # seconds of earlier processes of this run
        self._after: Round | None = None  # the round of the checkpoint that was restored
        self._latest: tuple[Round, Evaluation] | None = None
        self._clusters: list[Row] = []  # rows of clusters.csv of the latest round
        self._ended = False  # True if the latest round is the last
        self._unsaved: tuple[dict[str, Any], State, FederatedData] | None = None
        self._notices: Sequence[str] = ()  # of this process
        self._prepared = 0  # number of those that were given before the first round
        self._notices_before: Sequence[str] = ()  # of the rounds of earlier processes

    def keep(self, notices: Sequence[str]) -> None:
        """Keeps the notices of this process, to which others are added while the run lasts.

        A resumed run is prepared again, and gives those of its preparation again, perhaps for another number of rounds.
        """
        self._notices, self._prepared = notices, len(notices)

    @property
    def _notices_of_rounds(self) -> list[str]:
        return list(dict.fromkeys([*self._notices_before, *self._notices[self._prepared :]]))

    @property
    def completed(self) -> int:
        """The number of rounds completed before `run` starts."""
        return 0 if self._after is None else self._after.number

    def restore(self, saved: dict[str, Any], stored: Mapping[str, Any], new_plan: bool) -> None:
        """Restores the run from a checkpoint.

        Args:
            saved: Content of the checkpoint.
            stored: Content of `config.yaml`.
            new_plan: Allow another plan than that of the checkpoint.

        Raises:
            InputError: the checkpoint belongs to another configuration or to other data.
        """
        require_recorded_config(self.directory.path, saved, stored)
        require_agreement(self.checkpoint.path, json.loads(saved["config"]), self.prepared.config(), new_plan)
        require_same_digests(self.checkpoint.path, saved["fingerprint"], self.prepared.fingerprint)
        self._recorded = stored
        self.prepared.totals = RunTotals.restore(saved)
        self._seconds_before, self._notices_before = saved["seconds"], saved.get("notices", ())
        state = state_from_dict(self.experiment.algorithm.state_type, saved["state"])
        data = with_lists(self.prepared.data, saved["lists"]) if saved["lists"] else self.prepared.data
        costs = LocalCosts(*saved["local"])
        self._after = Round(saved["round"] - 1, state, Info(), data, Traffic(*saved["traffic"]), costs=costs)

    def run(self, *watchers: Callable[[Row], None]) -> str | None:
        """Runs the remaining rounds and passes metrics rows to watchers. Returns why the run stopped early, or None."""
        rows = self.directory.rows
        if self._after is not None and rows and rows[-1]["round"] == self._after.number:
            reason = self._reason_to_stop(self._after.number)  # the run may have been killed just before its end
            if reason is not None:
                return reason
        since = self._start
        try:
            for r in self.prepared.rounds(self._after):
                self._after = None  # frees its state
                self._write_tables(r)
                last = r.number == self.experiment.rounds
                if evaluated := last or r.number % self.experiment.evaluation.every == 0:
                    row = self._add_row(r, monotonic() - since)
                reason = self._reason_to_stop(r.number) if evaluated else None
                self._ended = last or reason is not None
                if evaluated:
                    for watcher in watchers:
                        watcher(row)
                    since = monotonic()
                self._unsaved = self._content(r), r.state, r.data
                if last or reason or monotonic() - self._saved >= self.experiment.checkpoint.every_seconds:
                    self._save()
                if reason:
                    return reason
        except Interrupted:
            self._save()  # saves the last completed round
            raise
        return None

    def _seconds_elapsed(self) -> float:
        return self._seconds_before + monotonic() - self._start

    def _reason_to_stop(self, number: int) -> str | None:
        stop = self.experiment.stop
        if stop is None or number >= self.experiment.rounds:
            return None
        return stop.reason(self.directory.rows, self._seconds_elapsed(), self.engine.scores)

    def _add_row(self, r: Round, training_seconds: float) -> Row:
        """Evaluates a round, and writes its row."""
        start = monotonic()
        row = self._evaluate(r) | {"time/training_seconds": training_seconds}
        row |= {"time/evaluation_seconds": monotonic() - start, "time/elapsed_seconds": self._seconds_elapsed()}
        return self.directory.add_row(row)

    def _evaluate(self, r: Round) -> Row:
        """Evaluates a round; returns its row without the times."""
        self._latest = None  # frees the scores of all clients in the previous round
        evaluation = self.prepared.score(r)
        self._set_latest(r, evaluation)
        self.directory.clusters.append(self._clusters)
        if self.experiment.evaluation.per_client:
            self.directory.write_client_round(r.number, columns_of(r.number, evaluation))
        return self.prepared.row(r, evaluation)

    def _set_latest(self, r: Round, evaluation: Evaluation) -> None:
        self._latest = r, evaluation
        self._clusters = list(cluster_rows(r.number, evaluation, r.info.clusters))

    def _write_tables(self, r: Round) -> None:
        """Writes a round's shifts, snapshot and rows of the algorithm's own tables, even without an evaluation."""
        if r.moves:
            self.directory.shifts.append(shift_rows(r.number, r.moves))
        for name, found in r.info.tables.items():
            self.directory.own[name].append({"round": r.number} | line for line in found)
        if (compared := r.info.similarity) is not None and self.prepared.totals.compared == r.number:
            clusters = self.experiment.algorithm.serve(r.state, compared.clients).index
            self.directory.write_snapshot(r.number, snapshot(r, compared, clusters))

    def _content(self, r: Round) -> dict[str, Any]:
        """Collects the content of a checkpoint, except for the algorithm's state and the clients' lists."""
        return {
            "config": json.dumps(self.prepared.config()),
            "round": r.number,
            "traffic": [r.traffic.down, r.traffic.up, r.traffic.bytes_up],
            "local": [r.costs.steps, r.costs.examples, r.costs.scored],
            "fingerprint": self.prepared.fingerprint,
            "environment": self.directory.environment,
            "digests": dict(self.directory.digests),
            **self.directory.texts(),
            "seconds": self._seconds_elapsed(),
            "notices": self._notices_of_rounds,
            **self.prepared.totals.content(),
        }

    def write_config(self) -> None:
        """Writes `config.yaml` of a resumed run, after saving the checkpoint again if an option has changed."""
        if self._after is not None and differences(self._recorded, self.prepared.config()):
            self._unsaved = self._content(self._after), self._after.state, self._after.data
            self._save()
        else:
            self._write_config()

    def _write_config(self) -> None:
        self._recorded = self.prepared.config()
        write_config(self.directory.path, self._recorded)

    def _save(self) -> None:
        if self._unsaved is not None:
            content, state, data = self._unsaved
            lists = lists_of(data) if self.shifting else None  # computed only here, since it sorts all lists
            more = {"lists": lists, "config before": json.dumps(self._recorded)}
            self.checkpoint.save(content | more, state_to_dict(state))
            self._unsaved = None
            if self.prepared.config() != self._recorded:  # for example, memory ran out and the engine changed its plan
                self._write_config()
        self._saved = monotonic()

    def finish(self, stopped: str | None) -> Row:
        """Writes the final files. Returns the summary."""
        if self._latest is None and self._after is not None:
            # the previous process ended between its last round and this point
            self._set_latest(self._after, self.prepared.score(self._after))
        if self._latest is None:
            raise RuntimeError("finish() comes after run()")
        self._ended = True
        r, evaluation = self._latest
        if not self.prepared.totals.trained:
            self._warn_untrained(r.number)
        note_loss_above_guessing(self.engine.template, r.info.loss, r.data.examples.num_labels)
        memberships = self.prepared.totals.memberships_with(r.number)
        notes = list(dict.fromkeys([*self._notices[: self._prepared], *self._notices_of_rounds]))
        more = {"stopped": stopped, "notes": notes}
        return write_end(self.prepared, self.directory, r, evaluation, memberships, self.prepared.totals.best, more)

    def _warn_untrained(self, rounds: int) -> None:
        dropout = self.experiment.dropout
        why = f"dropout is {dropout}; lower it" if dropout else "clients/skipped in metrics.csv counts those left out"
        warnings.warn(
            f"no client trained in any of the {rounds} rounds: the models are the initial ones ({why})",
            Notice,
            stacklevel=2,
        )

    def round_view(self) -> RoundView | None:
        """Returns a view of the run after the latest evaluation; None if no pictures are due."""
        rows, every = self.directory.rows, self.experiment.tracking.snapshots_every
        before = rows[-2]["round"] if len(rows) > 1 else None
        if self._latest is None or not (self._ended or is_due(self._latest[0].number, before, every)):
            return None
        r, evaluation = self._latest
        test = evaluation.scores.get("test")
        kept = self.prepared.totals.memberships_with(r.number)
        tables = self.directory.own | ({"shift": self.directory.shifts} if self.shifting else {})
        values = torch.empty(0) if test is None else test.of_clients()
        return RoundView(
            self.directory.path,
            self.engine.scores[0],
            self._ended,
            memberships=lambda: membership_arrays(kept, r.data),
            cluster=evaluation.index.numpy(),
            values=values.numpy(),
            clusters=self._clusters,
            tables={name: (table.path, table.size) for name, table in tables.items()},
        )

    def models(self) -> Models:
        """Returns the models that clients use after the latest round, by cluster."""
        if self._latest is None:
            raise RuntimeError("models() comes after run()")
        r, _ = self._latest
        return cluster_models(self.experiment.algorithm, r.state, self.engine, r.data.population)
