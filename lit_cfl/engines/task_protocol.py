"""Builds a LightningModule, calls it for the loss and the scores of each example, and checks the results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from math import nan
from typing import Any, cast

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines.dropout import replace_dropout
from lit_cfl.errors import InputError, count_noun, error_place, short_error
from lit_cfl.scores import ACCURACY, CLASSIFIER, Score, per_example, scores_of
from lit_cfl.seeds import derive, seed_globally

Batch = tuple[Tensor, Tensor]
TaskFactory = Callable[[], LightningModule]
_OF_SHAPES = RuntimeError, IndexError, ValueError, TypeError


def build_module(task: TaskFactory, seed: int, number: int = 0, device: str = "cpu") -> LightningModule:
    """Builds the task's module with the initial model of this number."""
    with seed_globally(derive(seed, "initial", number), device):
        return replace_dropout(task())


def require_losses(module: LightningModule) -> None:
    """Raises InputError if the module lacks a method that evaluation needs."""
    name, scores = type(module).__name__, per_example(scores_of(module))
    if not callable(getattr(module, "losses", None)):
        raise InputError(
            f"{name} has no `losses(batch) -> [batch]`, one number per example; add it (see docs/own_model.md)"
        )
    if scores not in (CLASSIFIER, ()) and not callable(getattr(module, "outcomes", None)):
        raise InputError(
            f"{name} names the scores {', '.join(score.name for score in scores)}, but has no `outcomes(batch)` that "
            "returns them; add it (see docs/own_model.md)"
        )


def losses_of(module: LightningModule, batch: Batch) -> Tensor:
    """Computes the loss of each example `[n]`. Raises InputError if the module returns anything else."""
    losses = cast(Callable[[Batch], Tensor], module.losses)(batch)
    _require_one_each(module, losses, len(batch[1]))
    return losses


def weighted_losses_of(module: LightningModule, batch: Batch, weights: Tensor | None) -> Tensor:
    """Computes the losses `[n]` times their weights `[n]`, None = 1; the module's `penalty` keeps the factor 1."""
    losses = losses_of(module, batch)
    return losses if weights is None else weigh_losses(module, losses, weights)


def weigh_losses(module: LightningModule, losses: Tensor, weights: Tensor) -> Tensor:
    """Multiplies a module's losses `[n]` by weights, but not the `penalty` that they contain."""
    products = losses * weights
    penalty = _penalty_method(module)
    return products if penalty is None else products + (1 - weights) * penalty()


def differentiable_losses_of(module: LightningModule, batch: Batch) -> Tensor:
    """Computes the same as `losses_of`. Raises InputError if the losses have no gradient."""
    losses = losses_of(module, batch)
    if not losses.requires_grad:
        raise InputError(
            f"{type(module).__name__}.losses is detached from the parameters, so it has no gradient; remove detach() "
            "and no_grad() from it"
        )
    return losses


