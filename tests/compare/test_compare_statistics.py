"""Tests a comparison's statistics, the share of the gap to Oracle, and tables with unusual names."""

import csv
from pathlib import Path
from typing import Any

import pytest

from lit_cfl.compare.results import (
    COLUMNS,
    Results,
    common_target,
    gaps_closed,
    run_columns,
    verdict,
)
from lit_cfl.compare.tables import as_latex, as_markdown, read_notes, write_tables
from lit_cfl.scores import ACCURACY, Score
from lit_cfl.statistics import interval, p_value


def test_the_common_target_is_just_worse_than_every_end():
    assert common_target([0.8, 0.7999, None, 0.91]) == 0.799
    assert common_target([None]) is None
    assert [common_target([value]) for value in (0.0129, 0.00478, 0.0, -0.5)] == [0.012, 0.0047, 0.0, -0.5]
    error = Score("mae", higher_is_better=False)
    assert common_target([0.8, 0.7001, None, 0.8003], error) == 0.801
    assert common_target([0.000412, 0.0002], error) == 0.00042  # not 0.001, which the first round may reach


def results(*names: str, **more: Any) -> Results:
    """Makes results with invented values for these algorithms."""
    plain: dict[str, Any] = dict.fromkeys(COLUMNS)
    plain |= {"runs": 2, "failed": 0, "target": 0.8, "reached": 0, "rounds_with_all_clients": 0, "test_mean": 0.75}
    whole = {"test_sd": 0.0125, "difference": 0.25, "difference_low": -0.125, "difference_high": 0.5, "reached": 1}
    found = [plain | {"algorithm": name} | (whole if k else {}) for k, name in enumerate(names)]
    found[-1] |= more
    runs = [
        dict.fromkeys(run_columns(ACCURACY))
        | {"algorithm": names[0], "seed": 3, "status": "failed", "error": 'a, "b"\nc'}
    ]
    return Results(runs, found, ["50 % of | them_", "Rounds, MiB and local steps: until 0.8."], {})


def test_tables_keep_their_columns_and_names_whatever_these_hold(tmp_path: Path):
    text = as_latex(results(r"a_b & 50% #1 {x} ~^ \y $z |<>", "[B]", rounds_with_all_clients=3, mib=2.0))
    name = r"a\_b \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{} \textbackslash{}y \$z "
    assert name + r"\textbar{}\textless{}\textgreater{} & 0.750 &  & -- \\" in text
    assert r"{}[B]$^\dagger$ & 0.750 $\pm$ 0.013 & +0.250 [$-$0.125, +0.500] & 2.0 \\" in text
    text = as_markdown(results("a|b", "<i>*c*\nd", rounds_to_target=4.0, mib_to_target=1.0), "x_y", "p.png")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(line.replace(r"\|", "").split("|")) for line in table] == [12] * 4
    assert table[2].startswith(r"| a\|b | 2 | 0.750 |  | 0 of 2 runs |")
    assert table[3].startswith(r"| \<i\>\*c\* d | 2 | 0.750 ± 0.013 | +0.250 \[-0.125, +0.500\] | 4.0 | 1.0 |")
    assert text.startswith("# x\\_y\n")
    assert read_notes(tmp_path) == []
    found = results("a,b", 'q"', test_sd=float("nan"))
    write_tables(tmp_path, found, "x", None)
    assert read_notes(tmp_path) == found.notes
    written = list(csv.DictReader((tmp_path / "results.csv").open()))
    cells = [(row["algorithm"], row["test_mean"], row["test_sd"], row["difference"]) for row in written]
    assert cells == [("a,b", "0.75", "", ""), ('q"', "0.75", "", "0.25")]
    assert tuple(written[0]) == COLUMNS
    (run,) = csv.DictReader((tmp_path / "runs.csv").open(newline=""))
    assert (run["error"], run["seed"], run["test_accuracy"]) == ('a, "b"\nc', "3", "")


CLASSES = {"mine": "IFCA", "average": "FedAvg", "bound": "Oracle", "equal": "FedAvg"}
ROWS: list[dict[str, Any]] = [{"algorithm": name, "class": kind, "added": None} for name, kind in CLASSES.items()]
# gains over "average": 1, 2 and 3 sixteenths; 4, 5 and 6 sixteenths (Oracle); none
ACCURACIES = {
    "mine": (0.3125, 0.625, 0.4375),
    "average": (0.25, 0.5, 0.25),
    "bound": (0.5, 0.8125, 0.625),
    "equal": (0.25, 0.5, 0.25),
}
T2 = 4.302653  # 97.5 % quantile of Student's t with two degrees of freedom


