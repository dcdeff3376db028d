"""Describes a request to an engine: how clients train, which clients, and from which models."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_cfl.engines.mini_batches import LastBatch
from lit_cfl.errors import InputError, join_ids, note_on_error
from lit_cfl.local_work import Budget

TaskFactory = Callable[[], LightningModule]
Rates = tuple[float, ...]  # learning rates of the optimizer's parameter groups, in their order
CHECK = "check"  # purpose of the fit that only shows whether clients can be trained


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in a round.

    Args:
        epochs: E, full passes over the client's training examples, 1 or more.
        batch_size: B, examples a mini-batch, or `full`.
        last_batch: Treatment of the examples that do not fill the last mini-batch of an epoch: `keep` makes a short one
            of them, `drop` leaves them out until the next epoch, `join` puts them into the mini-batch before. A client
            of fewer than B examples has one mini-batch all the same.
        gradient_clip: clip each client's gradient to this norm; None = never.
        on_divergence: Reaction to a NaN or infinite loss: `stop` the run, or `skip` the client and count it.
        lr_schedule: learning rates over rounds: any scheduler of `torch.optim.lr_scheduler` that needs no metric, with
            its options but for the optimizer. It counts rounds and starts from the optimizer's rates. None = every
            round has the optimizer's rates.
    """

    epochs: int = 1
    batch_size: int | Literal["full"] = 10
    last_batch: LastBatch = "keep"
    gradient_clip: float | None = None
    on_divergence: Literal["stop", "skip"] = "stop"
    lr_schedule: Callable[[Optimizer], LRScheduler] | None = None

    def __post_init__(self) -> None:
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise InputError(f"gradient_clip {self.gradient_clip} must be above 0, or null for none")
        Budget(self.epochs, "epochs", self.batch_size)

    @property
    def budget(self) -> Budget:
        return Budget(self.epochs, "epochs", self.batch_size)


@contextmanager
def note_client(round: int, waiting: Callable[[], Sequence[int]], together: bool = False) -> Iterator[None]:
    """Adds to an error, such as one of the user's module, the client that was trained and the round.

    Args:
        waiting: returns the clients that are still to be trained, the present one first.
        together: several train at once, and it is unknown which of them it was.
    """

    def what() -> str:
        clients = waiting()
        who = f"one of the clients {join_ids(clients)}" if together else f"client {clients[0]}" if clients else ""
        return f"in round {round + 1}, while {who} was trained" if clients else f"in round {round + 1}"

    with note_on_error(what):
        yield


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The arguments of one `LocalWork.fit`, spelled out client by client."""

    models: Tensor  # [K, d]
    clients: Tensor  # [n]
    start: Tensor  # [n]
    purpose: str
    prox: float
    centers: Tensor | None  # [C, d]
    center: Tensor  # [n]
    budget: Budget
    lengths: Tensor  # [n], of the budget
    rates: Rates | None = None  # learning rates of the round; None = the optimizer's
    weights: Sequence[Tensor] | None = None  # Factors of the losses of each client's examples [n]; None = 1

    def weights_at(self, positions: Tensor) -> Tensor | None:
        """Returns the factors of these clients' examples, concatenated, or None."""
        return None if self.weights is None else torch.cat([self.weights[k] for k in positions.tolist()])
