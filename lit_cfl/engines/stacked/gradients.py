"""Computes gradients of several clients at one model, in one stack."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lit_cfl.data import ClientIndex, Examples
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.scorer import EVALUATION_BATCH
from lit_cfl.engines.steps import Steps
from lit_cfl.parameters import ParameterLayout

LARGEST = 2048  # examples of a client whose gradient is taken at once
STACK_EXAMPLES = 4 * LARGEST  # of a stack, those that only fill it up among them


def order_for_stacks(sizes: Tensor, clients: Tensor, lanes: int, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Returns positions of clients whose gradients are taken alone, and of the others as they go into stacks.

    These come by size and id, so that they are stacked in the same way in whatever order they are asked for.

    Args:
        sizes: examples of each client, int64 `[n]`.
        clients: ids, int64 `[n]`.
        lanes: of a stack; 1 = none is stacked.
        module: the LightningModule as the user's task gives it; under BatchNorm large clients are cut into batches.
    """
    normalised = any(isinstance(layer, _BatchNorm) for layer in module.modules())
    alone = sizes > (-1 if lanes == 1 else EVALUATION_BATCH if normalised else LARGEST)
    large, others = alone.nonzero().flatten(), (~alone).nonzero().flatten()
    others = others[clients[others].argsort(stable=True)]
    return large, others[sizes[others].argsort(descending=True, stable=True)]


def next_stack(sizes: Tensor, start: int, most: int) -> slice:
    """Selects the clients from `start` on whose gradients are taken together; a stack is as wide as its largest client.

    Args:
        sizes: examples of each client, int64 `[n]`, the largest first.
        start: 0 to n - 1.
        most: clients of a stack, 1 or more.
    """
    return slice(start, min(len(sizes), start + max(1, min(most, STACK_EXAMPLES // max(1, int(sizes[start]))))))


def stacked_gradients(
    steps: Steps,
    layout: ParameterLayout,
    plan: Plan,
    model: Tensor,
    held: ClientIndex,
    examples: Examples,
    keys: Tensor,
) -> Tensor:
    """Computes gradients `[n, d]` of a few clients' mean losses, each over all its examples at once, on the CPU.

    Args:
        model: `[d]`.
        held: the examples of each client.
        keys: of the dropout masks, int64 `[n]`.
    """
    places = torch.arange(max(1, int(held.sizes.max()))).expand(len(held), -1)
    present = places < held.sizes[:, None]
    first = held.entries[(held.sizes.cumsum(0) - held.sizes).clamp(max=max(0, len(held.entries) - 1))]
    index = first[:, None].expand_as(places).masked_scatter(present, held.entries)  # filled up with its own example
    inputs, labels = examples.batch(index.flatten(), plan.compute_dtype, plan.device)
    batch = inputs.view(*index.shape, *inputs.shape[1:]), labels.view(index.shape)
    rows = model.to(plan.device, plan.compute_dtype).expand(len(held), -1)
    pieces = tuple(rows[:, slot.start : slot.stop].reshape(-1, *slot.shape) for slot in layout.slots)
    trained = sum(not slot.is_buffer for slot in layout.slots)
    with torch.no_grad():
        found, _, _ = steps.gradients(
            pieces[:trained], pieces[trained:], batch, present.to(plan.device), keys.to(plan.device)
        )
    gradients = torch.zeros(len(held), layout.num_columns, dtype=plan.dtype)
    gradients[:, : layout.num_parameters] = torch.cat([g.reshape(len(held), -1) for g in found], dim=1).cpu()
    return gradients
