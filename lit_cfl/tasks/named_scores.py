"""The scores of a task: built-in scores, known by name, and the user's own.

Set scores of a classifier use the softmax of the outputs as probabilities, and are computed by torchmetrics' functional
API.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import TYPE_CHECKING

from torch import Tensor

from lit_cfl.errors import InputError, suggest
from lit_cfl.options import import_object
from lit_cfl.scores import ACCURACY, Score, Scores, SetScore

if TYPE_CHECKING:
    ScoreNames = Sequence[str | Score]
else:
    ScoreNames = list[str]  # type in a configuration

_BINS = 15  # number of bins of the calibration error
_OF_ONE = re.compile(r"(\w+)_(\d+)")


def auroc(outputs: Tensor, labels: Tensor) -> float:
    """Computes the mean area under the ROC curve of each class against the rest; nan with one class.

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
    """Computes the mean F1 score of all classes that occur among labels or predictions; see `auroc`."""
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
        raise InputError(
            f"the score 'f1_{label}' is of class {label}, but classes are 0 to {outputs.shape[1] - 1}; name one of them"
        )
    if not ((labels == label) | (outputs.argmax(1) == label)).any():
        return nan
    return float(multiclass_f1_score(outputs, labels, outputs.shape[1], "none", validate_args=False)[label])


def balanced_accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the mean recall of all classes that occur among the labels; see `auroc`."""
    from torchmetrics.functional.classification import multiclass_recall

    recalls = multiclass_recall(outputs, labels, outputs.shape[1], "none", validate_args=False)
    return recalls[labels.unique()].mean()


def calibration_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the expected calibration error of the predicted classes, in 15 bins of equal width; see `auroc`."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    return multiclass_calibration_error(outputs.softmax(1), labels, outputs.shape[1], _BINS, validate_args=False)


@dataclass(frozen=True)
class KnownScores:
    """The scores that a task knows by name.

    Args:
        scores: Scores by their names.
        of_one: Functions of one class or label (its number is the first argument), by the name that precedes the
            number.
        one: Word for that number: `class` or `label`.
    """

    scores: Sequence[Score]
    of_one: Mapping[str, Callable[[int, Tensor, Tensor], float]]
    one: str = "class"

    def find(self, name: str) -> Score | None:
        """Finds a score by its name; None if there is none."""
        numbered = _OF_ONE.fullmatch(name)
        if numbered is not None and numbered[1] in self.of_one:
            return SetScore(name, function=partial(self.of_one[numbered[1]], int(numbered[2])), is_share=True)
        return next((score for score in self.scores if score.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        return (*(score.name for score in self.scores), *(f"{name}_<number of a {self.one}>" for name in self.of_one))


OF_CLASSES = KnownScores(
    (
        ACCURACY,
        SetScore("auroc", function=auroc, is_share=True),
        SetScore("balanced_accuracy", function=balanced_accuracy, is_share=True),
        SetScore("calibration_error", higher_is_better=False, function=calibration_error, is_share=True),
        SetScore("f1", function=f1, is_share=True),
    ),
    {"f1": f1_of_class},
)


def named_scores(names: Sequence[str | Score], known: KnownScores = OF_CLASSES) -> Scores:
    """Finds the scores of a task by their names.

    Args:
        names: Names of scores, such as `f1_<class>`; paths of your own such as `package.module.name`, of a function of
            all outputs and labels, or of a `SetScore`; or such scores themselves.
        known: Scores that the task has names for.

    Raises:
        InputError: There is no such score, a score is given twice, or none is given.
    """
    if isinstance(names, str) or not names:
        raise InputError(
            f"task.scores is {names!r}; give a list of scores, such as "
            f"[{known.scores[0].name}, {known.scores[-1].name}]"
        )
    found = tuple(_score(name, known) for name in names)
    if len({score.name for score in found}) < len(found):
        raise InputError(f"task.scores names {', '.join(score.name for score in found)}; give each once")
    return found


def _score(name: str | Score, known: KnownScores) -> Score:
    if isinstance(name, Score):
        if name not in known.scores and not isinstance(name, SetScore):
            raise InputError(
                f"task.scores has {name.name!r}, which is not a SetScore but a mean over examples; give a SetScore, "
                "or write your own task whose outcomes return this score"
            )
        return name
    if (built_in := known.find(name)) is not None:
        return built_in
    module, _, own = name.rpartition(".")
    if not module:
        raise InputError(
            f"task.scores names {name!r}, which is not a score{suggest(name, known.names)}. Known: "
            f"{', '.join(known.names)}, and your own functions by their path, such as my_scores.{name}"
        )
    found = import_object("task.scores", name)
    if isinstance(found, SetScore):
        return found
    if not callable(found):
        raise InputError(f"task.scores names {name!r}, which is {found!r}; give a function or a SetScore")
    return SetScore(own, function=found)
