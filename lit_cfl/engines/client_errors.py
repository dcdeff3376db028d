"""Errors of local training that name the client and the round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any

from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from lit_cfl.errors import DivergedError, join_ids, note_on_error


@contextmanager
def note_client(round: int, waiting: Callable[[], Sequence[int]], together: bool = False) -> Iterator[None]:
    """Adds the round and the client being trained as a note to errors raised within the block.

    Args:
        waiting: Returns the clients that are not trained yet, the current one first.
        together: True if several train at once, and it is unknown which of them raised the error.
    """

    def what() -> str:
        clients = waiting()
        who = f"one of the clients {join_ids(clients)}" if together else f"client {clients[0]}" if clients else ""
        return f"in round {round + 1}, while {who} was trained" if clients else f"in round {round + 1}"

    with note_on_error(what):
        yield


def explain_divergence(
    client: int, round: int, loss: float, rate: float, examples: Tensor, before: Tensor, rest: float | None = None
) -> DivergedError:
    """Builds the error for a client that diverged in training, or whose losses were not finite before training.

    Args:
        round: Number of rounds completed before.
        loss: Training loss of the client; NaN if none was reported.
        rate: Learning rate of the client.
        examples: Numbers of its training examples, int64 `[n]`.
        before: Their losses under the client's initial model `[n]`.
        rest: Training loss of the client if its model does not change; None = unknown.
    """
    wrong = (~before.isfinite()).nonzero().flatten()
    if not len(wrong) and rest is not None and not isfinite(rest):
        return DivergedError(
            f"client {client} diverged in round {round + 1}: the loss of one of its mini-batches is not finite with "
            "its initial model, too, and no learning rate helps; look for a mini-batch whose examples are all left out "
            "(ignore_index), for 0/0 or log(0) in training_step, or set local.on_divergence to skip"
        )
    if not len(wrong):
        return DivergedError(
            f"client {client} diverged in round {round + 1}: training loss {loss}, learning rate {rate:g}; "
            "lower the learning rate, set local.gradient_clip, or set local.on_divergence to skip"
        )
    example = int(examples[wrong[0]])
    return DivergedError(
        f"client {client} diverged in round {round + 1} before it trained: the loss of its example {example} is "
        f"{float(before[wrong[0]])} ({len(wrong)} of its {len(examples)} examples have such a loss), and no learning "
        "rate helps; look for 0/0, log(0) or overflow in the net on that input, or set local.on_divergence to skip"
    )


def find_learning_rate(module: LightningModule) -> float:
    """Returns the initial learning rate of a module; NaN if it cannot be known without a Trainer."""
    found: Any = None
    with suppress(Exception):  # a user's module may read its Trainer, which does not exist
        found = module.configure_optimizers()
    found = found.get("optimizer") if isinstance(found, Mapping) else found
    found = found[0] if isinstance(found, (list, tuple)) else found
    return float(found.param_groups[0]["lr"]) if isinstance(found, Optimizer) else float("nan")
