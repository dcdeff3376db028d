"""Classification with several labels per example: the LightningModule of clients whose labels are `[N, L]`."""

from collections.abc import Callable, Iterable
from functools import partial
from math import nan

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net
from lit_cfl.scores import Score, SetScore, per_example
from lit_cfl.tasks.base import Batch, Task, mixed_binary_logits
from lit_cfl.tasks.named_scores import KnownScores, ScoreNames, named_scores


def auroc_of_label(label: int, outputs: Tensor, labels: Tensor) -> float:
    """Computes the area under the ROC curve of one label; nan if all or no examples have it.

    Args:
        label: Number of the label.
        outputs: Logits `[n, L]`.
        labels: Labels `[n, L]`; an example has those above 0.5.

    Raises:
        InputError: There is no such label.
    """
    from torchmetrics.functional.classification import binary_auroc

    has = _column(labels, label, "auroc")
    if has.all() or not has.any():
        return nan
    return float(binary_auroc(outputs[:, label].sigmoid(), has.int(), validate_args=False))


def f1_of_label(label: int, outputs: Tensor, labels: Tensor) -> float:
    """Computes the F1 score of one label; nan if it neither occurs nor is predicted. See `auroc_of_label`."""
    from torchmetrics.functional.classification import binary_f1_score

    has, predicted = _column(labels, label, "f1"), outputs[:, label] > 0
    if not (has | predicted).any():
        return nan
    return float(binary_f1_score(predicted.int(), has.int(), validate_args=False))


def mean_over_labels(of_label: Callable[[int, Tensor, Tensor], float], outputs: Tensor, labels: Tensor) -> float:
    """Computes the mean of a score of one label over the labels with a defined value; nan if there are none."""
    values = [of_label(k, outputs, labels) for k in range(labels.shape[1])]
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


def _column(labels: Tensor, label: int, score: str) -> Tensor:
    if label >= labels.shape[1]:
        raise InputError(
            f"the score '{score}_{label}' is of label {label}, but labels are 0 to {labels.shape[1] - 1}; name another"
        )
    return labels[:, label] > 0.5


_LABEL_ACCURACY = Score("label_accuracy", worst=0.0, is_share=True)
_EXACT_MATCH = Score("exact_match", worst=0.0, is_share=True)
_KNOWN = KnownScores(
    (
        _LABEL_ACCURACY,
        _EXACT_MATCH,
        SetScore("auroc", function=partial(mean_over_labels, auroc_of_label), is_share=True),
        SetScore("f1", function=partial(mean_over_labels, f1_of_label), is_share=True),
    ),
    {"auroc": auroc_of_label, "f1": f1_of_label},
    "label",
)


class MultiLabel(Task):
    """Task of predicting which of several labels each example has.

    The loss of an example is the mean of the binary cross-entropies of its labels. The data's labels are bool or floats
    of 0 to 1 `[N, L]`.

    Args:
        net: Net from inputs `[n, ...]` to one logit per label `[n, L]`. Nets of Lit-CFL go by their short names.
        optimizer: Any `torch.optim` class, with its options.
        scores: Scores, the main one first: `label_accuracy` (share of an example's labels that are right),
            `exact_match` (all of them are), `auroc` and `f1` (means over labels), `auroc_<label>`, `f1_<label>`, or
            your own by its path, such as `my_scores.kappa`: a function of all outputs `[n, L]` and labels `[n, L]` of a
            client. None = label_accuracy and exact_match.
    """

    labels = ("multi-label",)

    def __init__(
        self,
        net: Net | nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.SGD,
        scores: ScoreNames | None = None,
    ) -> None:
        super().__init__(net, optimizer)
        self.scores = named_scores(["label_accuracy", "exact_match"] if scores is None else scores, _KNOWN)

    def losses(self, batch: Batch) -> Tensor:
        """Computes the mean binary cross-entropy of each example's labels, `[n]`."""
        return _losses(self(batch[0]), batch[1])

    def outcomes(self, batch: Batch) -> tuple[Tensor, ...]:
        """Computes losses `[n]` and per-example scores in one pass, then the outputs if other scores need them."""
        outputs = self(batch[0])
        right = (outputs > 0) == (batch[1] > 0.5)
        values = {_LABEL_ACCURACY: right.to(outputs.dtype).mean(1), _EXACT_MATCH: right.all(1)}
        means = per_example(self.scores)
        of_sets = [outputs] if len(means) < len(self.scores) else []
        return _losses(outputs, batch[1]), *(values[score] for score in means), *of_sets

    def mix_outputs(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Mixes the probabilities that the models predict for each label; see `mixed_binary_logits`."""
        return mixed_binary_logits(outputs, weights)

    def predict_step(self, batch: Batch | Tensor, batch_idx: int = 0) -> Tensor:
        """Predicts labels, int64 `[n, L]`, 0 or 1; -1 if an output is nan."""
        outputs: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return (outputs > 0).long().where(~outputs.isnan(), -1)


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(1)
