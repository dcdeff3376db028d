"""The scores of a task, in addition to its loss."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, Literal

from lit_cfl.errors import InputError

if TYPE_CHECKING:  # not imported, since names of scores are also read without PyTorch
    from torch import Tensor

    SetFunction = Callable[[Tensor, Tensor], Tensor | float]  # outputs [n, o], labels [n] -> a number, nan = undefined

__all__ = ["Score", "SetScore"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ABBREVIATIONS = re.compile(
    "ami|ap|ari|auc|auprc|auroc|bleu|cer|dcg|ece|f[12]|iou|mae|mape|mcc|mrr|mse|ndcg|nll|nmi|ppv|psnr|r2|rmse|rmsle|"
    "roc|smape|ssim|tnr|tpr|wer"
)  # words of scores' names that titles write in capitals
_TAKEN = (
    *("round", "cluster", "parent", "size", "n_test", "loss", "u", "v"),
    *("client", "true_cluster", "n_train", "n_val", "newcomer", "name", "n"),
)  # columns that no score may be named after


@dataclass(frozen=True)
class Score:
    """A score that is averaged over examples.

    A task gives a value and a weight for each example. The score of a set of examples is the transform of the weighted
    mean of their values.

    Args:
        name: Name in the score's columns, such as `test/weighted_<name>`: lower-case letters, digits and underscores.
        higher_is_better: Direction of the score, for everything that chooses or compares.
        transform: Transformation of the mean; `exp` makes a perplexity of a cross-entropy.
        worst: Value of an example whose loss is not finite, such as 0 for a share; None = nan, which leaves the score
            blank. A boolean value is always False.
        is_share: True if the score is always between 0 and 1, so that a target of 90 is refused.
    """

    name: str
    higher_is_better: bool = True
    transform: Literal["none", "exp"] = "none"
    worst: float | None = None
    is_share: bool = field(default=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _TAKEN:
            raise InputError(
                f"a score is named {self.name!r}; give lower-case letters, digits and underscores, and none of "
                f"{', '.join(_TAKEN)}"
            )
        if self.transform not in ("none", "exp"):
            raise InputError(f"the transform of the score {self.name!r} is {self.transform!r}; give none or exp")

    @property
    def title(self) -> str:
        """The score's name as it is written within a sentence; see `title_of`."""
        return title_of(self.name)

    @property
    def heading(self) -> str:
        """The score's name as it is written in a heading: `Balanced accuracy`, `AUROC`."""
        return self.title[0].upper() + self.title[1:]

    @property
    def best_column(self) -> str:
        """The key in `summary.json` of the test score in the best round."""
        return f"test/{'max' if self.higher_is_better else 'min'}_weighted_{self.name}"

    def of(self, sums: "Tensor", weights: "Tensor") -> "Tensor":
        """Computes the score of sets of examples from the sums of weighted values and of weights.

        Args:
            sums: Sum of value times weight, float64 `[...]`.
            weights: Sums of the weights `[...]`.

        Returns:
            float64 `[...]`, nan where the weights are 0.
        """
        mean = sums / weights
        return mean.exp() if self.transform == "exp" else mean

    def better(self, one: float, other: float) -> bool:
        """Returns whether one value is better than another; False if one of them is nan."""
        return one > other if self.higher_is_better else one < other


@dataclass(frozen=True)
class SetScore(Score):
    """A score of a set of examples that is not a mean over them, such as AUROC.

    It is computed from all outputs and labels of a client; for a cluster, and over all clients, from their outputs and
    labels together. A client for which it is undefined is left out of means over clients, and counted.

    Args:
        name: See `Score`.
        higher_is_better: See `Score`.
        is_share: See `Score`.
        function: Takes the module's outputs `[n, ...]` (flattened to `[n, o]`, float64) and the labels `[n]`, both on
            the CPU, and returns a number; nan if it is undefined for these labels.
    """

    function: "SetFunction | None" = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(
                f"the score {self.name!r} has the function {self.function!r}; give a function of all outputs and labels"
            )

    def of_set(self, outputs: "Tensor", labels: "Tensor") -> float:
        """Computes the score of a set; nan without examples, or if it is undefined.

        Raises:
            InputError: The function did not return a number.
        """
        if self.function is None or not len(labels):
            return nan
        found = self.function(outputs, labels)
        try:
            return float(found)
        except (TypeError, ValueError, RuntimeError) as error:
            shape = getattr(found, "shape", None)
            form = repr(found) if shape is None else f"a tensor of shape {tuple(shape)}"
            raise InputError(f"the function of the score {self.name!r} returned {form}; return one number") from error


def title_of(name: str) -> str:
    """Formats a score's name as text, such as `balanced accuracy`; abbreviations such as `MAE` are in capitals."""
    return " ".join(word.upper() if _ABBREVIATIONS.fullmatch(word) else word for word in name.split("_"))


ACCURACY = Score("accuracy", is_share=True)  # default score: the share of right answers
Scores = tuple[Score, ...]  # scores of a task; the first is the main one
CLASSIFIER: Scores = (ACCURACY,)


def per_example(scores: Scores) -> Scores:
    """Returns the scores that are means over examples."""
    return tuple(score for score in scores if not isinstance(score, SetScore))


def describe_scores(scores: Scores) -> list[dict[str, Any]]:
    """Describes scores for files: names and directions, the main score first."""
    return [{name: getattr(score, name) for name in ("name", "higher_is_better", "is_share")} for score in scores]


def read_scores(content: Mapping[str, Any]) -> Scores:
    """Reads a run's scores from its `summary.json` or `environment.json`; accuracy if they are missing."""
    return tuple(Score(**described) for described in content.get("scores") or ()) or CLASSIFIER


def scores_of(module: Any) -> Scores:
    """Reads the scores from a LightningModule's attribute `scores`; accuracy by default.

    Raises:
        InputError: the attribute is not a tuple of scores with different names.
    """
    scores = getattr(module, "scores", CLASSIFIER)
    name = type(module).__name__
    if not isinstance(scores, tuple) or not scores or not all(isinstance(score, Score) for score in scores):
        raise InputError(
            f"{name}.scores is {' '.join(repr(scores).split()):.60}; give a tuple of lit_cfl.scores.Score, such as "
            '(Score("mae", higher_is_better=False),)'
        )
    if len({score.name for score in scores}) < len(scores):
        raise InputError(f"{name}.scores names {', '.join(score.name for score in scores)}; give each its own name")
    return scores
