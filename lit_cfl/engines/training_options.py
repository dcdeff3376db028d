"""The options of local training that all clients of a run share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lightning import LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_cfl.engines.mini_batches import LastBatch
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget

TaskFactory = Callable[[], LightningModule]
Rates = tuple[float, ...]  # learning rates of the optimizer's parameter groups, in their order


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in a round.

    Args:
        epochs: E, full passes over the client's training examples, 1 or more.
        batch_size: B, examples per mini-batch, or `full`.
        last_batch: Treatment of the examples that do not fill the last mini-batch of an epoch: `keep` makes a short one
            of them, `drop` leaves them out until the next epoch, `join` puts them into the previous mini-batch. A
            client with fewer than B examples always has one mini-batch.
        gradient_clip: Maximum norm of each client's gradient; None = no clipping.
        on_divergence: Reaction to a NaN or infinite loss: `stop` the run, or `skip` the client and count it.
        lr_schedule: Learning rates over rounds: any scheduler of `torch.optim.lr_scheduler` that needs no metric, with
            its options except the optimizer. It counts rounds and starts from the optimizer's rates. None = every
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
            raise InputError(f"gradient_clip is {self.gradient_clip}; give a number above 0, or null for none")
        if self.epochs < 1 or self.epochs % 1:
            raise InputError(f"epochs is {self.epochs}; give 1 or more, a whole number")
        Budget(self.epochs, "epochs", self.batch_size)  # checks the batch size

    @property
    def budget(self) -> Budget:
        return Budget(self.epochs, "epochs", self.batch_size)
