"""Regression with squared errors: the LightningModule of clients whose labels are numbers."""

from collections.abc import Callable, Iterable
from math import nan

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_cfl.nets.base import Net
from lit_cfl.scores import Score, Scores, SetScore, per_example, scores_of
from lit_cfl.tasks.base import Batch, Task, mixed_numbers
from lit_cfl.tasks.named_scores import KnownScores, ScoreNames, named_scores


def r2(outputs: Tensor, labels: Tensor) -> float:
    """Computes the coefficient of determination, 1 - squared errors / squared deviations of the labels from their mean.

    Args:
        outputs: Predictions `[n, 1]`.
        labels: Numbers `[n]`.

    Returns:
        At most 1; 0 for predictions of the labels' mean; nan if all labels are equal, so also for one example.
    """
    labels = labels.double()
    if (labels == labels[0]).all():
        return nan
    return float(1 - (outputs[:, 0] - labels).square().sum() / (labels - labels.mean()).square().sum())


def rmse(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the root of the mean squared error; see `r2`."""
    return (outputs[:, 0] - labels).square().mean().sqrt()


_MAE = Score("mae", higher_is_better=False)
_MSE = Score("mse", higher_is_better=False)
OF_NUMBERS = KnownScores(
    (_MAE, _MSE, SetScore("r2", function=r2), SetScore("rmse", higher_is_better=False, function=rmse)), {}
)


class Regression(Task):
    """Task of predicting a number for each example.

    The loss is the squared error. The data's labels are floats `[N]`.

    Args:
        net: Net from inputs `[n, ...]` to `[n]` or `[n, 1]`. Nets of Lit-CFL go by their short names, and get one
            output.
        optimizer: Any `torch.optim` class, with its options.
        scores: Scores, the main one first: `mae` (mean absolute error), `mse` (mean squared error), `rmse` (its root),
            `r2` (coefficient of determination), or your own by its path, such as `my_scores.median_error`: a function
            of all outputs `[n, 1]` and labels `[n]` of a client. None = mae.
    """

    scores: Scores = (_MAE,)
    labels = ("numbers",)

    def __init__(
        self,
        net: Net | nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.SGD,
        scores: ScoreNames | None = None,
    ) -> None:
        super().__init__(net, optimizer)
        if scores is not None:
            self.scores = named_scores(scores, OF_NUMBERS)

    def losses(self, batch: Batch) -> Tensor:
        """Computes the squared error of each example `[n]`."""
        return (self._predicted(batch) - batch[1]).square()

    def outcomes(self, batch: Batch) -> tuple[Tensor, ...]:
        """Computes squared errors `[n]` and per-example scores in one pass, then the outputs if a score needs sets.

        Absolute errors are also there if all scores are a subclass's own means, whose `outcomes` may build on them.
        """
        predicted, scores = self._predicted(batch), scores_of(self)
        errors = predicted - batch[1]
        values, means = {_MAE: errors.abs(), _MSE: errors.square()}, per_example(scores)
        of_sets = [predicted[:, None]] if len(means) < len(scores) else []
        known = [values[score] for score in means if score in values] or ([] if of_sets else [errors.abs()])
        return errors.square(), *known, *of_sets

    def mix_outputs(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Takes the weighted mean of the predictions; see `mixed_numbers`."""
        return mixed_numbers(outputs, weights)

    def predict_step(self, batch: Batch | Tensor, batch_idx: int = 0) -> Tensor:
        """Predicts numbers `[n]`."""
        inputs = batch if isinstance(batch, Tensor) else batch[0]
        predicted: Tensor = self(inputs)
        return predicted.flatten()

    def _predicted(self, batch: Batch) -> Tensor:
        predicted: Tensor = self(batch[0])
        if predicted.shape == (len(batch[1]), 1):
            predicted = predicted[:, 0]
        if predicted.shape != batch[1].shape:
            raise ValueError(
                f"the net returns shape {tuple(predicted.shape)} for {len(batch[1])} labels; return one number per "
                "label"
            )
        return predicted
