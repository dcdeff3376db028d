"""Detects modules whose step depends on the Trainer's progress or on earlier steps.

Ways other than `trainer` have no epochs, no batch numbers and no Trainer, and train all clients in one module. Such a
module needs `trainer`, where each client's fit has a new copy and a Trainer whose progress starts at 0.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lit_cfl.engines.global_generators import seed_global_generators
from lit_cfl.engines.module_state import Leaf, copy_state, same_value
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.parameters import ParameterLayout

Compute = Callable[[LightningModule, Batch, int], Tensor | None]  # loss of a module on a batch with this number
_PROGRESS = ("current_epoch", "global_step", "trainer")
_USED_BY_PYTHON = frozenset(
    f"__{name}__"
    for name in (
        *("class", "new", "init", "init_subclass", "subclasshook", "getattribute", "getnewargs", "getstate", "dir"),
        *("setattr", "delattr", "doc", "reduce", "reduce_ex", "sizeof"),
    )
)
_LATER = 1_000  # a batch number far from the first
_COMPUTED = "\0"  # prefix for the names of computed values; no attribute starts with it


def find_reads_of_progress(module: LightningModule, batch: Batch, compute: Compute, what: str) -> list[str]:
    """Returns why a loss depends on training progress, as a list of at most one reason.

    Args:
        compute: Computes the loss. If it raises an error without having read progress, there is no reason.
        what: Name of the loss, for the reason.
    """
    read: dict[str, None] = {}
    losses = []
    for number in (_make_watched_number(0, read), _LATER):
        own = copy.deepcopy(module)
        for part in own.modules():
            if isinstance(part, LightningModule):
                part.__class__ = _make_watched_class(type(part), read)
        with suppress(Exception):  # without a Trainer a module may raise anything
            losses.append(_compute_undisturbed(partial(compute, own, batch, number)))
    if read:
        return [f"{what} reads {next(iter(read))}"]
    differs = len(losses) == 2 and not same_value(*losses)
    return [f"{what} depends on batch_idx"] if differs else []


def find_dependence_on_history(
    module: LightningModule, layout: ParameterLayout, batches: Sequence[Batch], compute: Compute, what: str
) -> list[str]:
    """Returns why a step depends on earlier steps, as a list of at most one reason.

    Steps of two models on two batches run in one copy of the module, and again each in a new copy: loss, gradients and
    all attributes of the module must be the same.

    Args:
        batches: Two mini-batches.
    """
    start = layout.read(module, torch.float64)
    rng = torch.Generator().manual_seed(0)
    moved = start.clone()
    moved[: layout.num_parameters] += 0.01 * torch.randn(layout.num_parameters, generator=rng, dtype=torch.float64)
    one, other = (start, batches[0]), (moved, batches[1])
    try:
        together = _steps(module, layout, [one, other, one], compute)
        alone = _steps(module, layout, [other], compute)
    except Exception as error:  # a user's module may raise anything at its second step
        return [f"{what} raises {type(error).__name__} at a second step"]
    for later, fresh in ((together[1], alone[0]), (together[2], together[0])):
        names = [
            name for name in {**later, **fresh} if name not in later or not same_value(later[name], fresh.get(name))
        ]
        if attributes := [name for name in names if not name.startswith(_COMPUTED)]:
            # the buffers of BatchNorm change, too, if another attribute changes the outputs
            name = min(attributes, key=[name for name, _ in module.named_buffers()].__contains__)
            return [f"{name} changes from step to step"]
        if names:
            return [f"{what} returns a different loss after other steps"]
    return []


def _steps(
    module: LightningModule, layout: ParameterLayout, steps: Sequence[tuple[Tensor, Batch]], compute: Compute
) -> list[dict[str, Leaf]]:
    """Computes steps with one copy of a module. Returns loss, gradients and the copy's state after each."""
    own, found = copy.deepcopy(module), []
    parameters = [own.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
    for row, batch in steps:
        layout.write(row, own)
        loss = _compute_undisturbed(partial(compute, own, batch, 0))
        state: dict[str, Any] = {f"{_COMPUTED}loss": loss if loss is None else loss.detach()}
        if loss is not None:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            state |= {f"{_COMPUTED}{number}": gradient for number, gradient in enumerate(gradients)}
        found.append(state | copy_state(own))
    return found


def _compute_undisturbed(compute: Callable[[], Tensor | None]) -> Tensor | None:
    """Runs a computation with the same random numbers each time, and without warnings.

    `log` warns without a Trainer.
    """
    with warnings.catch_warnings(), isolate_rng(include_cuda=False):
        warnings.simplefilter("ignore")
        seed_global_generators(0, "progress")
        return compute()


def _make_watched_class(kind: type[LightningModule], read: dict[str, None]) -> type[LightningModule]:
    """Derives a class that records which progress attributes of a Trainer are read."""

    def watched(name: str) -> property:
        def get(self: LightningModule) -> object:
            read[f"self.{name}"] = None
            return getattr(super(derived, self), name)

        return property(get, getattr(LightningModule, name).fset)

    # a local class, so that parsers of configurations, which find classes by name, ignore it
    names = {"__module__": __name__, "__qualname__": f"_watched_class.<locals>.{kind.__name__}"}
    metaclass: Any = type(kind)
    derived: type[LightningModule] = metaclass(
        kind.__name__, (kind,), names | {name: watched(name) for name in _PROGRESS}
    )
    return derived


def _make_watched_number(number: int, read: dict[str, None]) -> int:
    """Makes a number that records when its value is used."""

    def watched(name: str) -> Callable[..., object]:
        def use(self: int, *given: Any) -> object:
            read["batch_idx"] = None
            return getattr(int, name)(self, *given)

        return use

    methods = [name for name in dir(int) if name.startswith("__") and name not in _USED_BY_PYTHON]
    kind: Any = type("int", (int,), {name: watched(name) for name in methods})
    made: int = kind(number)
    return made
