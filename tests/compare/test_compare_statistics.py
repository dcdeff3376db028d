"""Tests a comparison's statistics, the share of the gap to Oracle, and tables with unusual names."""

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_cfl.compare.results import COLUMNS, NOTE_ON_COSTS, Results, common_target, cost_of, gaps_closed, run_columns
from lit_cfl.compare.tables import as_latex, as_markdown, cells, latex, read_notes, show_table, write_tables
from lit_cfl.scores import ACCURACY, CLASSIFIER, Score


def rows(*accuracies: float | None, unplaced: dict[int, int] | None = None) -> list[dict[str, Any]]:
    return [
        {
            "round": 2 * k + 1,
            "test/weighted_accuracy": accuracy,
            "traffic/mib": 0.5 + k,
            "local/steps": 10 * (k + 1),
            "local/examples": 100 * (k + 1),
            "clusters/unobserved": (unplaced or {}).get(k, 0),
            "clusters/assigned": 40 - (unplaced or {}).get(k, 0),
            "clients/evaluated": 40 - (unplaced or {}).get(k, 0),
        }
        for k, accuracy in enumerate(accuracies)
    ]


def reached(rounds: int, mib: float) -> dict[str, Any]:
    steps = 5 * (rounds + 1)  # 10 more at each evaluation, in rounds 1, 3, ...
    local = {"local_steps_to_target": steps, "local_examples_to_target": 10 * steps}
    return {"rounds_to_target": rounds, "mib_to_target": mib} | local


def test_cost_is_of_the_first_round_that_reaches_the_target():
    assert cost_of(rows(0.1, 0.5, 0.4, 0.6), 0.5) == reached(3, 1.5)  # evaluated in rounds 1, 3, 5 and 7
    assert cost_of(rows(0.1, None, 0.4, 0.6), 0.45) == reached(7, 3.5)
    assert cost_of(rows(0.1, 0.5), 0.6) is None
    assert cost_of(rows(0.1, 0.5), None) is None
    assert cost_of([], 0.5) is None


def test_a_round_in_which_clients_have_no_model_does_not_count():
    table = rows(0.9, 0.9, 0.8, unplaced={0: 30, 1: 1})
    assert cost_of(table, 0.5) == reached(5, 2.5)
    assert cost_of([row | {"clients/evaluated": 40} for row in table], 0.5) == reached(
        1, 0.5
    )  # as with `evaluation.clients: all`


def test_the_common_target_is_below_every_end_by_less_than_a_thousandth():
    assert common_target([0.8, 0.7999, None, 0.91]) == 0.799
    assert common_target([None]) is None
    assert [common_target([value]) for value in (0.0129, 0.00478, 0.0, -0.5)] == [0.012, 0.0047, 0.0, -0.5]


def test_a_target_for_which_lower_is_better_is_reached_from_above_and_the_common_one_is_above_every_end():
    error = Score("mae", higher_is_better=False)
    assert common_target([0.8, 0.7001, None, 0.8003], error) == 0.801
    assert common_target([0.000412, 0.0002], error) == 0.00042  # not 0.001, which the first round may reach
    table = [row | {"test/weighted_mae": row["test/weighted_accuracy"]} for row in rows(0.9, 0.6, 0.5, 0.4)]
    assert cost_of(table, 0.5, (error,)) == reached(5, 2.5)
    assert cost_of(table, 0.3, (error,)) is None


def test_tables_name_the_score_and_its_column(tmp_path: Path):
    found = replace(results("A", "B", val_mean=0.25), score=Score("token_accuracy"))
    assert cells(found)[0][2:4] == ["test token accuracy", "val token accuracy"]
    write_tables(tmp_path, found, "x", None)
    assert (tmp_path / "runs.csv").read_text().startswith("algorithm,seed,status,rounds,test_token_accuracy,val_token")


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


