"""Where the metrics of a run go beside its files: Weights & Biases, or any Lightning logger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger

from lit_cfl.errors import InputError


@dataclass(frozen=True)
class Tracking:
    """What is tracked where.

    Args:
        wandb: `online`, `offline` (sync later) or `disabled` (wandb need not be installed).
        project, entity, group, tags: of the W&B run.
        loggers: any further Lightning loggers by `class_path`; each run (seed, baseline) builds its own.
        snapshots_every: rounds between two entries of `memberships.npz` and `snapshots/`, 1 or more.
    """

    wandb: Literal["online", "offline", "disabled"] = "disabled"
    project: str = "lit-cfl"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    loggers: list[Callable[[], Logger]] = field(default_factory=list)
    snapshots_every: int = 10

    def __post_init__(self) -> None:
        if self.snapshots_every < 1:
            raise InputError(f"tracking.snapshots_every is {self.snapshots_every}; it must be 1 or more")


class Trackers:
    """The loggers of one run.

    Args:
        tracking: what to track where.
        name: of the run.
        path: the run directory; W&B keeps its files there.
        config: logged as hyper-parameters.
        run_id: of the W&B run; a resumed run goes on under it.
        logged: rounds below this one were logged before the run was resumed, and are not logged again.
    """

    def __init__(
        self, tracking: Tracking, name: str, path: Path, config: Mapping[str, Any], run_id: str | None, logged: int = 0
    ) -> None:
        self._logged = logged
        self._loggers = [build() for build in tracking.loggers]
        self._wandb = None if tracking.wandb == "disabled" else _WandbRun(tracking, name, path, run_id)
        if self._wandb is not None:
            self._loggers.append(self._wandb.logger)
        for logger in self._loggers:
            logger.log_hyperparams({key: value for key, value in config.items() if key != "code"})  # no paths

    def log(self, row: Mapping[str, Any]) -> None:
        """Logs a row of `metrics.csv`; blanks are left out."""
        if row["round"] < self._logged:
            return
        numbers = {name: value for name, value in row.items() if value is not None}
        for logger in self._loggers:
            logger.log_metrics(numbers, step=int(row["round"]))
            logger.save()

    def finish(self, status: Literal["success", "failed"]) -> None:
        for logger in self._loggers:
            logger.finalize(status)
        if self._wandb is not None:
            self._wandb.finish(status)


class _WandbRun:
    """One run of Weights & Biases, ended before the next begins: a logger would go on with one that is open."""

    def __init__(self, tracking: Tracking, name: str, path: Path, run_id: str | None) -> None:
        try:
            import wandb
            from lightning.pytorch.loggers import WandbLogger
        except ModuleNotFoundError as error:
            raise InputError("tracking.wandb needs wandb: pip install wandb, or set it to disabled") from error
        try:
            self.run = wandb.init(
                id=run_id,
                resume="allow",
                name=name,
                dir=path,
                mode="offline" if tracking.wandb == "offline" else "online",
                project=tracking.project,
                entity=tracking.entity,
                group=tracking.group,
                tags=tracking.tags,
                settings=wandb.Settings(silent=True),
            )
        except wandb.Error as error:
            raise InputError(f"W&B: {error}; log in with `wandb login`, or set tracking.wandb to offline") from error
        self.run.define_metric("*", step_metric="round")
        self.logger = WandbLogger(experiment=self.run)

    def finish(self, status: Literal["success", "failed"]) -> None:
        self.run.finish(exit_code=0 if status == "success" else 1)
