"""Tests a comparison's statistics, the share of the gap to Oracle, and tables with unusual names."""

import csv
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.ft2font import FT2Font

from lit_cfl.compare.arguments import ALL_COLUMNS, TABLE, read_arguments
from lit_cfl.compare.results import (
    COLUMNS,
    Results,
    common_target,
    gaps_closed,
    mark_best,
    run_columns,
    verdict,
)
from lit_cfl.compare.tables import _columns, as_latex, as_markdown, read_notes, write_tables
from lit_cfl.errors import InputError
from lit_cfl.scores import ACCURACY, CLASSIFIER, Score
from lit_cfl.statistics import Interval, interval, p_value


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
    text = as_latex(
        results(r"a_b & 50% #1 {x} ~^ \y $z |<>", "[B]", rounds_with_all_clients=3, mib=2.0),
        ("test", "difference", "mib"),
    )
    name = r"a\_b \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{} \textbackslash{}y \$z "
    assert name + r"\textbar{}\textless{}\textgreater{} & 75.0 &  & -- \\" in text
    assert r"{}[B]$^\dagger$ & 75.0 $\pm$ 1.2 & +25.0 [$-$12.5, +50.0] & 2.0 \\" in text
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


def test_the_verdict_says_how_many_seeds_would_tell_a_point_from_those_that_are_unknown():
    """A deviation of 0.02 and a point of 0.01 are d = 0.5: 34 seeds. 2 / chi2(0.025; 2) is 2 / 0.0506 = 39.5."""
    close = gain("IFCA", 0.02, 0.0, -0.02) | {"point": 0.01, "seeds_needed": 34}
    told = gain("CFL", -0.2, -0.21, -0.2) | {"point": 0.01, "seeds_needed": 4}
    _, seeds = verdict([FIRST, close, told, FIRST | {"algorithm": "Local"}], ACCURACY)
    assert seeds == (
        "Seeds needed to tell a difference of one point (0.01) from FedAvg (two-sided paired t test at 5 %, power "
        "0.8): 34 for IFCA. That is rough: the deviation is estimated from 3 seeds, so it may take up to 39 times as "
        "many."
    )
    assert len(verdict([FIRST, told], ACCURACY)) == 1
    many = gain("B", *[0.02, -0.02] * 20) | {"algorithm": "B", "point": 12.5, "seeds_needed": 1250}
    _, seeds = verdict([FIRST, many], Score("mae", higher_is_better=False))
    assert "a difference of 12.5 (1 % of its MAE) from FedAvg" in seeds
    assert seeds.endswith(
        "1,250 for B. That is rough: the deviation is estimated from 40 seeds, so it may take up to 1.6 times as many."
    )


def test_the_verdict_corrects_for_the_number_of_algorithms():
    """Of 0.5, 0.65 and 0.95, t is the root of 28, and p = 1 - t / (t^2 + 2)^0.5 = 0.034: below 0.05, but not twice."""
    close, far = gain("A", 0.5, 0.65, 0.95), gain("B", 0.1, -0.1, 0.2)
    assert close["difference_low"] > 0
    assert p_value(interval([0.5, 0.65, 0.95])) == pytest.approx(1 - (28 / 30) ** 0.5)
    assert verdict([FIRST, close], ACCURACY) == [f"Test accuracy: A is better than FedAvg {HOW}."]
    assert verdict([FIRST, close, far], ACCURACY) == [f"Test accuracy: A and B cannot be told from FedAvg {HOW}."]


# The table for a paper


def percents(*names: str, score: Score = CLASSIFIER[0], seeds: int = 3) -> Results:
    """Makes results of some seeds: the first is worst, the second is best, and the third cannot be told from it."""
    values = ((0.5, 0.5625, 0.5), (0.75, 0.8125, 0.8125), (0.8125, 0.6875, 0.75))
    scores = {name: own[:seeds] for name, own in zip(names, values, strict=True)}

    def gain(name: str, other: str) -> Interval:
        return interval([a - b for a, b in zip(scores[name], scores[other], strict=True)])

    more = {"ari_mean": 0.875, "ari_sd": 0.125, "worst10": 0.25, "worst10_low": -0.0625, "worst10_high": 0.5}
    more |= {"rounds_with_all_clients": 0, "losing": 0.125, "seeds_needed": 1234, "runs": 3}
    rows = []
    for name, own in scores.items():
        found, over = interval(own), gain(name, names[0])
        ends = {"difference": over.mean, "difference_low": over.low, "difference_high": over.high} if rows else {}
        row = {"algorithm": name, "test_mean": found.mean, "test_sd": found.deviation}
        rows.append(dict.fromkeys(COLUMNS) | row | more | ends)
    mark_best(rows, score, gain)
    return Results([], rows, [], {}, score)