def test_latex_prints_names_unchanged():
    assert latex(r"a_b & 50% #1 {x} ~^ \y $z |<>") == (
        r"a\_b \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{} \textbackslash{}y \$z "
        r"\textbar{}\textless{}\textgreater{}"
    )
    text = as_latex(results("A_1", "[B]", rounds_with_all_clients=3, mib=2.0))
    assert r"A\_1 & 0.750 &  & -- \\" in text
    assert r"{}[B]$^\dagger$ & 0.750 $\pm$ 0.013 & +0.250 [$-$0.125, +0.500] & 2.0 \\" in text
    assert "% 50 % of | them_" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body} == {3}
    assert r"\begin{tabular}{lrrr}" in text


def test_latex_fits_a_page():
    """The LaTeX table omits the cost of a target, steps, seconds, validation scores, and equal numbers of seeds."""
    known = {"val_mean": 0.5, "tuned_mean": 0.5, "newcomers_mean": 0.5, "gap_closed": 1.0, "ari_mean": 1.0, "mib": 2.0}
    all_known = as_latex(results("A", "B", local_steps=9, seconds=1.0, **known))
    columns = ("tuned accuracy", "newcomers", "difference to A", "gap closed", "ARI", r"traffic MiB \\")
    assert " & ".join(("algorithm", "test accuracy", *columns)) in all_known
    assert NOTE_ON_COSTS not in all_known  # the note explains omitted columns, of which there are none
    assert r"algorithm & seeds & test accuracy & difference to A \\" in as_latex(results("A", "B", runs=1))


def test_agreement_is_a_column_where_true_clusters_are_known():
    assert "ARI" in cells(results("A", "B", ari_mean=0.5))[0]
    assert "ARI" not in cells(results("A", "B"))[0]


def test_the_number_of_clusters_is_a_column_where_true_clusters_are_not_known():
    (head, _, last) = cells(results("A", "B", clusters_mean=3.5, clusters_sd=0.5))
    assert last[head.index("clusters")] == "3.5 ± 0.5"
    assert "clusters & " in as_latex(results("A", "B", clusters_mean=3.5, clusters_sd=0.5, mib=1.0))
    assert "clusters" not in cells(results("A", "B", clusters_mean=3.5, ari_mean=0.5))[0]


def test_markdown_keeps_its_columns_whatever_names_hold():
    text = as_markdown(results("a|b", "<i>*c*\nd", rounds_to_target=4.0, mib_to_target=1.0), "x_y", "p.png")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(line.replace(r"\|", "").split("|")) for line in table] == [12] * 4
    assert table[2].startswith(r"| a\|b | 2 | 0.750 |  | 0 of 2 runs |")
    assert table[3].startswith(r"| \<i\>\*c\* d | 2 | 0.750 ± 0.013 | +0.250 \[-0.125, +0.500\] | 4.0 | 1.0 |")
    assert text.startswith("# x\\_y\n")
    assert "- 50 % of \\| them\\_\n" in text
    assert text.endswith("(p.png)\n")
    assert "![" not in as_markdown(results("A"), "x", None)


def test_notes_are_read_from_markdown_unchanged(tmp_path: Path):
    assert read_notes(tmp_path) == []
    found = results("A", "B")
    write_tables(tmp_path, found, "x", None)
    assert read_notes(tmp_path) == found.notes == ["50 % of | them_", "Rounds, MiB and local steps: until 0.8."]


def test_csv_quotes_and_leaves_blank_what_is_not_known(tmp_path: Path):
    write_tables(tmp_path, results("a,b", 'q"', test_sd=float("nan")), "x", None)
    found = list(csv.DictReader(StringIO((tmp_path / "results.csv").read_text())))
    assert [row["algorithm"] for row in found] == ["a,b", 'q"']
    assert [(row["test_mean"], row["test_sd"], row["difference"]) for row in found] == [
        ("0.75", "", ""),
        ("0.75", "", "0.25"),
    ]
    assert tuple(found[0]) == COLUMNS
    (run,) = csv.DictReader((tmp_path / "runs.csv").open(newline=""))
    assert (run["error"], run["seed"], run["test_accuracy"]) == ('a, "b"\nc', "3", "")


