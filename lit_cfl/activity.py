"""Describes what a run is doing at the moment, for displays."""

from collections.abc import Callable
from dataclasses import dataclass

from lit_cfl.errors import count_noun


@dataclass(frozen=True)
class Activity:
    """A step of a run's work, such as the training of a cohort, for displays.

    Args:
        what: Name of the step, such as `pre-training`.
        round: Number of rounds completed before the step; None = the step precedes all rounds.
        done: Number of clients that have finished the step, 0 to `total`.
        total: Number of clients; 0 = clients are not counted.
        noun: Thing that is counted: clients, or models if a client may train several in one step.
    """

    what: str
    round: int | None = None
    done: int = 0
    total: int = 0
    noun: str = "client"

    def __str__(self) -> str:
        if not self.total:
            return self.what
        return f"{self.what} {f'{self.done} of ' if self.done else ''}{count_noun(self.total, self.noun)}"


Report = Callable[[Activity], None]  # called often, so it should return fast


def ignore_activity(activity: Activity) -> None:
    """Does nothing: the default if no display is attached."""


_OF_PURPOSE = {
    "train": "training",
    "pretrain": "pre-training",
    "psi": "pre-training",
    "place": "placing",
    "omega": "global training of",
    "personal": "personal training of",
    "fine-tune": "fine-tuning of",
}


def fit_activity(purpose: str, round: int, done: int, total: int, noun: str) -> Activity:
    """Makes the activity of a fit, named after its purpose; see `LocalWork.fit`."""
    return Activity(_OF_PURPOSE.get(purpose, "training"), round, done, total, noun)