@contextmanager
def users_errors(before: str, after: Callable[[Exception], str] = lambda error: "") -> Iterator[None]:
    """Converts errors of the user's code within the block into an InputError of one line, with text around them."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a user's code may raise anything; wrong shapes or arguments, errors of these types
        if is_out_of_memory(error) or not (isinstance(error, _OF_SHAPES) or error_place(error)):
            raise
        raise InputError(f"{before}{short_error(error)}{error_place(error)}{after(error)}") from error


def _penalty_method(module: LightningModule) -> Callable[[], Tensor] | None:
    found: Any = getattr(module, "penalty", None)  # may be a number, a layer, or a method of the user's
    if not callable(found) or isinstance(found, nn.Module):
        return None
    needs = [one for one in signature(found).parameters.values() if one.default is one.empty]
    return None if needs else found


def outcomes_of(module: LightningModule, batch: Batch) -> Tensor:
    """Computes the loss and the scores of each example with a module.

    A module's `outcomes(batch)` returns the losses `[n]`, for each of its scores the values `[n]` or a pair (values,
    weights), and for a `SetScore` the outputs `[n, ...]`. Without it, the score is whether the argmax of the output is
    the label. An example whose loss is not finite has no prediction: it counts as wrong, see `Score`.

    Returns:
        float64 `[1 + 2 scores, n]`: the loss, then value and weight of each score that is a mean over examples; below
        them, for a `SetScore`, the outputs `[o, n]`.

    Raises:
        InputError: the module returned something else.
    """
    losses, *found = _call_outcomes(module, batch)
    scores, name = per_example(scores_of(module)), type(module).__name__
    size, of_sets = (len(batch[1]),), len(scores) < len(scores_of(module))
    _require_one_each(module, losses, size[0])
    outputs = _outputs_in(found, name, size[0], len(scores)) if of_sets else None
    if len(found) != len(scores):
        raise InputError(
            f"{name}.outcomes returned {len(found)} scores after the losses, but {name}.scores names {len(scores)}; "
            "return the values of each named score"
        )
    rows = [losses]
    for score, given in zip(scores, found, strict=True):
        values, weights = given if isinstance(given, tuple) and len(given) == 2 else (given, torch.ones_like(losses))
        _require_kind(name, score, values, weights, size)
        worst = 0.0 if values.dtype == torch.bool else nan if score.worst is None else score.worst
        rows += [values.double().where(losses.isfinite(), worst), weights]
    whole = torch.stack([row.double() for row in rows])
    return whole if outputs is None else torch.cat([whole, outputs.flatten(1).T.double()])


def require_mixing(module: LightningModule, algorithm: str) -> None:
    """Raises InputError if an algorithm uses mixtures of models but the module cannot mix outputs."""
    if not hasattr(module, "mix_outputs"):
        raise InputError(
            f"{algorithm} mixes the outputs of several models, but {type(module).__name__} has no "
            "`mix_outputs(outputs, weights)` to mix them; add it (see docs/own_model.md)"
        )


def mixed_outcomes_of(
    module: LightningModule, batch: Batch, load: Sequence[Callable[[], None]], weights: Tensor
) -> Tensor:
    """Evaluates a mixture of models as `outcomes_of` evaluates one model, by mixing the outputs of `forward`.

    Args:
        load: Writes each of the K models into the module.
        weights: Weights of the models in the mixture of each example `[n, K]`.

    Raises:
        InputError: `outcomes` does not call `forward`, so that it would evaluate a single model.
    """
    plain, own, calls = module.forward, vars(module).get("forward"), 0
    mix = cast(Callable[[Tensor, Tensor], Tensor], module.mix_outputs)

    def forward_mixed(*inputs: Any) -> Tensor:
        nonlocal calls
        calls += 1
        outputs = []
        for write in load:
            write()
            outputs.append(plain(*inputs))
        return mix(torch.stack(outputs), weights)

    module.forward = forward_mixed  # type: ignore[method-assign]  # for this instance, until the end of the function
    try:
        found = outcomes_of(module, batch)
    finally:
        del module.forward
        if own is not None:  # a `forward` of this instance, such as `self.forward = self.net.forward`
            module.forward = own  # type: ignore[method-assign]
    if not calls:
        raise InputError(
            f"{type(module).__name__}.outcomes does not call the module itself, self(inputs), so the outputs of "
            "several models cannot be mixed; call self(inputs) in it"
        )
    return found


def _outputs_in(found: list[Any], name: str, size: int, scores: int) -> Tensor:
    """Removes the model outputs from the end of an `outcomes` result, and returns them."""
    outputs = found.pop() if len(found) > scores else None
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or len(outputs) != size:
        raise InputError(
            f"{name}.scores has a SetScore, so its outcomes must return the outputs [n, ...] last, after the losses "
            f"and {count_noun(scores, 'other score')}; it returned {_form(outputs)} there"
        )
    return outputs


def _call_outcomes(module: LightningModule, batch: Batch) -> Sequence[Any]:
    if callable(getattr(module, "outcomes", None)):
        returned = cast(Callable[[Batch], Any], module.outcomes)(batch)
        if not isinstance(returned, tuple):
            raise InputError(
                f"{type(module).__name__}.outcomes returned {_form(returned)}; return a tuple: losses, score"
            )
        return returned
    outputs = module(batch[0])
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"{type(module).__name__} returned {_form(outputs)}; let forward return a tensor, such as output.logits, "
            "or add `outcomes(batch)` (see docs/own_model.md)"
        )
    scores = per_example(scores_of(module))
    right = [(outputs.argmax(-1) == batch[1]) & ~outputs.isnan().any(-1)] if scores else []
    of_sets = [outputs] if len(scores) < len(scores_of(module)) else []
    return losses_of(module, batch), *right, *of_sets


def _require_one_each(module: LightningModule, losses: Any, count: int) -> None:
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        raise InputError(
            f"{type(module).__name__} returned losses of {_form(losses)} for {count} examples; "
            "return one number per example (reduction='none')"
        )


def _require_kind(name: str, score: Score, values: Any, weights: Any, size: tuple[int, ...]) -> None:
    for what, given in (("values", values), ("weights", weights)):
        if not isinstance(given, Tensor) or given.shape != size or given.is_complex():
            raise InputError(
                f"{name}.outcomes returned {what} of {_form(given)} for the score {score.name!r}; "
                f"return one number for each of the {size[0]} examples"
            )
    if score == ACCURACY and values.dtype != torch.bool:
        raise InputError(
            f"{name}.outcomes returned values of {_form(values)} for the score 'accuracy', which is whether a "
            "prediction is right (bool); compare with the label, or name your own score: scores = (Score('my_score'),)"
        )


def _form(given: Any) -> str:
    return (
        f"shape {tuple(given.shape)} and {given.dtype}" if isinstance(given, Tensor) else f"type {type(given).__name__}"
    )
