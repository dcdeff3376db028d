"""Computes losses and scores of many models on many examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.devices import is_out_of_memory, send
from lit_cfl.engines.task_protocol import Batch, mixed_outcomes_of, outcomes_of
from lit_cfl.errors import InputError, note_on_error
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import per_example, scores_of

EVALUATION_BATCH = 1024  # fixed: sums of float32 losses must not depend on the machine; larger batches exceed caches
# examples of a forward pass on a CPU: a CNN's activations of more examples leave the caches (benchmarks/passes.py)
PASS_ON_CPU = 128
ModelName = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Losses and scores of models on examples, on the CPU.

    Args:
        losses: Losses, float64 `[n]`.
        values, weights: Values and weights of each score that is a mean over examples, float64 `[scores, n]`; a right
            answer is 1, a wrong one 0.
        outputs: Outputs of the module, float64 `[n, o]`; None without a `SetScore`.
    """

    losses: Tensor
    values: Tensor
    weights: Tensor
    outputs: Tensor | None = None


class Scorer:
    """Scores models by loading them into one module.

    Args:
        module: Module in evaluation mode, on the device that computes.
        layout: Layout of the models' rows.
        dtype: Type of floating-point inputs.
        seed: Seeds random numbers that the module draws, given the number of the first example of a batch.
    """

    def __init__(
        self,
        module: LightningModule,
        layout: ParameterLayout,
        dtype: torch.dtype,
        seed: Callable[[int], None] = lambda first: None,
    ) -> None:
        self._module, self._layout, self._dtype, self._seed = module, layout, dtype, seed
        self._device = next(module.parameters()).device
        self._pass = PASS_ON_CPU if self._device.type == "cpu" else EVALUATION_BATCH

    @torch.no_grad()
    def losses_of_all(self, models: Tensor, index: Tensor, examples: Examples) -> Tensor:
        """Computes the losses `[K, n]` of all models on these examples; see `Engine.losses_of_all`."""
        models = send(models, self._device).to(self._dtype)
        losses = torch.empty(len(models), len(index), dtype=torch.float64, device=self._device)
        for read in split_reads(len(index)):
            losses[:, read] = _in_halves(lambda own: self._losses(models, index[own], examples), read)
        return losses.cpu()

    def _losses(self, models: Tensor, index: Tensor, examples: Examples) -> Tensor:
        """Computes the losses `[K, n]` of all models on examples that are read at once."""
        batch = examples.batch(index, self._dtype, self._device)
        return torch.stack([self._outcomes(row, batch, int(index[0]))[0] for row in models])

    @torch.no_grad()
    def score_each(
        self, models: Tensor, which: Tensor, index: Tensor, examples: Examples, named: ModelName = "model {}".format
    ) -> Outcomes:
        """Computes losses and scores of examples, each under its assigned model; see `Engine.outcomes_of_each`."""

        def score(read: slice) -> Tensor:
            return self._score(models, which[read], index[read], examples, named)

        return self._join([_in_halves(score, read) for read in split_reads_by_model(which)], index % len(examples))

    @torch.no_grad()
    def score_mixtures(
        self, models: Tensor, weights: Tensor, which: Tensor, index: Tensor, examples: Examples
    ) -> Outcomes:
        """Computes losses and scores of examples, each under its own mixture of the models; see `Engine`."""
        models = send(models, self._device).to(self._dtype)

        def score(read: slice) -> Tensor:
            batch = examples.batch(index[read], self._dtype, self._device)
            own = send(weights[which[read]], self._device)
            return self._mixed_outcomes(models, own, batch, int(index[read.start]))

        return self._join([_in_halves(score, read) for read in split_reads(len(index))], index % len(examples))

    def _mixed_outcomes(self, models: Tensor, weights: Tensor, batch: Batch, first: int) -> Tensor:
        self._seed(first)
        load = [partial(self._layout.write, model, self._module) for model in models]
        parts = zip(self._split(batch), weights.split(self._pass), strict=True)
        return torch.cat([mixed_outcomes_of(self._module, part, load, own) for part, own in parts], dim=1)

    def _score(self, models: Tensor, which: Tensor, index: Tensor, examples: Examples, named: ModelName) -> Tensor:
        """Computes the outcomes of a batch whose examples belong to several models."""
        inputs, labels = examples.batch(index, self._dtype, self._device)
        numbers, counts = which.unique_consecutive(return_counts=True)
        batches = (part.split(counts.tolist()) for part in (inputs, labels, index))
        found = []
        for number, *batch, own in zip(numbers.tolist(), *batches, strict=True):
            with note_on_error(partial(_while_scored, named, number)):
                row = send(models[number], self._device).to(self._dtype)
                found.append(self._outcomes(row, (batch[0], batch[1]), int(own[0])))
        return torch.cat(found, dim=1)

    def _outcomes(self, row: Tensor, batch: Batch, first: int) -> Tensor:
        self._layout.write(row, self._module)
        self._seed(first)
        return torch.cat([outcomes_of(self._module, part) for part in self._split(batch)], dim=1)

    def _split(self, batch: Batch) -> list[Batch]:
        """Splits a batch of at least one example into those of the forward passes."""
        inputs, labels = (part.split(self._pass) for part in batch)
        return list(zip(inputs, labels, strict=True))

    def _join(self, parts: Sequence[Tensor], numbers: Tensor) -> Outcomes:
        """Joins the outcomes `[..., n]` of parts of the examples, and checks them.

        `numbers` are the examples' numbers for error messages.
        """
        last = 1 + 2 * len(per_example(scores_of(self._module)))  # number of rows before the outputs, see `outcomes_of`
        nobody = torch.empty(last, 0, dtype=torch.float64)
        # transferred only at the end, so that a GPU need not wait in between
        rows = torch.cat([*parts], dim=1).cpu() if parts else nobody
        outputs = rows[last:].T if len(rows) > last else None
        return self._check(Outcomes(rows[0], rows[1:last:2], rows[2:last:2], outputs), numbers)

    def _check(self, found: Outcomes, numbers: Tensor) -> Outcomes:
        """Checks and returns the outcomes; a value of weight 0 is replaced by 0.

        Raises:
            InputError: a weight is negative or not finite, or a value is not finite though the loss is: only a diverged
                model may have such values.
        """
        values = found.values.where(found.weights != 0, 0)
        no_weight = ~(found.weights >= 0) | found.weights.isinf()
        no_value = ~values.isfinite() & found.losses.isfinite()
        for what, given, wrong in (("weight", found.weights, no_weight), ("value", values, no_value)):
            if wrong.any():
                score, place = (int(at[0]) for at in wrong.nonzero(as_tuple=True))
                task, name = type(self._module).__name__, per_example(scores_of(self._module))[score].name
                raise InputError(
                    f"{task}.outcomes returned the {what} {float(given[score, place]):g} for the score {name!r} of "
                    f"example {int(numbers[place])}, whose loss is {float(found.losses[place]):g}; give weights of 0 "
                    "or more, and finite values wherever the loss is finite"
                )
        return replace(found, values=values)


