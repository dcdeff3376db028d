"""Values that change in the middle of a run, as population based training sets them: recorded, and replayed."""

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor

from lit_cfl.algorithms import FedAvg
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, State
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.local_work import LocalWork
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.config_file import recorded_run_id, write_config
from lit_cfl.storage.digests import SUMS
from lit_cfl.tune.record import RECORD
from lit_cfl.tune.time_limit import FILE as TOO_LONG

Stages = list[tuple[int, dict[str, Any]]]  # the first round, the values that hold from it on
_STAGES = "stages.json"
# of a directory, what a run does not go on from:
_LEFT_OUT = (RECORD, TOO_LONG, ".lock", "summary.json", SUMS, "error.txt", "wandb", "pictures", ".*.tmp")
_OF_ITS_OWN = ("wandb", "pictures")  # what a trial keeps that goes on from itself


@dataclass(frozen=True)
class Stage:
    """An algorithm from a round on.

    Args:
        first_round: from 1.
        algorithm: with the values that hold from then on.
    """

    first_round: int = 1
    algorithm: Algorithm = field(default_factory=FedAvg)


@dataclass(frozen=True)
class Scheduled(Algorithm):
    """An algorithm whose hyper-parameters change at given rounds.

    Args:
        stages: one or more of the same algorithm, by rising first rounds; the first begins at 1.
    """

    stages: list[Stage] = field(default_factory=lambda: [Stage()])

    def __post_init__(self) -> None:
        begins = [stage.first_round for stage in self.stages]
        if not begins or begins[0] != 1 or begins != sorted(set(begins)):
            raise InputError(f"stages begin at rounds {begins}; the first is 1, each later one higher")
        kinds = sorted({type(stage.algorithm).__name__ for stage in self.stages})
        if len(kinds) > 1:
            raise InputError(f"stages are of {', '.join(kinds)}; only values may change, not the algorithm")

    def __getattribute__(self, name: str) -> Any:
        """What a class says of itself is the scheduled algorithm's."""
        if name in ("state_type", "score_columns", "tables", "caveat"):
            return getattr(self.stages[0].algorithm, name)
        return super().__getattribute__(name)

    def at(self, round: int) -> Algorithm:
        """The algorithm after so many completed rounds."""
        return [stage.algorithm for stage in self.stages if stage.first_round <= round + 1][-1]

    def check(self, work: LocalWork) -> None:
        for stage in self.stages:
            stage.algorithm.check(work)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        return self.at(0).init(work, rng)

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        return self.at(work.round).round(state, cohort, work, rng)

    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        return self.at(work.round).place(state, clients, work, rng)

    def serve(self, state: State, clients: Tensor) -> Assignment:
        return self.stages[-1].algorithm.serve(state, clients)  # a look-up in the state

    def needs_all(self, round: int) -> bool:
        return self.at(round).needs_all(round)

    def first_clustering_round(self) -> int:
        return max(stage.algorithm.first_clustering_round() for stage in self.stages)


def with_stages(path: Path, stages: Stages, experiments: Sequence[tuple[int, Experiment]]) -> Experiment:
    """One experiment of several that differ in their algorithm's values; its stages are noted in its directory."""
    algorithm = Scheduled([Stage(first, experiment.algorithm) for first, experiment in experiments])
    content = [{"first_round": f, "algorithm": e.described()["algorithm"]} for f, e in experiments]
    described = {"class_path": "lit_cfl.tune.replay.Scheduled", "init_args": {"stages": content}}
    last = experiments[-1][1]
    path.mkdir(parents=True, exist_ok=True)
    (path / _STAGES).write_text(json.dumps(stages))
    config = last.described() | {"algorithm": described}
    _rewrite(path, {key: config[key] for key in ("name", "tracking", "algorithm")})
    return replace(last, algorithm=algorithm, config=config)


def saved_copy(path: Path, target: Path) -> None:
    """Copies what a run can be gone on from: nothing that another thread may be writing."""
    shutil.copytree(path, target, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True)


def copied(source: Path, path: Path, values: Mapping[str, Any]) -> Stages:
    """Takes over a run with these values from its next round on; another trial's under an identity of its own.

    Args:
        source: what `saved_copy` made.
        path: of the trial: what it held goes.

    Returns:
        the stages of the whole run.
    """
    own = (path / "config.yaml").exists() and recorded_run_id(path) == recorded_run_id(source)
    clear(path, _OF_ITS_OWN if own else ())
    shutil.copytree(source, path, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True)
    if not own:
        _rewrite(path, {}, secrets.token_hex(4))
    stages: Stages = [(first, own) for first, own in json.loads((path / _STAGES).read_text())]
    saved = Checkpoint(path).load()
    following = 1 if saved is None else int(saved["round"]) + 1
    if stages[-1][1] != values:
        stages = [stage for stage in stages if stage[0] < following]
        stages.append((following, dict(values)))
    return stages


def kept_stages(path: Path) -> Stages | None:
    """The stages of a trial that was begun before its study was resumed; None where there are none, or half of them."""
    try:
        return [(first, own) for first, own in json.loads((path / _STAGES).read_text())] or None
    except (OSError, ValueError, TypeError):
        return None


def clear(path: Path, kept: Sequence[str] = ()) -> None:
    """Empties a directory but for what is kept, and for what the study notes of the trial."""
    for entry in path.iterdir() if path.exists() else ():
        if entry.name in (*kept, RECORD, TOO_LONG):
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _rewrite(path: Path, changed: Mapping[str, Any], new_id: str | None = None) -> None:
    """Changes a run that is about to be gone on with.

    Args:
        path: of its directory; where there is no run nothing is done.
        changed: options of its configuration.
        new_id: that trackers know it by; None = as before.
    """
    if not (path / "config.yaml").exists():
        return
    run_id = new_id or recorded_run_id(path)
    write_config(path, yaml.safe_load((path / "config.yaml").read_text()) | changed, run_id)
    checkpoint = Checkpoint(path)
    saved = checkpoint.load()
    if saved is not None:
        content = {key: value for key, value in saved.items() if key not in ("format", "rows", "state")}
        content["config"] = json.dumps(json.loads(saved["config"]) | changed)
        content |= {"run_id": run_id, "environment": saved["environment"] | {"run_id": run_id}}
        checkpoint.save(content, cast(Mapping[str, Any], saved["state"]))
