"""Follows one run: evaluates, writes its files, feeds the loggers, saves, and stops it early."""

import json
from collections.abc import Callable
from copy import copy
from importlib.metadata import version
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lit_cfl.agreement import silhouette
from lit_cfl.algorithms.base import Info, State
from lit_cfl.checkpoint import Checkpoint, state_from_dict, state_to_dict
from lit_cfl.data.lists import lists_of, with_lists
from lit_cfl.errors import Interrupted
from lit_cfl.evaluation import (
    Evaluation,
    evaluate,
    place_for_scoring,
    score_clients,
    weighted_accuracy,
)
from lit_cfl.experiment import Prepared
from lit_cfl.look import Look
from lit_cfl.resume import require_agreement, require_same_data
from lit_cfl.rounds import Round, Traffic
from lit_cfl.run_contents import (
    Row,
    client_rows,
    cluster_rows,
    members,
    membership_arrays,
    shift_rows,
    snapshot,
)
from lit_cfl.run_directory import RunDirectory, write_config, write_json
from lit_cfl.tracking.artifacts import Models, cluster_models

_CARRIED = ("_members", "_memberships", "_best", "_silhouette", "_skipped", "_compared", "_shifted")  # into checkpoints


class Recorder:
    """Runs a prepared experiment into its directory.

    Args:
        prepared: what to run.
        directory: where its files go.
        checkpoint: where its state goes.
    """

    def __init__(self, prepared: Prepared, directory: RunDirectory, checkpoint: Checkpoint) -> None:
        self.prepared, self.directory, self.checkpoint = prepared, directory, checkpoint
        self.experiment, self.engine = prepared.experiment, prepared.engine
        self._recorded_plan = self.engine.plan
        self.shifting = bool(self.experiment.data.shift)
        self._begun = self._saved = monotonic()
        self._seconds_before = 0.0  # of the processes that this one goes on from
        self._after: Round | None = None  # what this process goes on from
        self._latest: tuple[Round, Evaluation] | None = None
        self._over = False  # whether the latest round is the last
        self._unsaved: tuple[dict[str, Any], State] | None = None
        self._members: Tensor | None = None  # cluster of each client at the last evaluation, -1 = none
        self._memberships: dict[int, Tensor] = {}  # the same for some rounds
        self._best: float | None = None  # test accuracy, among rounds with full coverage
        self._silhouette: float | None = None  # not in a row yet
        self._skipped = 0  # not in a row yet
        self._compared: int | None = None  # round of the last snapshot
        self._shifted = [0, 0]  # clients and examples, not in a row yet

    @property
    def next_round(self) -> int:
        """The round that `run` begins with."""
        return 0 if self._after is None else self._after.number + 1

    def restore(self, saved: dict[str, Any], new_plan: bool) -> None:
        """Goes on where a checkpoint was made.

        Raises:
            InputError: it is of another configuration, or (unless `new_plan`) of another plan.
        """
        require_agreement(self.checkpoint.path, json.loads(saved["config"]), self.prepared.config(), new_plan)
        require_same_data(self.checkpoint.path, saved, self.prepared)
        for name in _CARRIED:
            setattr(self, name, saved[name.lstrip("_")])
        self._seconds_before = saved["seconds"]
        state = state_from_dict(self.experiment.algorithm.state_type, saved["state"])
        data = with_lists(self.prepared.data, saved["lists"]) if saved["lists"] else self.prepared.data
        self._after = Round(saved["round"], state, Info(), data, Traffic(*saved["traffic"]))

    def run(self, *watchers: Callable[[Row], None]) -> str | None:
        """The rounds that are left; each row goes to the watchers. Returns why the run stopped early, or None."""
        rows = self.directory.rows
        if self._after is not None and rows and rows[-1]["round"] == self._after.number:
            reason = self._reason_to_stop(self._after.number)  # it may have been killed just before its end
            if reason is not None:
                return reason
        since = self._begun
        try:
            for r in self.prepared.rounds(self._after):
                self._skipped += r.info.skipped
                self._log_shift(r)
                for name, found in r.info.tables.items():
                    self.directory.own[name].append({"round": r.number} | line for line in found)
                self._compare(r)
                last = r.number == self.experiment.rounds - 1
                if evaluated := last or (r.number + 1) % self.experiment.evaluation.every == 0:
                    trained = monotonic()
                    row = self._evaluate(r) | {"time/training_seconds": trained - since}
                    since = monotonic()
                    row |= {"time/evaluation_seconds": since - trained, "time/elapsed_seconds": self._elapsed()}
                    written = self.directory.add_row(row)
                reason = self._reason_to_stop(r.number) if evaluated else None
                self._over = last or reason is not None
                if evaluated:
                    for watcher in watchers:
                        watcher(written)
                    since = monotonic()
                self._unsaved = self._content(r), r.state
                if last or reason or monotonic() - self._saved >= self.experiment.checkpoint.every_seconds:
                    self._save()
                if reason:
                    return reason
        except Interrupted:
            self._save()  # the last round that is whole
            raise
        return None

    def _elapsed(self) -> float:
        return self._seconds_before + monotonic() - self._begun

    def _reason_to_stop(self, round: int) -> str | None:
        stop = self.experiment.stop
        if stop is None or round >= self.experiment.rounds - 1:
            return None
        return stop.reason(self.directory.rows, self._elapsed())

    def _evaluate(self, r: Round) -> Row:
        """Evaluates a round; returns its row but for the clocks."""
        evaluation = self._evaluation_of(r)
        self._latest = r, evaluation
        row: Row = (
            {"round": r.number, "train/loss": r.info.loss} | evaluation.metrics | r.info.scores | self._traffic(r)
        )
        row |= {"clients/skipped": self._skipped, "clusters/silhouette": self._silhouette}
        if self.shifting:
            row |= {"shift/clients": self._shifted[0], "shift/examples": self._shifted[1]}
        self._skipped, self._silhouette, self._shifted = 0, None, [0, 0]
        if evaluation.full_coverage and "test/weighted_accuracy" in row:
            self._best = max(row["test/weighted_accuracy"], self._best or 0.0)
        self._members = members(evaluation, r.data.num_clients)
        if _due(r.number, max(self._memberships, default=None), self.experiment.tracking.snapshots_every):
            self._memberships[r.number] = self._members
        self.directory.clusters.append(cluster_rows(r.number, evaluation, r.info.clusters))
        return row

    def _evaluation_of(self, r: Round) -> Evaluation:
        return evaluate(
            self.experiment.algorithm, r.state, self.engine, r.data, self.experiment.evaluation,
            round=r.number, before=self._members,
        )  # fmt: skip

    def _log_shift(self, r: Round) -> None:
        for moved in r.moves:
            self._shifted = [self._shifted[0] + len(moved.clients), self._shifted[1] + int(moved.examples.sum())]
        if r.moves:
            self.directory.shifts.append(shift_rows(r.number, r.moves))

    def _compare(self, r: Round) -> None:
        """Keeps what the algorithm found when it compared clients, the first time and then now and again."""
        every = self.experiment.tracking.snapshots_every
        if r.info.similarity is None or not _due(r.number, self._compared, every):
            return
        self._compared = r.number
        clusters = self.experiment.algorithm.serve(r.state, r.info.similarity.clients).index
        self._silhouette = silhouette(r.info.similarity.matrix, clusters)
        self.directory.write_arrays(f"snapshots/{r.number}.npz", snapshot(r, r.info.similarity, clusters))

    def _traffic(self, r: Round) -> Row:
        mib = self.engine.layout.num_columns * self.engine.plan.dtype.itemsize / 2**20
        return {
            "traffic/models_down": r.traffic.down,
            "traffic/models_up": r.traffic.up,
            "traffic/mib": (r.traffic.down + r.traffic.up) * mib,
            "traffic/round_models_down": r.info.down,
            "traffic/round_models_up": r.info.up,
            "traffic/round_mib": (r.info.down + r.info.up) * mib,
        }

    def _content(self, r: Round) -> dict[str, Any]:
        """What a checkpoint holds beside the state: all that the rest of the run depends on."""
        return {
            "version": version("lit-cfl"),
            "config": json.dumps(self.prepared.config()),
            "round": r.number,
            "traffic": [r.traffic.down, r.traffic.up],
            "fingerprint": self.prepared.fingerprint,
            "lists": lists_of(r.data) if self.shifting else None,
            "tables": self.directory.marks(),
            "seconds": self._elapsed(),
            **{name.lstrip("_"): copy(getattr(self, name)) for name in _CARRIED},
        }

    def save_again(self) -> None:
        """Saves what was restored, now under the present plan."""
        if self._after is not None:
            self._unsaved = self._content(self._after), self._after.state
            self._save()

    def _save(self) -> None:
        if self._unsaved is not None:
            content, state = self._unsaved
            if self.engine.plan != self._recorded_plan:  # it ran out of memory
                write_config(self.directory.path, self.prepared.config())
                self._recorded_plan = self.engine.plan
            self.directory.sync()
            self.checkpoint.save(content, state_to_dict(state))
            self._unsaved = None
        self._saved = monotonic()

    def finish(self, stopped: str | None) -> Row:
        """Writes what is known at the end, and returns the summary."""
        if self._latest is None:  # the process before this one ended between its last round and here
            if self._after is None:
                raise RuntimeError("finish() comes after run()")
            self._latest = self._after, self._evaluation_of(self._after)
        self._over = True
        r, evaluation = self._latest
        self._memberships[r.number] = members(evaluation, r.data.num_clients)
        self.directory.write_arrays("memberships.npz", membership_arrays(self._memberships, r.data))
        newcomers = self._score_newcomers(r)
        self.directory.write_clients(client_rows(r.data, [evaluation, *([newcomers] if newcomers else [])]))
        summary: Row = {"algorithm": type(self.experiment.algorithm).__name__, "seed": self.prepared.seed}
        summary |= {"partition": self.prepared.fingerprint["partition"], "stopped": stopped} | self.directory.rows[-1]
        summary["test/max_weighted_accuracy"] = self._best
        known = [row["clusters/silhouette"] for row in self.directory.rows if row["clusters/silhouette"] is not None]
        summary["clusters/silhouette"] = known[-1] if known else None  # known only where clients were compared
        if newcomers and "test" in newcomers.scores:
            test = newcomers.scores["test"]
            summary["test/newcomers_accuracy"] = weighted_accuracy(test.correct, test.count)
        write_json(self.directory.path / "summary.json", summary)
        return summary

    def look(self) -> Look | None:
        """What there is to see after the latest evaluation; None where nothing is due."""
        if self._latest is None or not (self._over or self._latest[0].number in self._memberships):
            return None
        r, evaluation = self._latest
        test = evaluation.scores.get("test")
        kept = self._memberships | {r.number: members(evaluation, r.data.num_clients)}
        shifts = {"shift": self.directory.shifts} if self.shifting else {}
        return Look(
            r.number,
            self._over,
            memberships=lambda: membership_arrays(kept, r.data),
            cluster=evaluation.index.numpy(),
            accuracy=(torch.empty(0) if test is None else test.accuracy).numpy(),
            clusters=list(cluster_rows(r.number, evaluation, r.info.clusters)),
            snapshots=self.directory.path / "snapshots",
            compared=self._compared,
            tables={name: table.path for name, table in (self.directory.own | shifts).items()},
        )

    def models(self) -> Models:
        """The models that clients use after the latest round, by cluster."""
        if self._latest is None:
            raise RuntimeError("models() comes after run()")
        r, _ = self._latest
        return cluster_models(self.experiment.algorithm, r.state, self.engine, r.data.population)

    def _score_newcomers(self, r: Round) -> Evaluation | None:
        """Places the clients held out of training, and scores them; the state keeps nothing of it."""
        if r.data.newcomers is None:
            return None
        clients = r.data.newcomers.nonzero().flatten()
        placed = place_for_scoring(self.experiment.algorithm, r.state, self.engine, r.data, clients, r.number)
        clients, index = clients[placed.index >= 0], placed.index[placed.index >= 0]
        scores = score_clients(self.engine, placed.models, index, clients, r.data, "test")
        return Evaluation(clients, index, {"test": scores}, {}, full_coverage=True)


def _due(round: int, last: int | None, every: int) -> bool:
    """Whether a new stretch of `every` rounds has begun since the last time."""
    return last is None or round // every > last // every
