"""Gradients of several clients at one model, in one stack."""

import torch
from torch import Tensor, nn

from lit_cfl.devices import send
from lit_cfl.engines.batch_norm import has_batch_norm
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.scorer import EVALUATION_BATCH
from lit_cfl.engines.stacked.steps import Steps
from lit_cfl.parameters import ParameterLayout

LARGEST = 2048  # examples of a client whose gradient is taken at once
STACK_EXAMPLES = 4 * LARGEST  # examples of a stack, including padding


def order_for_stacks(sizes: Tensor, clients: Tensor, lanes: int, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Returns the positions of clients computed alone, and of the others in stacking order.

    The others are sorted by size and id, so that the order of the request does not change the stacks.

    Args:
        sizes: Number of examples of each client, int64 `[n]`.
        clients: ids, int64 `[n]`.
        lanes: Lanes of a stack; 1 = no stacking.
        module: The LightningModule as the user's task builds it; with BatchNorm large clients are split into batches.
    """
    normalised = has_batch_norm(module)
    alone = sizes > (-1 if lanes == 1 else EVALUATION_BATCH if normalised else LARGEST)
    large, others = alone.nonzero().flatten(), (~alone).nonzero().flatten()
    others = others[clients[others].argsort(stable=True)]
    return large, others[sizes[others].argsort(descending=True, stable=True)]


def next_stack(sizes: Tensor, start: int, most: int) -> slice:
    """Selects the clients from `start` on that form the next stack; the largest one sets its width.

    Args:
        sizes: Number of examples of each client, int64 `[n]`, the largest first.
        start: 0 to n - 1.
        most: Maximum number of clients in a stack, 1 or more.
    """
    return slice(start, min(len(sizes), start + max(1, min(most, STACK_EXAMPLES // max(1, int(sizes[start]))))))


def compute_stacked_gradients(
    steps: Steps, layout: ParameterLayout, plan: Plan, model: Tensor, work: CohortFit
) -> Tensor:
    """Computes gradients `[n, parameters]` of the mean losses of a few clients, each over all its examples.

    Args:
        model: `[d]`, on the device.
        work: see `ClientLoop.gradients`.
    """
    device = model.device
    places = torch.arange(max(1, int(work.sizes.max()))).expand(len(work), -1)
    starts = (work.sizes.cumsum(0) - work.sizes)[:, None]
    present = places < work.sizes[:, None]
    index = send(torch.where(present, starts + places, starts), device)  # padded with an example of the client
    batch = work.inputs[index], work.labels[index]
    rows = model.to(plan.compute_dtype).expand(len(work), -1)
    pieces = tuple(rows[:, slot.start : slot.stop].reshape(-1, *slot.shape) for slot in layout.slots)
    trained = sum(not slot.is_buffer for slot in layout.slots)
    keys = torch.zeros(len(work), dtype=torch.int64) if work.keys is None else work.keys
    with torch.no_grad():
        found, _, _ = steps.gradients(
            pieces[:trained], pieces[trained:], batch, send(present, device), send(keys, device)
        )
    return torch.cat([gradient.reshape(len(work), -1) for gradient in found], dim=1).to(plan.dtype)