def runs(accuracies: dict[str, tuple[float | None, ...]], name: str = "accuracy") -> list[dict[str, Any]]:
    return [
        {"algorithm": algorithm, "seed": seed, f"test_{name}": value, "not_scored": 0}
        for algorithm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def shares(accuracies: dict[str, tuple[float | None, ...]], rows: list[dict[str, Any]] = ROWS) -> dict[str, Any]:
    return gaps_closed(rows, runs(accuracies), ACCURACY)


def test_share_of_the_gap_is_that_of_means_over_seeds_with_its_interval():
    """In sixteenths, the gains have the means 2 and 5, and both variances and the covariance are 1."""
    found = shares(ACCURACIES)
    k = T2**2 / 3
    a, b, c = 25 - k, 10 - k, 4 - k
    root = (b * b - a * c) ** 0.5
    assert found["mine"] == pytest.approx((0.4, (b - root) / a, (b + root) / a), rel=1e-6)
    assert (found["average"], found["bound"], found["equal"][0]) == ((0.0, None, None), (1.0, None, None), 0.0)
    assert shares({**ACCURACIES, "mine": (0.5, 0.75, 0.5)})["mine"][0] == 0.8  # 4, 4 and 4 sixteenths


def test_fedavg_closes_no_gap_where_lower_is_better():
    losses = {name: tuple(1 - value for value in values) for name, values in ACCURACIES.items()}
    found = gaps_closed(ROWS, runs(losses, "mae"), Score("mae", higher_is_better=False))
    assert str(found["average"][0]) == "0.0"  # not -0.0
    assert found["mine"] == pytest.approx(shares(ACCURACIES)["mine"])
    assert gaps_closed(ROWS, runs(ACCURACIES, "mae"), Score("mae", higher_is_better=False)) == {}


def test_the_gap_is_that_of_the_first_fedavg_and_the_oracle_with_the_same_layers():
    better = {**ACCURACIES, "average": (0.375, 0.625, 0.375)}
    assert shares(better)["average"][0] == 0.0
    other = [row | {"added": "bn*" if row["algorithm"] == "average" else None} for row in ROWS]
    found = shares(better, other)
    assert (found["equal"], found["bound"], found["average"][0]) == ((0.0, None, None), (1.0, None, None), 0.4)
    assert shares(ACCURACIES, other[:-1]) == {}
    assert shares(ACCURACIES, ROWS[:2]) == {}


def test_only_seeds_count_under_which_all_three_score_everyone():
    assert shares({name: values[:2] for name, values in ACCURACIES.items()}) == {}  # 4 and 5: T1 is 12.7
    more = {name: (*values, 0.0) for name, values in ACCURACIES.items()}
    some = runs({**more, "bound": (*ACCURACIES["bound"], None)})
    assert gaps_closed(ROWS, some, ACCURACY) == shares(ACCURACIES)
    some = runs({**more, "mine": (*ACCURACIES["mine"], 1.0)})
    for run in some:
        run["not_scored"] = 3 if (run["algorithm"], run["seed"]) == ("average", 3) else 0
    assert gaps_closed(ROWS, some, ACCURACY) == shares(ACCURACIES)


def gain(name: str, *values: float) -> dict[str, Any]:
    found = interval(values)
    ends = {"difference": found.mean, "difference_low": found.low, "difference_high": found.high}
    return {"algorithm": name, "pairs": found.count} | ends


FIRST = {"algorithm": "FedAvg", "pairs": None, "difference": None, "difference_low": None, "difference_high": None}
HOW = "(paired t tests over seeds at 5 %, with Holm's correction)"


def test_the_verdict_says_what_is_better_or_worse_than_the_first_or_cannot_be_told_from_it():
    better, worse, unknown = gain("IFCA", 0.3, 0.31, 0.29), gain("CFL", -0.2, -0.21, -0.2), gain("FLHC", 0.1, -0.1, 0.2)
    missing = FIRST | {"algorithm": "Local", "pairs": 1, "difference": 0.5}
    assert verdict([FIRST, unknown, worse, better], ACCURACY) == [
        f"Test accuracy: IFCA is better than FedAvg; CFL is worse than FedAvg; FLHC cannot be told from FedAvg {HOW}."
    ]
    (other,) = verdict([FIRST, unknown, worse, better, missing], Score("mae", higher_is_better=False))
    assert other.startswith("Test MAE: CFL is better than FedAvg; IFCA is worse than FedAvg; FLHC and Local cannot")
    assert verdict([FIRST, missing], ACCURACY) == [
        "Test accuracy: Local cannot be told from FedAvg (a test needs two seeds)."
    ]
    assert verdict([FIRST], ACCURACY) == []
    names = [{**better, "algorithm": name} for name in "ABC"]
    assert verdict([FIRST, *names], ACCURACY) == [f"Test accuracy: A, B and C are better than FedAvg {HOW}."]


def test_the_verdict_corrects_for_the_number_of_algorithms():
    """Of 0.5, 0.65 and 0.95, t is the root of 28, and p = 1 - t / (t^2 + 2)^0.5 = 0.034: below 0.05, but not twice."""
    close, far = gain("A", 0.5, 0.65, 0.95), gain("B", 0.1, -0.1, 0.2)
    assert close["difference_low"] > 0
    assert p_value(interval([0.5, 0.65, 0.95])) == pytest.approx(1 - (28 / 30) ** 0.5)
    assert verdict([FIRST, close], ACCURACY) == [f"Test accuracy: A is better than FedAvg {HOW}."]
    assert verdict([FIRST, close, far], ACCURACY) == [f"Test accuracy: A and B cannot be told from FedAvg {HOW}."]
