"""The scores of a classifier that go by a name, and those of one's own.

Scores of sets take softmax of the outputs as probabilities and are computed by torchmetrics' functional API.
"""

import re
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from math import nan
from typing import TYPE_CHECKING

from torch import Tensor

from lit_cfl.errors import InputError, in_short, nearest
from lit_cfl.scores import ACCURACY, Score, Scores, SetScore

if TYPE_CHECKING:
    ScoreNames = Sequence[str | Score]
else:
    ScoreNames = list[str]  # of a configuration

_BINS = 15  # of the calibration error
_OF_CLASS = re.compile(r"f1_(\d+)")


def auroc(outputs: Tensor, labels: Tensor) -> float:
    """Computes the mean of the areas under the ROC curves of each class against the rest; nan with one class.

    Only classes that occur count: without examples a class has no curve.

    Args:
        outputs: Logits `[n, classes]`.
        labels: Classes `[n]`.
    """
    from torchmetrics.functional.classification import binary_auroc

    present = labels.unique().tolist()
    if len(present) < 2:
        return nan
    shares = outputs.softmax(1)
    areas = [float(binary_auroc(shares[:, k], (labels == k).int(), validate_args=False)) for k in present]
    return sum(areas) / len(areas)


def f1(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the mean of the F1 scores of all classes that occur among labels or predictions; see `auroc`."""
    from torchmetrics.functional.classification import multiclass_f1_score

    return multiclass_f1_score(outputs, labels, outputs.shape[1], "macro", validate_args=False)


def f1_of_class(label: int, outputs: Tensor, labels: Tensor) -> float:
    """Computes the F1 score of one class; nan if it occurs neither among labels nor among predictions.

    Args:
        label: The class.
        outputs, labels: See `auroc`.

    Raises:
        InputError: There is no such class.
    """
    from torchmetrics.functional.classification import multiclass_f1_score

    if label >= outputs.shape[1]:
        raise InputError(f"the score 'f1_{label}' is of class {label}, but classes are 0 to {outputs.shape[1] - 1}")
    if not ((labels == label) | (outputs.argmax(1) == label)).any():
        return nan
    return float(multiclass_f1_score(outputs, labels, outputs.shape[1], "none", validate_args=False)[label])


def balanced_accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the mean of the recalls of all classes that occur among the labels; see `auroc`."""
    from torchmetrics.functional.classification import multiclass_recall

    recalls = multiclass_recall(outputs, labels, outputs.shape[1], "none", validate_args=False)
    return recalls[labels.unique()].mean()


def calibration_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the expected calibration error of the predicted classes, in 15 bins of equal width; see `auroc`."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    return multiclass_calibration_error(outputs.softmax(1), labels, outputs.shape[1], _BINS, validate_args=False)


_NAMED: dict[str, Score] = {
    score.name: score
    for score in (
        ACCURACY,
        SetScore("auroc", function=auroc),
        SetScore("balanced_accuracy", function=balanced_accuracy),
        SetScore("calibration_error", higher_is_better=False, function=calibration_error),
        SetScore("f1", function=f1),
    )
}


def named_scores(names: Sequence[str | Score]) -> Scores:
    """Finds the scores that a classifier is measured by.

    Args:
        names: Names of scores; `f1_<class>`; paths of one's own such as `package.module.name`, of a function of all
            outputs and labels, or of a `SetScore`; or such scores themselves.

    Raises:
        InputError: There is no such score, a score is there twice, or none is given.
    """
    if isinstance(names, str) or not names:
        raise InputError(f"task.scores is {names!r}; give a list of scores, such as [accuracy, f1]")
    found = tuple(_score(name) for name in names)
    if len({score.name for score in found}) < len(found):
        raise InputError(f"task.scores names {', '.join(score.name for score in found)}; give each once")
    return found


def _score(name: str | Score) -> Score:
    if isinstance(name, Score):
        if name != ACCURACY and not isinstance(name, SetScore):
            raise InputError(
                f"task.scores has the score {name.name!r}, a mean over examples; add it in a task of your own, whose "
                "outcomes return it, or give a SetScore"
            )
        return name
    if (of_class := _OF_CLASS.fullmatch(name)) is not None:
        return SetScore(name, function=partial(f1_of_class, int(of_class[1])))
    if name in _NAMED:
        return _NAMED[name]
    module, _, own = name.rpartition(".")
    if not module:
        raise InputError(
            f"task.scores names {name!r}, which is no score{nearest(name, tuple(_NAMED))}. There are: "
            f"{', '.join(_NAMED)}, f1_<class>, and functions of your own by their path, such as my_scores.{name}"
        )
    return _own(name, module, own)


def _own(path: str, module: str, name: str) -> Score:
    """Imports a score of one's own."""
    try:
        found: object = getattr(import_module(module), name)
    except Exception as error:  # whatever a user's module raises
        raise InputError(f"task.scores names {path!r}, which cannot be imported: {in_short(error)}") from error
    if isinstance(found, SetScore):
        return found
    if not callable(found):
        raise InputError(f"task.scores names {path!r}, which is {found!r}; give a function or a SetScore")
    return SetScore(name, function=found)
