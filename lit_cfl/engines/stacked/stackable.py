"""Checks on temporary copies whether a module can be trained in a stack."""

import copy
import warnings

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.engines.batch_norm import has_batch_norm
from lit_cfl.engines.needs_trainer import run_step, to_double
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.stacked.lane_steps import Steps
from lit_cfl.engines.stacked.stackable_layers import replace_unstackable_layers, why_not_stacked
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.errors import short_error
from lit_cfl.parameters import ParameterLayout


def reasons_for_no_stack(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Lists why a module that does not need `trainer` cannot be stacked; empty if it can."""
    found = [f"{why} ({name})" for name, layer in module.named_modules() if (why := why_not_stacked(layer))]
    if found:
        return found
    normalised = has_batch_norm(module)
    count = 8 if normalised else 2  # the gradients of a normalised batch of two are nearly 0: mostly rounding errors
    with torch.random.fork_rng(devices=[]):
        return _compare_with_plain_loop(module, layout, (batch[0][:count], batch[1][:count]))


def _compare_with_plain_loop(module: LightningModule, layout: ParameterLayout, batch: Batch) -> list[str]:
    """Compares a step of two lanes with that of a plain loop, and lists what differs.

    The second lane has one example fewer than the first, so one of its places is padding.
    """
    module, (inputs, labels) = to_double(module, batch)
    parts = [(inputs, labels), (inputs[: len(labels) - 1 or 1], labels[: len(labels) - 1 or 1])]
    try:
        alone = [run_step(module, layout, part) for part in parts]
    except Exception:  # the module cannot take the data: `require_trainable` reports that
        return []
    present = torch.ones(2, len(labels), dtype=torch.bool)
    present[1, 1:] = torch.arange(1, len(labels)) < len(labels) - 1
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # an operation without a rule for stacks is slow, and warns
            together = _take_stacked_step(
                copy.deepcopy(module), layout, (_two_lanes(inputs), _two_lanes(labels)), present
            )
    except Exception as error:  # a user's module may raise anything when it is stacked
        return [_in_words(error)]
    lanes = [[*gradients, *after.values()] for gradients, after in alone]
    expected = torch.stack([torch.cat([part.flatten() for part in lane if part is not None]) for lane in lanes])
    same = torch.allclose(together, expected, rtol=1e-6, atol=1e-9, equal_nan=True)
    return [] if same else ["its gradients in a stack differ from those computed alone"]


def _in_words(error: Exception) -> str:
    """Explains why a module cannot be stacked, replacing PyTorch's own wording."""
    reasons = {
        "data-dependent control flow": "it branches on the numbers in a tensor",
        ".item()": "it reads a number out of a tensor (.item())",
    }
    found = [reason for words, reason in reasons.items() if words in str(error)]
    return found[0] if found else f"in a stack it raises {short_error(error)}"


def _take_stacked_step(module: LightningModule, layout: ParameterLayout, batch: Batch, present: Tensor) -> Tensor:
    """Computes, for each of two lanes, the gradient of the mean loss and the buffers afterwards: `[2, d]`."""
    trained = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    constant = [module.get_buffer(slot.name) for slot in layout.slots if slot.is_buffer]
    steps = Steps(replace_unstackable_layers(module), layout, FunctionalOptimizer.from_module(module, trained))
    parameters, buffers = (tuple(_two_lanes(tensor.detach()) for tensor in part) for part in (trained, constant))
    gradients, _, after = steps.gradients(parameters, buffers, batch, present, torch.zeros(2, dtype=torch.int64))
    return torch.cat([tensor.reshape(2, -1) for tensor in (*gradients, *after)], dim=1)


def _two_lanes(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor])
