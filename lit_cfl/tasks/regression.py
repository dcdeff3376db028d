"""Regression with squared errors: the LightningModule of clients whose labels are numbers."""

from torch import Tensor

from lit_cfl.scores import Score
from lit_cfl.tasks.base import Batch, Task, mixed_numbers


class Regression(Task):
    """Task of predicting a number for each example.

    The loss is the squared error, the score `mae` the mean absolute error. The data's labels are floats `[N]`.

    Args:
        net: Net from inputs `[n, ...]` to `[n]` or `[n, 1]`. Nets of Lit-CFL go by their short names, and get one
            output.
        optimizer: Any `torch.optim` class, with its options.
    """

    scores = (Score("mae", higher_is_better=False),)
    labels = ("numbers",)

    def losses(self, batch: Batch) -> Tensor:
        """Computes the squared error of each example `[n]`."""
        return self._errors(batch).square()

    def outcomes(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Computes squared and absolute errors, both `[n]`."""
        errors = self._errors(batch)
        return errors.square(), errors.abs()

    def mix_outputs(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Takes the weighted mean of the predictions; see `mixed_numbers`."""
        return mixed_numbers(outputs, weights)

    def predict_step(self, batch: Batch | Tensor, batch_idx: int = 0) -> Tensor:
        """Predicts numbers `[n]`."""
        inputs = batch if isinstance(batch, Tensor) else batch[0]
        predicted: Tensor = self(inputs)
        return predicted.flatten()

    def _errors(self, batch: Batch) -> Tensor:
        predicted: Tensor = self(batch[0])
        if predicted.shape == (len(batch[1]), 1):
            predicted = predicted[:, 0]
        if predicted.shape != batch[1].shape:
            raise ValueError(
                f"the net returns shape {tuple(predicted.shape)} for {len(batch[1])} labels; return one number per "
                "label"
            )
        return predicted - batch[1]
