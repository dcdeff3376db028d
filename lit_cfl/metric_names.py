"""The names of all metrics: columns of `metrics.csv` and keys of every logger. `docs/results.md` explains each."""

from collections.abc import Iterable, Sequence
from typing import Any

from lit_cfl.errors import suggest
from lit_cfl.scores import CLASSIFIER, Scores, SetScore

Row = dict[str, Any]  # row of a run's table: values by column name, None = blank

_MEANS = ("weighted", "mean", "std", "worst10")  # aggregates of a score over clients
_UNDEFINED = "undefined"  # number of clients for which a set score is undefined
_TUNED = ("tuned", "mean_tuned", "worst10_tuned")  # aggregates of a score after fine-tuning
_OF_TEST = ("global", "newcomers", "max_weighted", "min_weighted")  # further values of a score on test data
_LOWER = ("loss", "discrepancy")
_NEARLY_EQUAL = 0.85  # a metric at least this similar to a known one is a misspelling of it, not an unknown score

ARI_NOTE = "ARI: agreement with the true clusters, 1 = equal, 0 = chance."  # note below tables of several runs
RATE = "train/lr"  # a column of runs with a schedule of learning rates

CHOSEN = "clusters/chosen"  # a column of runs with num_clusters: auto
ENTROPY = "clusters/entropy"  # a column of runs whose clients use mixtures of models

LOCAL = ("local/steps", "local/examples", "local/scored_examples")

TEXT_COLUMNS = ("name", "layer")  # in a run's tables: may look like numbers, such as the layer 1.10

SHIFTS = ("round", "shift", "client", "partner", "examples", "cluster_before", "cluster_after")


def metric_columns(scores: Scores) -> tuple[str, ...]:
    """Lists the columns of `metrics.csv` for a task with these scores, without the algorithm's own."""
    of_split = [
        f"{mean}_{score.name}"
        for score in scores
        for mean in (*_MEANS, *([_UNDEFINED] if isinstance(score, SetScore) else []))
    ]
    of_split += ["loss", *(f"global_{score.name}" for score in scores)]
    return (
        "round",
        *(f"{split}/{metric}" for split in ("val", "test") for metric in of_split),
        "train/loss",
        "train/discrepancy",
        "clusters/count",
        "clusters/assigned",
        "clusters/unobserved",
        "clusters/ari",
        "clusters/ami",
        "clusters/purity",
        "clusters/matched_accuracy",
        "clusters/silhouette",
        "clusters/churn",
        "traffic/models_down",
        "traffic/models_up",
        "traffic/mib",
        "traffic/round_models_down",
        "traffic/round_models_up",
        "traffic/round_mib",
        *LOCAL,
        "clients/evaluated",
        "clients/skipped",
        "shift/clients",
        "shift/examples",
        "time/training_seconds",
        "time/evaluation_seconds",
        "time/elapsed_seconds",
    )


def tuned_columns(scores: Scores) -> tuple[str, ...]:
    """Lists the columns with scores after fine-tuning."""
    return tuple(f"{split}/{of}_{score.name}" for split in ("val", "test") for score in scores for of in _TUNED)


def cluster_columns(scores: Scores) -> tuple[str, ...]:
    """Lists the columns of `clusters.csv`."""
    return ("round", "cluster", "parent", "size", "n_test", *(score.name for score in scores), "loss", "u", "v")


def client_columns(scores: Scores) -> tuple[str, ...]:
    """Lists the columns of `clients.csv`."""
    first = ("client", "cluster", "true_cluster", "n_train", "n_val", "n_test")
    return (*first, *(score.name for score in scores), "loss", "newcomer")


def weight_columns(models: int) -> tuple[str, ...]:
    """Lists the weight columns of `clients.csv` for mixtures of this many models."""
    return tuple(f"weight_{number}" for number in range(models))


def choosable_columns(scores: Scores) -> tuple[str, ...]:
    """Lists the metrics that may be used for choices: validation and training metrics, never test metrics."""
    columns = (*metric_columns(scores), *tuned_columns(scores))
    known = (name for name in columns if name.startswith(("val/", "train/")))
    return tuple(name for name in known if not name.startswith(f"val/{_UNDEFINED}_"))


def suggest_column(name: str, known: Sequence[str]) -> str:
    """Returns a hint for an unknown metric: a similar one, else the weighted mean of a similar score."""
    usual, asked = "val/weighted_", name.rpartition("/")[2].removeprefix("weighted_")
    scores = [column.removeprefix(usual) for column in known if column.startswith(usual)]
    if asked in scores:  # val/accuracy is the weighted mean rather than val/std_accuracy, which is nearer in letters
        return f" (did you mean {usual}{asked}?)"
    near = suggest(asked, scores).replace("you mean ", f"you mean {usual}")
    return suggest(name, known, _NEARLY_EQUAL) or near or suggest(name, known)


def main_column(scores: Scores, split: str = "val") -> str:
    """Names the metric that stop rules, searches, tables and pictures use by default."""
    return f"{split}/weighted_{scores[0].name}"


def main_score(row: Iterable[str]) -> str:
    """Returns the name of the task's first score, given the columns or a row of `metrics.csv`."""
    first = main_column(CLASSIFIER).removesuffix(CLASSIFIER[0].name)
    return next(column for column in row if column.startswith(first)).removeprefix(first)


def higher_is_better(column: str, scores: Scores) -> bool:
    """Returns whether higher values of a metric are better.

    A score declares this. Of the other metrics, lower is better for losses, discrepancy and deviations.

    Args:
        column: Column of any file of a run, with or without its split.
        scores: Scores of the task.
    """
    metric = column.rpartition("/")[2]
    for score in scores:
        if metric in (f"std_{score.name}", f"{_UNDEFINED}_{score.name}"):
            return False
        if metric in (score.name, *(f"{of}_{score.name}" for of in (*_MEANS, *_TUNED, *_OF_TEST))):
            return score.higher_is_better
    return metric not in _LOWER


METRICS, CLUSTERS, CLIENTS = (of(CLASSIFIER) for of in (metric_columns, cluster_columns, client_columns))
