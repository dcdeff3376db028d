"""Counts the operations of a net, which predict its training time: a convolution uses each parameter many times."""

import copy

import torch
from lightning import LightningModule
from torch.utils.flop_counter import FlopCounterMode

from lit_cfl.engines.task_protocol import Batch, losses_of


def count_multiply_adds(module: LightningModule, batch: Batch) -> int:
    """Counts the multiply-adds of products and convolutions in the loss of one example; nothing is computed.

    Args:
        batch: Batch of at least one example; only the first is used.

    Returns:
        0 where the module cannot tell without numbers, or cannot take the example: what trains it says why.
    """
    shapes = copy.deepcopy(module).to("meta").eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            losses_of(shapes, (batch[0][:1].to("meta"), batch[1][:1].to("meta")))
    except Exception:  # whatever a user's own module raises
        return 0
    return int(counter.get_total_flops()) // 2
