"""What models do on examples: losses and right answers, for many models and examples in few passes."""

from collections.abc import Iterator

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.local.scoring import penalty_of, score
from lit_cfl.parameters import ParameterLayout

EVALUATION_BATCH = 1024  # fixed: sums of float32 losses must not depend on the machine; larger ones leave the caches
Outcomes = tuple[Tensor, Tensor]


class Scorer:
    """Scores models with one module, which it writes them into.

    Args:
        module: in evaluation mode; its device is where it computes.
        layout: of the models' rows.
        dtype: of inputs that are floats.
    """

    def __init__(self, module: LightningModule, layout: ParameterLayout, dtype: torch.dtype) -> None:
        self._module, self._layout, self._dtype = module, layout, dtype

    @torch.no_grad()
    def of_all(self, models: Tensor, index: Tensor, examples: Examples) -> Outcomes:
        """Each model on all of these examples, which are read once for all of them: `[K, n]`, see `Engine`."""
        losses = torch.empty(len(models), len(index), dtype=torch.float64)
        correct = torch.empty(len(models), len(index), dtype=torch.bool)
        for start in range(0, len(index), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            batch = examples.batch(index[part], self._dtype)
            for number, row in enumerate(models):
                self._layout.write(row, self._module)
                losses[number, part], correct[number, part] = score(self._module, batch)
        return losses, correct

    @torch.no_grad()
    def of_each(self, models: Tensor, which: Tensor, index: Tensor, examples: Examples) -> Outcomes:
        """Each example under a model of its own: `[n]`, see `Engine`."""
        losses, correct = torch.empty(len(index), dtype=torch.float64), torch.empty(len(index), dtype=torch.bool)
        for parts in _reads(which):
            start, stop = parts[0][1].start, parts[-1][1].stop
            inputs, labels = examples.batch(index[start:stop], self._dtype)
            found = []
            for number, part in parts:
                own = slice(part.start - start, part.stop - start)
                self._layout.write(models[number], self._module)
                found.append(score(self._module, (inputs[own], labels[own])))
            losses[start:stop] = torch.cat([loss for loss, _ in found])
            correct[start:stop] = torch.cat([right for _, right in found])
        return losses, correct

    @torch.no_grad()
    def penalties(self, models: Tensor) -> Tensor:
        """What the task adds to the loss of every example in training: float64 `[K]`, 0 where it adds nothing."""
        return torch.tensor([self._penalty(row) for row in models], dtype=torch.float64)

    def _penalty(self, row: Tensor) -> float:
        self._layout.write(row, self._module)
        return penalty_of(self._module)


def _reads(which: Tensor) -> Iterator[list[tuple[int, slice]]]:
    """Cuts examples into batches of one model each, and puts small ones together, to read at most a batch at once."""
    numbers, counts = which.unique_consecutive(return_counts=True)
    parts: list[tuple[int, slice]] = []
    begin = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        for start in range(begin, begin + count, EVALUATION_BATCH):
            stop = min(start + EVALUATION_BATCH, begin + count)
            if parts and stop - parts[0][1].start > EVALUATION_BATCH:
                yield parts
                parts = []
            parts.append((number, slice(start, stop)))
        begin += count
    if parts:
        yield parts