def lines_of_table(text: str) -> list[str]:
    """Checks what LaTeX needs of a table with booktabs, and returns its heading and its rows without their ends."""
    about, begin, top, head, middle, *rows, bottom, end = text.splitlines()
    assert about.startswith(r"% needs \usepackage{booktabs}")
    assert [top, middle, bottom, end] == [r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"]
    columns = re.fullmatch(r"\\begin\{tabular\}\{@\{\}(lr*)@\{\}\}", begin)
    for line in (head, *rows):
        assert line.endswith(r" \\")
        assert (line.count("{"), line.count("$") % 2) == (line.count("}"), 0)
        assert not re.search(r"(?<!\\)[%#_]", line)
        assert line.replace(r"\&", "").count("&") == len(columns[1]) - 1
    return [line.removesuffix(r" \\") for line in (head, *rows)]


def test_the_table_for_a_paper_has_percents_and_what_is_not_told_from_the_best_is_bold():
    """The gain of IFCA over CFL is -1, 2 and 1 sixteenths, so that CFL is not told from it; FedAvg is."""
    head, first, best, other = lines_of_table(as_latex(percents("FedAvg", "IFCA", "CFL")))
    assert head == r"algorithm & accuracy (\%) & difference to FedAvg"
    assert first == r"FedAvg & 52.1 $\pm$ 3.6 & "
    assert best == r"IFCA & \textbf{79.2} $\pm$ 3.6 & +27.1 [+18.1, +36.0]"
    assert other == r"CFL & \textbf{75.0} $\pm$ 6.2 & +22.9 [$-$0.8, +46.6]"
    mae = Score("mae", higher_is_better=False)
    head, first, *others = lines_of_table(as_latex(percents("A", "B", "C", score=mae), ["test"]))
    assert (head, first) == ("algorithm & test MAE", r"A & \textbf{0.521} $\pm$ 0.036")
    assert ["textbf" in line for line in others] == [False, True]
    rows = lines_of_table(as_latex(percents("A", "B", "C", seeds=1)))
    assert ["textbf" in row for row in rows[1:]] == [False, False, True]  # one seed tells nothing of CFL


def test_columns_of_the_table_for_a_paper_are_chosen_in_their_order():
    found = percents("FedAvg", "IFCA", "CFL-2")
    text = as_latex(found, ["ari", "losing", "worst10", "needed", "tuned", "test"])
    head, _, _, last = lines_of_table(text.replace("% without columns that are not known here: tuned\n", ""))
    assert head == r"algorithm & ARI & clients that lose & worst tenth (\%) & seeds needed & accuracy (\%)"
    assert last == r"CFL-2 & 0.88 $\pm$ 0.12 & 12.5\% & 25.0 [$-$6.2, 50.0] & 1234 & \textbf{75.0} $\pm$ 6.2"
    known = dict.fromkeys(COLUMNS, 1.0) | {"algorithm": "A", "ari_mean": None}
    counted, agreed = (_columns(Results([], [known | more], [], {})) for more in ({}, {"ari_mean": 1.0}))
    assert set(ALL_COLUMNS) | {"algorithm"} == counted.keys() | agreed.keys()
    given = ["--config", "quickstart", "--algorithms", "FedAvg", "--table"]
    assert read_arguments([*given, "ari", "test"]).table == ["ari", "test"]
    assert tuple(read_arguments(given[:-1]).table) == TABLE
    with pytest.raises(InputError, match=r"accuracy.*choose from 'seeds', 'test'"):
        read_arguments([*given, "accuracy"])


def test_the_default_table_is_no_wider_than_a_column():
    """Widths in points of Computer Modern at 9 points, 1.03 times as wide as 10 points, with bold 1.15 times."""
    font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts/ttf/cmr10.ttf")))
    font.set_size(9, 72)

    def width(cell: str) -> float:
        bold = re.sub(r".*textbf\{(.*?)\}.*", r"\1", cell) if "textbf" in cell else ""
        font.set_text(re.sub(r"\$.*?\$", "+", cell).replace(r"\%", "%").replace(r"\textbf", "").strip("{}"))
        return 1.03 * font.get_width_height()[0] / 64 + 0.15 * 5 * len(bold)

    lines = [line.split("&") for line in lines_of_table(as_latex(percents("FedAvg", "FedGrouProx", "LayerCFL")))]
    columns = [max(width(cell.strip()) for cell in column) for column in zip(*lines, strict=True)]
    assert 150 < sum(columns) + 12 * (len(columns) - 1) <= 3.3 * 72.27
