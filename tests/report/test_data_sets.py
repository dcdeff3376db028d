"""Tests the page of comparisons on different data sets, which ranks methods over all of them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from made_runs import made_run, metric_row

from lit_cfl.compare.results import COLUMNS
from lit_cfl.errors import InputError
from lit_cfl.pictures.figure import Figure
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Page, Table
from lit_cfl.report.page import as_html
from lit_cfl.storage import write_rows

SCORES = {  # accuracy after the last round for both seeds
    "digits": {"FedAvg": (0.4, 0.6), "IFCA": (0.8, 0.9), "CFL": (0.7, 0.9)},
    "letters": {"FedAvg": (0.5, 0.5), "IFCA": (0.6, 0.8), "CFL": (0.8, 0.8)},
    "faces": {"FedAvg": (0.6, 0.6), "IFCA": (0.7, 0.7), "CFL": (0.5, 0.5)},
}


def comparison(
    path: Path,
    clients: int,
    scores: dict[str, tuple[float, ...]],
    over: bool = True,
    evaluated: float | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Path:
    data = {"class_path": "lit_cfl.datamodules.Digits", "init_args": {"num_clients": clients, **more}}
    for name, values in scores.items():
        for seed, value in enumerate(values):
            rows = [
                metric_row(1, **{"test/weighted_accuracy": 0.99}),
                metric_row(
                    2, **{"test/weighted_accuracy": value, "clients/evaluated": clients if name == "CFL" else evaluated}
                ),
            ]
            made_run(path / name / f"seed-{seed}", rows, over=over, data=data, snapshots=0)
    seeds = list(range(max(map(len, scores.values()))))
    (path / "compare.yaml").write_text(f"name: x\nalgorithms: {list(scores)}\nseeds: {seeds}\ntarget: null\n")
    return path


def page_of(*paths: Path) -> Page:
    return make_page(paths, ["lit-cfl", "report"])


def comparisons(folder: Path) -> list[Path]:
    return [comparison(folder / name, 8 + k, SCORES[name]) for k, name in enumerate(SCORES)]


def test_ranks_over_different_numbers_of_clients_are_noted(tmp_path: Path):
    few = comparison(tmp_path / "few", 8, SCORES["digits"], evaluated=5.5)
    all_clients = comparison(tmp_path / "all", 9, SCORES["letters"], evaluated=9)
    (problem,) = page_of(few, all_clients).problems
    assert problem.startswith("few: the ranked figures are over different numbers of clients (FedAvg on 5.5, IFCA on")


def test_comparisons_that_differ_only_in_what_is_held_out_are_noted_as_one_data_set(tmp_path: Path):
    for name, more in {"all": {}, "fewer": {"newcomers": 0.2, "validation": 0.1}}.items():
        comparison(tmp_path / name, 8, SCORES["digits"], more=more)
    other = comparison(tmp_path / "other", 9, SCORES["letters"])
    (problem,) = page_of(tmp_path / "all", other, tmp_path / "fewer").problems
    assert problem.startswith("all and fewer have the same data, except for what is held out")


def test_methods_are_ranked_by_the_means_of_their_last_rounds(tmp_path: Path):
    page = page_of(*comparisons(tmp_path))
    table, figure = page.sections[0].blocks
    assert isinstance(table, Table)
    assert table.head == ["method", "digits", "letters", "faces", "mean rank"]
    assert table.rows == [  # ranks on the three data sets: 1 2 1, 2 1 3, 3 3 2
        ["IFCA", "0.850", "0.700", "0.700", "1.33"],
        ["CFL", "0.800", "0.800", "0.500", "2.00"],
        ["FedAvg", "0.500", "0.500", "0.600", "2.67"],
    ]
    assert page.lines == [  # Friedman's chi-square is 12 / (3 * 3 * 4) * (16 + 36 + 64) - 36 = 8 / 3, and p exp(-4 / 3)
        "Mean ranks over 3 data sets (1 = best on each): IFCA 1.33, CFL 2.00, FedAvg 2.67. Friedman's test cannot tell "
        "them apart (p = 0.26)."
    ]
    assert isinstance(figure, Figure)
    assert figure.name == "ranks"
    assert page.problems == []
    assert b"Mean ranks over 3 data sets" in as_html(page)


def test_a_method_that_is_not_everywhere_is_left_out_and_named(tmp_path: Path):
    first, *others = comparisons(tmp_path)
    more = comparison(tmp_path / "more", 20, SCORES["digits"] | {"Ditto": (0.1, 0.1)})
    page = page_of(first, *others, more)
    assert [row[0] for row in page.sections[0].blocks[0].rows] == ["IFCA", "CFL", "FedAvg"]
    assert page.problems == ["Not in every comparison, and left out of the ranks: Ditto."]


def test_fewer_than_three_methods_are_not_ranked(tmp_path: Path):
    first = comparison(tmp_path / "first", 8, {"IFCA": (0.5,), "CFL": (0.5,)})
    other = comparison(tmp_path / "other", 9, {"IFCA": (0.5,), "CFL": (0.5,), "Ditto": (0.5,)})
    with pytest.raises(InputError, match=r"with 2 finished methods in common \(IFCA, CFL\); to rank"):
        page_of(first, other)


def test_runs_that_are_not_over_do_not_count(tmp_path: Path):
    first = comparison(tmp_path / "first", 8, SCORES["digits"])
    other = comparison(tmp_path / "other", 9, SCORES["digits"], over=False)
    with pytest.raises(InputError, match="with 0 finished methods in common"):
        page_of(first, other)


def test_comparisons_on_the_same_data_stay_one_table(tmp_path: Path):
    first = comparison(tmp_path / "first", 8, SCORES["digits"])
    page = page_of(first, comparison(tmp_path / "other", 8, SCORES["letters"]))
    assert page.sections[0].title == "Results"


def write_results(path: Path) -> None:
    row = dict.fromkeys(COLUMNS) | {"class": "FedAvg", "runs": 2, "failed": 0, "test_mean": 0.5, "reached": 0}
    gain = {"algorithm": "IFCA", "pairs": 2, "difference": 0.25, "difference_low": 0.125, "difference_high": 0.375}
    write_rows(path / "results.csv", COLUMNS, [row | {"algorithm": "FedAvg"}, row | gain])


def test_tables_and_verdicts_of_two_comparisons_have_their_names(tmp_path: Path):
    both = [comparison(tmp_path / name, 8, SCORES["digits"]) for name in ("first", "other")]
    for path in both:
        write_results(path)

    def titles(page: Page) -> list[str]:
        return [block.title for block in page.sections[0].blocks if isinstance(block, Table)]

    one, two = page_of(both[0]), page_of(*both)
    assert titles(one) == ["After the last round", "Compared seed by seed"]
    assert titles(two)[-2:] == ["Compared seed by seed: first", "Compared seed by seed: other"]
    assert one.lines[0].startswith("Test accuracy: IFCA is better than FedAvg (")
    assert two.lines[:2] == [f"{name}: {one.lines[0]}" for name in ("first", "other")]


def test_a_data_set_has_the_verdict_of_its_comparison_above_its_table(tmp_path: Path):
    paths = comparisons(tmp_path)
    write_results(paths[1])
    blocks = {section.title: section.blocks for section in page_of(*paths).sections}
    text, table = blocks["letters"]
    assert text.text.startswith("Test accuracy: IFCA is better than FedAvg (")
    assert table.title == "Compared seed by seed"
