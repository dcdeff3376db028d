"""Tests that two runs that score different clients are compared on the clients scored in both."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from small_comparison import SMALL

from lit_cfl.cli.main import main
from lit_cfl.runs.shared_clients import ScoredClients, SharedClients, compare_shared, read_scored
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_table

RUN = ("run", *SMALL[1:-4], "--algorithm.pretrain_scale", "2", "--rounds", "1")  # 8 of 12 clients are pre-trained


def clients(**values: float) -> ScoredClients:
    """Makes scored clients from keywords `k1`, `k2`, ...; client k has k examples and the given score."""
    numbers = [int(name[1:]) for name in values]
    return ScoredClients(dict(zip(numbers, numbers, strict=True)), dict(zip(numbers, values.values(), strict=True)))


def test_figures_are_over_the_clients_of_both():
    mine, others = clients(k1=0.5, k2=0.0, k4=1.0), clients(k2=1.0, k3=0.9, k4=0.25)
    names = ("test/weighted_accuracy", "test/mean_accuracy", "test/worst10_accuracy")
    assert compare_shared([(mine, others)]) == SharedClients(
        2,
        dict(zip(names, ((2 * 0.0 + 4 * 1.0) / 6, 0.5, 0.0), strict=True)),
        dict(zip(names, ((2 * 1.0 + 4 * 0.25) / 6, 0.625, 0.25), strict=True)),
    )


def test_same_clients_need_no_figures_of_their_own():
    assert compare_shared([(clients(k1=0.5, k2=0.0), clients(k1=0.1, k2=0.2))]) is None


def test_means_over_seeds_are_of_each_seeds_own_shared_clients():
    first, second = (clients(k1=0.5), clients(k1=1.0, k2=0.0)), (clients(k3=0.0, k4=1.0), clients(k3=0.5, k4=0.5))
    found = compare_shared([first, second])
    assert found is not None
    assert found.clients == 1.5
    assert found.mine["test/mean_accuracy"] == (0.5 + 0.5) / 2
    assert found.others["test/mean_accuracy"] == (1.0 + 0.5) / 2


def test_worst_tenth_of_twenty_clients_is_two():
    many = {f"k{number}": number / 100 for number in range(1, 21)}
    found = compare_shared([(clients(**many), clients(**many, k30=0.0))])
    assert found is not None
    assert found.mine["test/worst10_accuracy"] == pytest.approx(0.015)


def test_worst_tenth_of_an_error_is_the_largest_and_other_weights_than_sizes_are_not_guessed():
    error = Score("mae", higher_is_better=False)
    mine = replace(clients(k1=0.5, k2=3.0), by_size=False)
    found = compare_shared([(mine, clients(k1=1.0, k2=2.0, k3=9.0))], error)
    assert found is not None
    assert found.mine == {"test/weighted_mae": None, "test/mean_mae": 1.75, "test/worst10_mae": 3.0}
    assert found.others == {"test/weighted_mae": 5 / 3, "test/mean_mae": 1.5, "test/worst10_mae": 2.0}


def test_runs_without_a_common_client_have_no_figures():
    found = compare_shared([(clients(k1=0.5), clients(k2=0.5))])
    assert found is not None
    assert (found.clients, set(found.mine.values())) == (0, {None})


def test_newcomers_and_clients_without_a_score_do_not_count(tmp_path: Path):
    rows = ["0,1,5,0.5,0", "1,,5,,0", "2,1,5,0.5,1", "3,1,0,,0", "4,1,15,0.1,0"]
    (tmp_path / "clients.csv").write_text("\n".join(["client,cluster,n_test,accuracy,newcomer", *rows]) + "\n")
    expected = ScoredClients({0: 5, 4: 15}, {0: 0.5, 4: 0.1})
    assert read_scored(tmp_path, {"test/weighted_accuracy": (5 * 0.5 + 15 * 0.1) / 20}) == expected
    for other in (0.3, None):  # the mean is weighted by tokens, or the score is infinite
        assert read_scored(tmp_path, {"test/weighted_accuracy": other}) == replace(expected, by_size=False)


def figures_of(path: str, shared: set[int]) -> list[float]:
    rows = [row for row in read_table(Path(path, "clients.csv")) if row["client"] in shared]
    right = sum(round(row["accuracy"] * row["n_test"]) for row in rows)
    accuracies = sorted(row["accuracy"] for row in rows)
    # a tenth of 8 clients is one client
    return [right / sum(row["n_test"] for row in rows), fmean(accuracies), accuracies[0]]


def scored(path: str) -> set[int]:
    return {row["client"] for row in read_table(Path(path, "clients.csv")) if row["accuracy"] is not None}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_closing_table_compares_the_clients_that_both_score(capsys: pytest.CaptureFixture[str]):
    assert main([*RUN, "--run_dir", "here"]) == 0
    out, shared = capsys.readouterr().out, scored("here")
    assert len(shared) < len(scored("here/baseline")) == 12
    for name, path in (("FedGroup", "here"), ("FedAvg", "here/baseline")):
        expected = " +".join(f"{value:.3f}" for value in figures_of(path, shared))
        assert re.search(rf"^{name} +{expected} ", out, re.MULTILINE), name
    assert f"over the {len(shared)} clients that both FedGroup and FedAvg score" in out
    assert f"(FedGroup has no model yet for {12 - len(shared)} of 12 clients; with evaluation.clients: all they" in out


def test_a_table_over_all_clients_says_who_was_scored_with_what_they_would_be_served(
    capsys: pytest.CaptureFixture[str],
):
    assert main([*RUN, "--evaluation.clients", "all", "--run_dir", "here"]) == 0
    out = capsys.readouterr().out
    assert "that both" not in out
    assert re.search(
        r"\(FedGroup has no model yet for \d+ of 12 clients; they are scored with the model that they would", out
    )
    expected = " +".join(f"{value:.3f}" for value in figures_of("here", set(range(12))))
    assert re.search(rf"^FedGroup +{expected} ", out, re.MULTILINE)


def test_a_comparison_subtracts_over_the_clients_that_both_score(capsys: pytest.CaptureFixture[str]):
    words = ("--algorithms", "FedAvg", "FedGroup", "--FedGroup.pretrain_scale", "2", "--seeds", "0", "1")
    assert main([*SMALL, *words, "--rounds", "1", "--compare_dir", "c"]) == 0
    out, gains = capsys.readouterr().out, []
    for seed in (0, 1):
        shared = scored(f"c/FedGroup/seed-{seed}")
        assert len(shared) < 12
        gains.append(figures_of(f"c/FedGroup/seed-{seed}", shared)[0] - figures_of(f"c/FedAvg/seed-{seed}", shared)[0])
    first, second = read_table(Path("c/results.csv"))
    assert (first["difference"], first["pairs_over_shared_clients"]) == (None, None)
    assert second["pairs_over_shared_clients"] == 2
    assert second["difference"] == pytest.approx(fmean(gains), abs=1e-12)
    # the difference over all clients would be another
    assert abs(second["difference"] - (second["test_mean"] - first["test_mean"])) > 1e-3
    assert "FedGroup: under 2 of 2 seeds the difference is over clients scored in both runs." in out
