"""Computes losses and scores of many models on many examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.data import Examples
from lit_cfl.devices import send
from lit_cfl.engines.task_protocol import Batch, mixed_outcomes_of, outcomes_of
from lit_cfl.errors import InputError, note_on_error
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import per_example, scores_of

EVALUATION_BATCH = 1024  # fixed: sums of float32 losses must not depend on the machine; larger batches exceed caches
# examples of a forward pass on a CPU: a CNN's activations of more examples leave the caches
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
        # `eval()` may compute from the parameters, such as merged weights: it is called again for each model
        self._computes_in_eval = any(type(part).train is not nn.Module.train for part in module.modules())

    @torch.no_grad()
    def losses_of_all(self, models: Tensor, index: Tensor, examples: Examples) -> Tensor:
        """Computes the losses `[K, n]` of all models on these examples; see `Engine.losses_of_all`."""
        models = send(models, self._device).to(self._dtype)
        losses = torch.empty(len(models), len(index), dtype=torch.float64, device=self._device)
        for read in split_reads(len(index)):
            losses[:, read] = self._losses(models, index[read], examples)
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
        reads = split_reads_by_model(which)
        found = [self._score(models, which[read], index[read], examples, named) for read in reads]
        return self._join(found, index % len(examples))

    @torch.no_grad()
    def score_mixtures(
        self, models: Tensor, weights: Tensor, which: Tensor, index: Tensor, examples: Examples
    ) -> Outcomes:
        """Computes losses and scores of examples, each under its own mixture of the models; see `Engine`."""
        models, found = send(models, self._device).to(self._dtype), list[Tensor]()
        load = [partial(self._load, model) for model in models]
        for read in split_reads(len(index)):
            batch = examples.batch(index[read], self._dtype, self._device)
            own = send(weights[which[read]], self._device)
            self._seed(int(index[read.start]))
            parts = zip(self._split(batch), own.split(self._pass), strict=True)
            found += [mixed_outcomes_of(self._module, part, load, weight) for part, weight in parts]
        return self._join(found, index % len(examples))

    def _score(self, models: Tensor, which: Tensor, index: Tensor, examples: Examples, named: ModelName) -> Tensor:
        """Computes the outcomes of a batch whose examples belong to several models."""
        inputs, labels = examples.batch(index, self._dtype, self._device)
        numbers, counts = which.unique_consecutive(return_counts=True)
        batches = (part.split(counts.tolist()) for part in (inputs, labels, index))
        found = []
        for number, *batch, own in zip(numbers.tolist(), *batches, strict=True):
            with note_on_error(partial("while {} was scored".format, named(number))):
                row = send(models[number], self._device).to(self._dtype)
                found.append(self._outcomes(row, (batch[0], batch[1]), int(own[0])))
        return torch.cat(found, dim=1)

    def _load(self, row: Tensor) -> None:
        if self._computes_in_eval:
            self._module.train()
        self._layout.write(row, self._module)
        if self._computes_in_eval:
            self._module.eval()

    def _outcomes(self, row: Tensor, batch: Batch, first: int) -> Tensor:
        self._load(row)
        self._seed(first)
        return torch.cat([outcomes_of(self._module, part) for part in self._split(batch)], dim=1)

    def _split(self, batch: Batch) -> list[Batch]:
        """Splits a batch of at least one example into those of the forward passes."""
        inputs, labels = (part.split(self._pass) for part in batch)
        return list(zip(inputs, labels, strict=True))

    def _join(self, parts: Sequence[Tensor], numbers: Tensor) -> Outcomes:
        """Joins the outcomes `[..., n]` of parts of the examples; a value of weight 0 is replaced by 0.

        Args:
            numbers: The examples' numbers, for error messages.

        Raises:
            InputError: a weight is negative or not finite, or a value is not finite though the loss is: only a diverged
                model may have such values.
        """
        kinds = per_example(scores_of(self._module))
        last = 1 + 2 * len(kinds)  # number of rows before the outputs, see `outcomes_of`
        # transferred only at the end, so that a GPU need not wait in between
        rows = torch.cat([*parts], dim=1).cpu() if parts else torch.empty(last, 0, dtype=torch.float64)
        losses, weights = rows[0], rows[2:last:2]
        values = rows[1:last:2].where(weights != 0, 0)
        wrong = ~(weights >= 0) | weights.isinf() | (~values.isfinite() & losses.isfinite())
        if wrong.any():
            score, place = wrong.nonzero()[0].tolist()
            raise InputError(
                f"{type(self._module).__name__}.outcomes returned the value {float(values[score, place]):g} with the "
                f"weight {float(weights[score, place]):g} for the score {kinds[score].name!r} of example "
                f"{int(numbers[place])}, whose loss is {float(losses[place]):g}; give weights of 0 or more, and finite "
                "values wherever the loss is finite"
            )
        return Outcomes(losses, values, weights, rows[last:].T if len(rows) > last else None)


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
