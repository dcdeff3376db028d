"""Says why a client diverged: in training, or because its loss was no number before it trained."""

from typing import TYPE_CHECKING

from torch import Tensor

from lit_cfl.errors import DivergedError, diverged

if TYPE_CHECKING:
    from lit_cfl.data import FederatedData
    from lit_cfl.engines.base import Engine


def explain_divergence(
    engine: "Engine", start: Tensor, client: int, round: int, loss: float | None, rate: float, data: "FederatedData"
) -> DivergedError:
    """Builds the error that names the client that diverged, and the round.

    Args:
        engine: that trained it.
        start: the model `[d]` that it started from.
        round: rounds completed before.
        loss: its training loss, None if it reported none.
        rate: its learning rate.
    """
    mine = data.train[client]
    before = engine.losses_of_all(start[None].cpu(), mine, data)[0]
    wrong = (~before.isfinite()).nonzero().flatten()
    if not len(wrong):
        return diverged(client, round, loss, rate)
    example = int(mine[wrong[0]]) % len(data.examples)
    return DivergedError(
        f"client {client} diverged in round {round + 1} before it trained: the loss of its example {example} is "
        f"{float(before[wrong[0]])} ({len(wrong)} of its {len(mine)} examples have such a loss), and no learning rate "
        "helps; look for 0/0, log(0) or overflow in the net on that input, or set local.on_divergence to skip"
    )
