"""Checks that rebuilt and copied modules are equal, as clients, processes and later commands require."""

import copy
import warnings

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.engines.base import Engine
from lit_cfl.engines.module_state import module_state, same_value
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.errors import InputError

_MOVED = 0.01  # deviation of the changes to each weight


def require_same_build(first: LightningModule, second: LightningModule) -> None:
    """Checks that a task builds the same module twice from the same seed.

    Raises:
        InputError: naming what differs.
    """
    one, other = module_state(first), module_state(second)
    for name, value in one.items():
        if isinstance(value, Tensor) and not (name in other and same_value(value, other[name])):
            raise InputError(
                f"{name} of {type(first).__name__} differs when it is made again from the same seed, so that no other "
                "process could make this module; draw from the generators of torch, numpy or random, which are seeded, "
                "and not from one without a seed (numpy.random.default_rng()), and fill what torch.empty leaves unset"
            )


def require_faithful_copy(engine: Engine, batch: Batch) -> None:
    """Checks that a copy of the module computes the same as the module itself, under different weights.

    Args:
        batch: examples on the CPU, floats as float32.

    Raises:
        InputError: a copy gives other losses or gradients.
    """
    itself, copied = engine.build(0), copy.deepcopy(engine.template)
    rng = torch.Generator().manual_seed(0)
    row = engine.layout.read(itself, torch.float32)
    columns = engine.layout.num_parameters
    row[:columns] += _MOVED * torch.randn(columns, generator=rng, dtype=torch.float32)
    try:
        expected = _loss_and_gradients(engine, row, itself, batch)
    except Exception:  # such as a net that knows no float32: who trains it says what is wrong
        return
    try:
        found = _loss_and_gradients(engine, row, copied, batch)
        faithful = all(map(_same, expected, found))
    except Exception:  # the original, whose layers it still has, may have another dtype
        faithful = False
    if not faithful:
        raise InputError(
            f"a copy of {type(itself).__name__} computes something else than the module itself, and every client "
            "trains a copy: a function in it (a lambda, a hook) refers to the original's layers; use methods of "
            "the module instead, or the layer that a hook is given"
        )


def _same(expected: Tensor | None, found: Tensor | None) -> bool:
    if expected is None or found is None:
        return expected is found
    return torch.allclose(expected, found, equal_nan=True)


def _loss_and_gradients(
    engine: Engine, row: Tensor, module: LightningModule, batch: Batch
) -> tuple[Tensor | None, ...]:
    module = module.cpu().float().eval()
    engine.layout.write(row, module)
    parameters = [module.get_parameter(slot.name) for slot in engine.layout.slots if not slot.is_buffer]
    with warnings.catch_warnings(), engine.own_stream("copy"):
        warnings.simplefilter("ignore")
        loss = losses_of(module, batch).mean()
        return loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)
