"""Options of tracking."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from lightning.pytorch.loggers import Logger

from lit_cfl.errors import InputError

Mode = Literal["online", "offline", "disabled"]
_MODES: dict[str, Mode] = {"online": "online", "offline": "offline", "disabled": "disabled"}


@dataclass(frozen=True)
class Tracking:
    """Chooses what is tracked, and by which services; see `docs/tracking.md`.

    Args:
        wandb: Weights & Biases: `online`, `offline` (sync later) or `disabled`. None = the value of WANDB_MODE, else
            online if a key is set (`wandb login`, WANDB_API_KEY), else offline.
        project: Project of the W&B run.
        entity: User or team of the W&B run; None = the account's own.
        group: Group of the W&B run.
        tags: Tags of the W&B run.
        notes: Notes of the W&B run.
        loggers: Further Lightning loggers by `class_path`; each run (seed, baseline) builds its own.
        snapshots_every: Rounds between two entries of `snapshots/`, at most between two of `memberships.npz`, and
            between two sets of pictures, 1 or more.
    """

    wandb: Mode | None = None
    project: str = "lit-cfl"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    loggers: list[Callable[[], Logger]] = field(default_factory=list)
    snapshots_every: int = 10

    def __post_init__(self) -> None:
        if self.snapshots_every < 1:
            raise InputError(f"tracking.snapshots_every is {self.snapshots_every}; it must be 1 or more")

    def requested_mode(self) -> Mode | None:
        """Returns the W&B mode from the option or else from WANDB_MODE; None = neither is set.

        Raises:
            InputError: WANDB_MODE is not a mode.
        """
        named = os.environ.get("WANDB_MODE")
        if self.wandb is None and named and named not in _MODES:
            raise InputError(f"WANDB_MODE is {named!r}; set it to online, offline or disabled")
        return self.wandb or (_MODES[named] if named else None)