def _while_scored(named: ModelName, number: int) -> str:
    return f"while {named(number)} was scored"


def _in_halves(compute: Callable[[slice], Tensor], read: slice) -> Tensor:
    """Computes results `[..., n]` for a part of the examples, half by half if memory runs out.

    The halves may round differently.
    """
    try:
        return compute(read)
    except RuntimeError as error:
        if not is_out_of_memory(error) or read.stop - read.start < 2:
            raise
    middle = (read.start + read.stop + 1) // 2
    halves = slice(read.start, middle), slice(middle, read.stop)
    return torch.cat([_in_halves(compute, half) for half in halves], dim=-1)


def split_reads(count: int) -> list[slice]:
    """Splits examples into parts of at most one evaluation batch."""
    starts = range(0, count, EVALUATION_BATCH)
    return [slice(start, min(start + EVALUATION_BATCH, count)) for start in starts]


def split_reads_by_model(which: Tensor) -> list[slice]:
    """Splits examples, sorted by model, into batches; small batches of several models are merged.

    Args:
        which: Model of each example, int64 `[n]`, ascending.
    """
    reads: list[slice] = []
    begin = 0
    for count in which.unique_consecutive(return_counts=True)[1].tolist():
        for read in split_reads(count):
            start, stop = begin + read.start, begin + read.stop
            if reads and stop - reads[-1].start <= EVALUATION_BATCH:
                reads[-1] = slice(reads[-1].start, stop)
            else:
                reads.append(slice(start, stop))
        begin += count
    return reads
