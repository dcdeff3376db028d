"""Describes the current work of a run, for people who wait for it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """A step of the work of a run.

    Args:
        what: is done, such as `pre-training`.
        round: rounds completed before the one that it belongs to; None = it comes before the rounds.
        done: clients that are through with it, 0 to `total`.
        total: clients in all; 0 where they are not counted.
    """

    what: str
    round: int | None = None
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.done} of {self.total} clients" if self.total else self.what


Report = Callable[[Activity], None]  # is called often: it should only take notes


def unreported(activity: Activity) -> None:
    """Ignores the activity."""


_OF_PURPOSE = {
    "train": "training",
    "pretrain": "pre-training",
    "psi": "pre-training",
    "place": "placing",
    "omega": "global training of",
    "personal": "personal training of",
    "fine-tune": "fine-tuning of",
}


def fit_activity(purpose: str, round: int, done: int, total: int) -> Activity:
    """Describes the current work of a fit; see `LocalWork.fit` for its purpose."""
    return Activity(_OF_PURPOSE.get(purpose, "training"), round, done, total)
