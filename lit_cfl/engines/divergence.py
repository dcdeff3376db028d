"""Explains why a client diverged: in training, or because its loss was not finite before it trained."""

from torch import Tensor

from lit_cfl.errors import DivergedError, explain_divergence_of


def explain_divergence(
    client: int, round: int, loss: float | None, rate: float, examples: Tensor, before: Tensor
) -> DivergedError:
    """Builds the error that names the diverged client and the round.

    Args:
        round: rounds completed before.
        loss: Training loss of the client, None if none was reported.
        rate: Learning rate of the client.
        examples: numbers of its training examples, int64 `[n]`.
        before: their losses under the model from which it started `[n]`.
    """
    wrong = (~before.isfinite()).nonzero().flatten()
    if not len(wrong):
        return explain_divergence_of(client, round, loss, rate)
    example = int(examples[wrong[0]])
    return DivergedError(
        f"client {client} diverged in round {round + 1} before it trained: the loss of its example {example} is "
        f"{float(before[wrong[0]])} ({len(wrong)} of its {len(examples)} examples have such a loss), and no learning "
        "rate helps; look for 0/0, log(0) or overflow in the net on that input, or set local.on_divergence to skip"
    )
