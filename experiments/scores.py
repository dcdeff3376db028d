"""Computes a run's scores, which are compared with the papers' cells, from the files of its directory."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, pvariance

from experiments.files import Row
from lit_cfl.storage import read_table

SCORES = (
    "max_weighted_test_accuracy",
    "last_weighted_test_accuracy",
    "accuracy_max",
    "accuracy_median",
    "rounds_to_85",
    "discrepancy_mean",
    "discrepancy_variance",
    "test_accuracy",
    "global_accuracy",
    "traffic",
    "num_clusters",
    "ari",
    "validation_accuracy",
    "worst10_accuracy",
    "newcomers_accuracy",
    "tuned_accuracy",
    "worst10_tuned_accuracy",
    "tuned_validation_accuracy",
    "local_steps",
)
CURVE = (
    "round",
    "test/weighted_accuracy",
    "train/loss",
    "train/discrepancy",
    "traffic/models_down",
    "traffic/models_up",
    "clusters/count",
)


def read_scores(run: Path) -> Row:
    """Returns the scores of a finished run, its `rounds` and `seconds`; None for scores that it lacks.

    Accuracies are in percent.

    * `max_weighted_test_accuracy`: the papers' score, the maximum over the rounds in which every client was scored;
    * `last_weighted_test_accuracy`: the same in the last round;
    * `accuracy_max`, `accuracy_median`: over all rounds;
    * `rounds_to_85`: the first round with 85 %;
    * `discrepancy_mean`, `discrepancy_variance`: over all rounds;
    * `test_accuracy`: mean over clients in the last round;
    * `validation_accuracy`, `worst10_accuracy`, `newcomers_accuracy`: in the last round, over the validation parts, the
      worst tenth of the clients, and the clients that were held out;
    * `tuned_accuracy`, `worst10_tuned_accuracy`, `tuned_validation_accuracy`: the same as `test_accuracy`,
      `worst10_accuracy` and `validation_accuracy`, after fine-tuning;
    * `traffic`: models sent and received by all clients together;
    * `local_steps`: mini-batches of all clients together, excluding fine-tuning.
    """
    summary, rows = json.loads((run / "summary.json").read_text("utf-8")), read_table(run / "metrics.csv")
    accuracy, gaps = _read_column(rows, "test/weighted_accuracy"), _read_column(rows, "train/discrepancy")
    reached = [row["round"] for row in rows if (row["test/weighted_accuracy"] or 0) >= 0.85]
    percent = {
        "max_weighted_test_accuracy": summary.get("test/max_weighted_accuracy"),
        "last_weighted_test_accuracy": summary.get("test/weighted_accuracy"),
        "accuracy_max": max(accuracy, default=None),
        "accuracy_median": median(accuracy) if accuracy else None,
        "test_accuracy": summary.get("test/mean_accuracy"),
        "global_accuracy": summary.get("test/global_accuracy"),
        "validation_accuracy": summary.get("val/weighted_accuracy"),
        "worst10_accuracy": summary.get("test/worst10_accuracy"),
        "newcomers_accuracy": summary.get("test/newcomers_accuracy"),
        "tuned_accuracy": summary.get("test/mean_tuned_accuracy"),
        "worst10_tuned_accuracy": summary.get("test/worst10_tuned_accuracy"),
        "tuned_validation_accuracy": summary.get("val/tuned_accuracy"),
    }
    return {name: None if value is None else 100 * value for name, value in percent.items()} | {
        "rounds": summary["round"],
        "seconds": summary["time/elapsed_seconds"],
        "rounds_to_85": reached[0] if reached else None,
        "discrepancy_mean": fmean(gaps) if gaps else None,
        "discrepancy_variance": pvariance(gaps) if gaps else None,
        "traffic": summary["traffic/models_down"] + summary["traffic/models_up"],
        "num_clusters": summary.get("clusters/count"),
        "ari": summary.get("clusters/ari"),
        "local_steps": summary.get("local/steps"),
    }


def read_curve(run: Path) -> list[Row]:
    """Returns, for each round, the values that figures draw, with five significant digits."""
    rows = read_table(run / "metrics.csv")
    return [{name: _round_number(row.get(name)) for name in CURVE} for row in rows]


def _read_column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _round_number(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value
