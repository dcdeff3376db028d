"""Computes clients' gradients at one model, in stacks of clients of the same padded size."""

from collections.abc import Callable

import torch
from torch import Tensor

from lit_cfl.engines.chain.groups import pad
from lit_cfl.engines.chain.losses import compute_slopes
from lit_cfl.engines.chain.parts import ChainLayer
from lit_cfl.engines.chain.passes import run_backward, run_forward
from lit_cfl.engines.chain.stack import as_matrix, min_lanes
from lit_cfl.engines.chain.tables import CohortExamples
from lit_cfl.engines.chain.updates import Training
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.parameters import Slot

_STACK = 2**22  # maximum number of input values in a stack: 16 MiB in float32


def compute_gradients(
    training: Training,
    slots: tuple[Slot, ...],
    model: Tensor,
    work: CohortFit,
    examples: CohortExamples,
    rows: Tensor,
    ended: Callable[[int], None],
) -> None:
    """Writes the gradient of each client's mean loss into `rows` `[n, d]`.

    Args:
        training: Chain and optimizer that all clients share; the chain has no dropout.
        slots: Slots of the trained parameters.
        model: `[d]`.
        work: Gradients to compute, see `TrainingWay.gradients`.
        examples: The clients' examples.
        ended: Called with the number of finished clients.
    """
    padded, done, least = pad(work.sizes, 4), 0, min_lanes(training.chain.layers)
    starts = work.sizes.cumsum(0) - work.sizes
    for size in padded.unique().tolist():
        most = max(1, _STACK // (size * examples.width))
        for clients in (padded == size).nonzero().flatten().split(most):
            lanes = clients if len(clients) >= least else clients.repeat(least)
            own = torch.arange(size).minimum(work.sizes[lanes, None] - 1) + starts[lanes, None]
            shares = (torch.arange(size) < work.sizes[lanes, None]).to(model.dtype) / work.sizes[lanes, None]
            tensors = _pieces(slots, model, examples, len(lanes))
            found = _stack_gradients(training, tensors, examples, own.to(model.device), shares.to(model.device))
            for slot in slots:
                columns = rows[:, slot.start : slot.stop]
                columns.index_copy_(0, clients.to(rows.device), found[slot.name][: len(clients)].flatten(1))
            done += len(clients)
            ended(done)


def _pieces(slots: tuple[Slot, ...], model: Tensor, examples: CohortExamples, lanes: int) -> dict[str, Tensor]:
    pieces = {slot.name: as_matrix(model[None, slot.start : slot.stop], slot) for slot in slots}
    return {name: piece.expand(lanes, -1, -1) for name, piece in (pieces | dict(examples.fixed)).items()}


def _stack_gradients(
    training: Training, tensors: dict[str, Tensor], examples: CohortExamples, own: Tensor, shares: Tensor
) -> dict[str, Tensor]:
    """Computes the gradients of a stack of clients, by parameter name.

    Args:
        own: Positions of the clients' examples, int64 `[clients, n]`.
        shares: Weight of each example in its client's mean `[clients, n]`.
    """
    chain, arithmetic, found = training.chain, training.arithmetic, dict[str, Tensor]()
    inputs = examples.read(own)
    targets = examples.targets.index_select(0, own.flatten()).view(*own.shape, -1)
    outputs, kept = run_forward(chain.parts, tensors, inputs, None, arithmetic)
    slopes = compute_slopes(chain.loss, outputs, targets, shares[..., None])

    def take(layer: ChainLayer, slopes: Tensor, inputs: Tensor) -> None:
        if layer.weight in training.names:
            found[layer.weight] = arithmetic.multiply(slopes.mT, inputs)
            if layer.penalty:
                found[layer.weight].add_(tensors[layer.weight], alpha=2 * layer.penalty)
        if layer.bias in training.names:
            found[layer.bias] = slopes.sum(1, keepdim=True)

    run_backward(chain.parts, tensors, kept, slopes, None, arithmetic, take, below=False)
    return found