@pytest.mark.parametrize(("terminal", "shown"), [(True, False), (False, True)])
def test_a_narrow_terminal_gets_fewer_columns_and_a_pipe_all(terminal: bool, shown: bool):
    out = StringIO()
    show_table(Console(file=out, width=80, force_terminal=terminal, no_color=True), results("A[red]", "B"))
    assert "A[red]" in out.getvalue()
    assert "+0.250 [-0.125, +0.500]" in out.getvalue()
    assert ("time s" in out.getvalue()) is shown
    assert "…" not in out.getvalue()


CLASSES = {"mine": "IFCA", "average": "FedAvg", "bound": "Oracle", "equal": "FedAvg"}


ACCURACIES = {"mine": (0.5, 0.75), "average": (0.25, 0.5), "bound": (0.75, 0.875), "equal": (0.0, 0.0)}


def runs(accuracies: dict[str, tuple[float | None, ...]], name: str = "accuracy") -> list[dict[str, Any]]:
    return [
        {"algorithm": algorithm, "seed": seed, f"test_{name}": value, "not_scored": 0}
        for algorithm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


ROWS: list[dict[str, Any]] = [{"algorithm": name, "class": kind, "added": None} for name, kind in CLASSES.items()]


def test_share_is_that_of_means_over_seeds_and_the_first_fedavg_counts():
    found = gaps_closed(ROWS, runs(ACCURACIES), CLASSIFIER[0])
    gap = (0.75 + 0.875 - 0.25 - 0.5) / 2
    assert found == {"mine": 0.25 / gap, "average": 0.0, "bound": 1.0, "equal": -0.375 / gap}


def test_fedavg_closes_no_gap_where_lower_is_better():
    losses = {name: tuple(1 - value for value in values) for name, values in ACCURACIES.items()}
    found = gaps_closed(ROWS, runs(losses, "mae"), Score("mae", higher_is_better=False))
    assert str(found["average"]) == "0.0"  # not -0.0


def test_the_gap_is_that_of_the_fedavg_and_the_oracle_with_the_same_layers():
    rows = [row | {"added": "bn*" if row["algorithm"] == "average" else None} for row in ROWS]
    found = gaps_closed(rows, runs(ACCURACIES), CLASSIFIER[0])
    assert (found["equal"], found["bound"], found["average"]) == (0.0, 1.0, 0.375 / 0.8125)
    assert gaps_closed(rows[:-1], runs(ACCURACIES), CLASSIFIER[0]) == {}


def test_only_seeds_count_under_which_all_three_score_everyone():
    some = runs(ACCURACIES | {"bound": (0.75, None)})
    assert gaps_closed(ROWS, some, CLASSIFIER[0])["mine"] == 0.5
    for run in some:
        run["not_scored"] = 3 if (run["algorithm"], run["seed"]) == ("average", 0) else 0
    assert gaps_closed(ROWS, some, CLASSIFIER[0]) == {}


def test_the_share_is_unknown_without_both_or_without_a_gap():
    assert gaps_closed(ROWS[:2], runs(ACCURACIES), CLASSIFIER[0]) == {}
    assert gaps_closed(ROWS, runs(ACCURACIES | {"bound": (0.25, 0.5)}), CLASSIFIER[0]) == {}
    lower = Score("error", higher_is_better=False)
    assert gaps_closed(ROWS, runs(ACCURACIES, "error"), lower) == {}
    errors = {name: tuple(1 - value for value in values) for name, values in ACCURACIES.items()}
    assert gaps_closed(ROWS, runs(errors, "error"), lower)["mine"] == pytest.approx(0.25 / 0.4375)
