"""Tests the table at the end of a run and its notes, on invented runs."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import write_table
from rich.console import Console

from lit_cfl.client_scores import SplitScores
from lit_cfl.metric_names import client_columns
from lit_cfl.progress.summary_table import closing_table
from lit_cfl.progress.tables import score_table
from lit_cfl.runs.run import FinishedRun
from lit_cfl.runs.shared_clients import describe_small_tests
from lit_cfl.scores import ACCURACY, CLASSIFIER, Score, describe_scores

pytestmark = pytest.mark.nightly  # a table of tests states these facts

CLIENTS = [(0, 0, 4), (1, 0, 2), (2, 2, 2), (3, 2, 8), (4, 2, 2)]  # client, cluster, test examples
MINE = (0.5, 1.0, 0.5, 0.75, 0.25)
MAE = Score("mae", higher_is_better=False)


def ended(path: Path, algorithm: str, values: tuple[float, ...], score: Score = ACCURACY, seed: int = 0) -> FinishedRun:
    """Makes a finished run of five clients and a newcomer, whose true clusters are unknown."""
    path.mkdir(parents=True)
    rows = [
        {"client": client, "cluster": cluster, "n_test": size, score.name: value, "newcomer": 0}
        for (client, cluster, size), value in zip(CLIENTS, values, strict=True)
    ]
    rows.append({"client": 5, "cluster": 1, "n_test": 9, score.name: 0.125, "newcomer": 1})
    write_table(path / "clients.csv", client_columns((score,)), rows)
    sizes = [size for *_, size in CLIENTS]
    weighted = sum(size * value for size, value in zip(sizes, values, strict=True)) / sum(sizes)
    summary: dict[str, Any] = {"algorithm": algorithm, "seed": seed, "clusters/ari": None, "clusters/silhouette": 0.375}
    summary |= {f"test/weighted_{score.name}": weighted, f"test/mean_{score.name}": sum(values) / 5}
    summary |= {f"test/worst10_{score.name}": min(values), score.best_column: 0.96875}
    summary |= {"clusters/unobserved": 0, "clusters/assigned": 5, "clients/evaluated": 5}
    summary["scores"] = describe_scores((score,))
    summary |= {
        "traffic/mib": 12.5,
        "traffic/round_mib": 2.5,
        "time/elapsed_seconds": 31.5,
        "time/training_seconds": 9.0,
    }
    return FinishedRun(path, summary)


def printed(finished: FinishedRun) -> list[str]:
    closing_table(Console(file=(out := StringIO()), width=200), finished)
    return [re.sub(r" {2,}", "  ", line.rstrip()) for line in out.getvalue().splitlines()]


def test_a_row_has_the_scores_the_agreement_the_traffic_and_the_time(tmp_path: Path):
    finished = ended(tmp_path / "run", "IFCA", MINE)
    finished.summary |= {"clusters/ari": 0.25, "clusters/ami": 0.75}
    head, row, *_ = printed(finished)
    assert head.split("  ")[1:] == ["weighted accuracy", "mean", "worst 10 %", "ARI", "traffic MiB", "time s"]
    assert row == "IFCA  0.639  0.600  0.250  0.25  12.5  31.5"  # 11.5 of 18, and 3 of 5


def test_the_score_of_newcomers_is_printed(tmp_path: Path):
    finished = ended(tmp_path / "run", "IFCA", MINE)
    finished.summary["test/newcomers_accuracy"] = 0.125
    note = "(IFCA on newcomers, which did not train: weighted accuracy 0.125; clients.csv has the score of each)"
    assert note in printed(finished)


def test_a_run_without_test_examples_says_so(tmp_path: Path):
    finished = ended(tmp_path / "run", "IFCA", MINE)
    finished.summary |= {f"test/{mean}_accuracy": None for mean in ("weighted", "mean", "worst10")}
    # not printed for a diverged run, which has no scores at all
    assert "no client has test examples" not in "".join(printed(finished))
    finished.summary["val/weighted_accuracy"] = 0.5
    assert "(no client has test examples: set data.test, or test of data.partition, such as 0.2)" in printed(finished)


def test_clients_with_few_test_examples_are_counted(tmp_path: Path):
    lines = printed(ended(tmp_path / "run", "IFCA", MINE))
    assert (
        "(4 of 5 clients have fewer than 5 test examples: in means over clients they count as much as the others)"
        in lines
    )
    assert describe_small_tests([1, 5, 9]).startswith("1 of 3 clients has fewer than 5 test examples: in means over")
    assert describe_small_tests([5, 9]) == describe_small_tests([1, 2]) == describe_small_tests([]) == ""


def test_without_true_clusters_cluster_sizes_and_silhouette_are_printed(tmp_path: Path):
    lines = printed(ended(tmp_path / "run", "IFCA", MINE))
    assert lines[1] == "IFCA  0.639  0.600  0.250  12.5  31.5"
    assert "ARI" not in "".join(lines)
    assert "Cluster sizes: 2, 3." in lines  # the newcomer is not counted
    assert "Silhouette of the updates at their last comparison: 0.38 (1 = well separated, 0 = not separated)." in lines
    unknown = ended(tmp_path / "unknown", "IFCA", MINE)
    unknown.summary["clusters/silhouette"] = None
    assert "Silhouette" not in "".join(printed(unknown))


def test_little_traffic_does_not_look_like_none(tmp_path: Path):
    for mib, shown in (
        (0.034, "0.034"),
        (0.0, "0.0"),
        (0.25, "0.25"),
        (0.0097, "0.0097"),
        (0.098, "0.098"),
        (12.34, "12.3"),
    ):
        finished = ended(tmp_path / str(mib), "IFCA", MINE)
        finished.summary["traffic/mib"] = mib
        assert printed(finished)[1].split()[4] == shown


@pytest.mark.parametrize(
    ("score", "baseline", "gain"),
    [
        (ACCURACY, (0.25, 0.5, 0.75, 0.75, 0.5), "+0.050 on average; 40% of clients lose."),
        (ACCURACY, (0.25, 0.5, 0.5, 0.875, 0.0), "+0.175 on average; 20% of clients lose."),
        (ACCURACY, (0.5, 1.0, 0.5, 0.75, 0.25), "+0.000 on average; 0% of clients lose."),
        (MAE, (0.75, 1.5, 0.25, 0.75, 0.5), "+0.150 on average; 20% of clients lose."),
        (MAE, (0.25, 0.5, 0.5, 0.875, 0.0), "-0.175 on average; 60% of clients lose."),
    ],
)
def test_the_gain_is_a_mean_over_clients_and_better_is_above_0(
    score: Score, baseline: tuple[float, ...], gain: str, tmp_path: Path
):
    finished = ended(tmp_path / "run", "IFCA", MINE, score)
    finished.baseline = ended(tmp_path / "run" / "baseline", "FedAvg", baseline, score)
    lines = printed(finished)
    assert lines[0].split("  ")[1] == f"weighted {'MAE' if score is MAE else 'accuracy'}"
    (said,) = [line for line in lines if line.startswith("Gain per client")]
    assert said == f"Gain per client over FedAvg: {gain}"


def test_of_several_seeds_each_has_its_sizes_and_the_gains_are_of_all_clients(tmp_path: Path):
    parts = [ended(tmp_path / f"seed-{k}", "IFCA", MINE, seed=k) for k in (3, 7)]
    others = [(0.25, 0.5, 0.75, 0.75, 0.5), (0.25, 0.5, 0.5, 0.5, 0.0)]
    baselines = [
        ended(tmp_path / f"seed-{k}" / "baseline", "FedAvg", v, seed=k) for k, v in zip((3, 7), others, strict=True)
    ]
    summaries = [part.summary | {"seeds": 2} for part in (parts[0], baselines[0])]
    baseline = FinishedRun(tmp_path, summaries[1], seeds=baselines)
    lines = printed(FinishedRun(tmp_path, summaries[0], baseline, parts))
    assert [line for line in lines if line.startswith("Cluster sizes")] == [
        "Cluster sizes of seed 3: 2, 3.",
        "Cluster sizes of seed 7: 2, 3.",
    ]
    # gains are 0.25, 0.5, -0.25, 0, -0.25 and 0.25, 0.5, 0, 0.25, 0.25
    assert "Gain per client over FedAvg: +0.150 on average; 20% of clients lose." in lines
    assert any("means of 2 seeds" in line for line in lines)


def scores(right: list[int], count: list[int], loss: list[float]) -> SplitScores:
    sums, weights = (torch.tensor([part], dtype=torch.float64) for part in (right, count))
    return SplitScores(CLASSIFIER, torch.tensor(count), torch.tensor(loss, dtype=torch.float64), sums, weights)


def test_the_table_of_scores_has_a_line_for_each_split_with_its_own_clients():
    found = {
        "validation": scores([1, 3, 0], [2, 4, 0], [1.0, 2.0, 0.0]),
        "test": scores([1, 6, 4], [2, 8, 4], [1, 2.5, 7]),
    }
    score_table(Console(file=(out := StringIO()), width=200), found)
    head, *lines = [line.split() for line in out.getvalue().splitlines()]
    assert " ".join(head) == "clients weighted accuracy mean worst 10 % loss"
    assert lines == [
        ["validation", "2", "0.667", "0.625", "0.500", "0.500"],
        ["test", "3", "0.786", "0.750", "0.500", "0.750"],
    ]
