"""Gradients of several clients at one model, in one stack."""

import torch
from torch import Tensor, nn

from lit_cfl.devices import send
from lit_cfl.engines.check_module import has_batch_norm
from lit_cfl.engines.cohort import CohortFit
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.scorer import EVALUATION_BATCH
from lit_cfl.engines.stacked.lane_steps import Steps
from lit_cfl.parameters import ParameterLayout

LARGEST = 2048  # maximum number of examples of a client whose gradient is computed in a stack
STACK_EXAMPLES = 4 * LARGEST  # number of examples in a stack, including padding


def find_large(sizes: Tensor, lanes: int, module: nn.Module) -> Tensor:
    """Finds the clients whose gradients are computed alone, bool `[n]`.

    Args:
        sizes: Number of examples of each client, int64 `[n]`.
        lanes: Lanes of a stack; 1 = no stacking.
        module: The LightningModule as the user's task builds it; with BatchNorm large clients are split into batches.
    """
    return sizes > (-1 if lanes == 1 else EVALUATION_BATCH if has_batch_norm(module) else LARGEST)


def split_into_stacks(sizes: Tensor, clients: Tensor, most: int) -> list[Tensor]:
    """Groups clients' positions into stacks by size and id, independent of the order of the request.

    Args:
        sizes: Number of examples of each client, int64 `[n]`.
        clients: Ids, int64 `[n]`.
        most: Maximum number of clients in a stack, 1 or more.
    """
    order = clients.argsort(stable=True)
    order, stacks, start = order[sizes[order].argsort(descending=True, stable=True)], list[Tensor](), 0
    while start < len(order):
        width = max(1, int(sizes[order[start]]))  # the largest client sets the width of its stack
        stacks.append(order[start : start + max(1, min(most, STACK_EXAMPLES // width))])
        start += len(stacks[-1])
    return stacks


def compute_stacked_gradients(
    steps: Steps, layout: ParameterLayout, plan: Plan, model: Tensor, work: CohortFit
) -> Tensor:
    """Computes the gradients `[n, parameters]` of a few clients' mean losses over all their examples.

    Args:
        model: `[d]`, on the device.
        work: See `TrainingWay.gradients`.
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
