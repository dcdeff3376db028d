"""Tests who gains in a comparison, by hand arithmetic on invented clients: their table, figures and shares."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from golden_cases import change_summary, compared_experiments, compared_runs
from inside_shown import figure_on, page_of, results_of, table_on
from made_runs import write_table

from lit_cfl.compare.from_python import ComparisonTables
from lit_cfl.compare.gains import client_gains, losing_clients
from lit_cfl.pictures.figure import draw
from lit_cfl.pictures.panels import BLUE
from lit_cfl.runs.many import Job
from lit_cfl.scores import ACCURACY, Score
from lit_cfl.statistics import interval

COLUMNS = ("client", "cluster", "true_cluster", "n_test", "accuracy", "mae", "newcomer")
Clients = Mapping[int, Sequence[Any]]  # by id: score, test examples, found cluster, true cluster


def write_clients(folder: Path, clients: Clients, names: Sequence[str] = (), score: str = "accuracy") -> Path:
    """Writes the table of clients; client 9 is a newcomer."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"client": k, score: value, "n_test": size, "cluster": found, "true_cluster": true, "newcomer": int(k == 9)}
        | ({"name": names[k]} if names else {})
        for k, (value, size, found, true) in clients.items()
    ]
    write_table(folder / "clients.csv", (*COLUMNS, *(["name"] if names else [])), rows)
    return folder


def gains_of(path: Path, runs: Mapping[tuple[str, int], tuple[str | None, Clients]], score: Score = ACCURACY) -> Any:
    """Computes the gains over A from the partition and the clients of each run; of a name, from the names' order."""
    done = {}
    for (name, seed), (partition, clients) in runs.items():
        job = Job(path, name, seed, 3)
        write_clients(job.folder, clients, score=score.name)
        done[job] = {"partition": partition}
    return client_gains(done, "A", score)


FIRST: Clients = {0: (0.5, 4, 0, 1), 1: (0.25, 400, 0, 0), 2: (0.75, 8, 0, 1), 3: (None, 0, 0, 0), 9: (0.5, 4, 0, 1)}
OTHER: Clients = {1: (0.5, 400, 1, 0), 0: (0.375, 4, 2, 1), 3: (0.75, 1, 2, 0), 9: (1.0, 4, 2, 1)}


def rows_of(gains: Any, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in gains[list(columns)].values.tolist()]


def test_gains_are_those_of_clients_that_both_runs_score_and_that_trained(tmp_path: Path):
    gains = gains_of(tmp_path, {("A", 0): ("p", FIRST), ("B", 0): ("p", OTHER)})
    columns = ("algorithm", "client", "seed", "pairs", "n_test", "true_cluster", "cluster")
    assert rows_of(gains, *columns) == [("B", 1, 0, 1, 400, 0, 1), ("B", 0, 0, 1, 4, 1, 2)]
    assert rows_of(gains, "reference", "score", "gain") == [(0.25, 0.5, 0.25), (0.5, 0.375, -0.125)]
    assert losing_clients(gains) == {"B": {"paired_clients": 2, "losing": 0.5}}  # whatever the number of examples


def test_a_client_of_one_partition_has_the_mean_of_the_seeds_under_which_both_score_it(tmp_path: Path):
    """Client 0 gains -0.125 and 0.375; client 2 is scored by both under the second seed alone."""
    second = {0: (0.25, 4, 3, 1), 2: (0.25, 8, 3, 1)}, {0: (0.625, 4, 4, 1), 2: (0.125, 8, 4, 1)}
    runs = {("A", 0): ("p", FIRST), ("B", 0): ("p", OTHER), ("A", 5): ("p", second[0]), ("B", 5): ("p", second[1])}
    gains = gains_of(tmp_path / "same", runs)
    expected = [(1, 0, 1, 0.25, 1), (0, 0, 2, 0.125, 2), (2, 5, 1, -0.125, 4)]
    assert rows_of(gains, "client", "seed", "pairs", "gain", "cluster") == expected
    assert losing_clients(gains)["B"]["losing"] == 1 / 3
    for partition in ("q", None):  # another client 0 under each seed
        runs |= {("A", 5): (partition, second[0]), ("B", 5): (partition, second[1])}
        gains = gains_of(tmp_path / str(partition), runs)
        assert rows_of(gains, "client", "seed", "gain") == [(1, 0, 0.25), (0, 0, -0.125), (0, 5, 0.375), (2, 5, -0.125)]
    runs |= {("A", 0): (None, FIRST), ("B", 0): (None, OTHER)}
    assert len(gains_of(tmp_path / "unknown", runs)) == 4
    runs |= {
        ("A", 0): ("p", FIRST),
        ("A", 5): ("r", second[0]),
        ("B", 0): ("tiny", OTHER),
    }  # runs of different clients are no pairs
    assert gains_of(tmp_path / "unpaired", runs).empty
    assert gains_of(tmp_path / "alone", {("A", 0): ("p", FIRST)}).empty
    assert client_gains({}, "A", ACCURACY).empty


def test_a_client_with_a_name_is_the_same_whatever_its_number_and_the_partition(tmp_path: Path):
    done = {}
    for seed, names in ((0, "xyz"), (1, "zyx")):
        for name, values in (("A", (0.5, 0.5, 0.5)), ("B", (0.75, 0.5 + seed / 4, 0.25))):
            job = Job(tmp_path, name, seed, 3)
            write_clients(job.folder, {k: (value, 3, 0, 0) for k, value in enumerate(values)}, names)
            done[job] = {"partition": f"p{seed}"}
    gains = client_gains(done, "A", ACCURACY)
    # x is client 0 and then 2: 0.25 and -0.25; y: 0 and 0.25; z: -0.25 and 0.25
    assert rows_of(gains, "name", "client", "pairs", "gain") == [("x", 0, 2, 0), ("y", 1, 2, 0.125), ("z", 2, 2, 0)]
    write_clients(Job(tmp_path, "B", 1, 3).folder, dict.fromkeys(range(3), (0.5, 3, 0, 0)), ["x", "x", "y"])
    write_clients(Job(tmp_path, "A", 1, 3).folder, dict.fromkeys(range(3), (0.5, 3, 0, 0)), ["x", "x", "y"])
    assert client_gains(done, "A", ACCURACY)["pairs"].tolist() == [1] * 6  # names that two clients share name nobody


def test_gains_of_errors_are_positive_if_errors_fall_and_rounding_is_no_loss(tmp_path: Path):
    runs = {
        ("A", 0): ("p", {0: (4.0, 9, 0, -1), 1: (1.0, 2, 0, -1)}),
        ("B", 0): ("p", {0: (3.5, 9, 0, -1), 1: (1.5, 2, 0, -1)}),
    }
    gains = gains_of(tmp_path / "mae", runs, Score("mae", higher_is_better=False))
    assert gains["gain"].tolist() == [0.5, -0.5]
    seeds = ((0.7, 0.6), (0.1, 0.2))  # -0.1 and 0.1, whose sum is not 0 in floats
    assert sum(mine - first for first, mine in seeds) != 0
    runs = {(name, seed): ("p", {0: (seeds[seed][k], 9, 0, 0)}) for k, name in enumerate("AB") for seed in (0, 1)}
    gains = gains_of(tmp_path / "zero", runs)
    assert (gains["gain"].tolist(), losing_clients(gains)["B"]["losing"]) == ([0.0], 0.0)


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """Writes a comparison of three seeds; IFCA's clients gain 1 and lose 1 to 3 eighths, Oracle's gain 2 eighths."""
    compared_runs(tmp_path)
    first = {0: (0.5, 2, 0, -1), 1: (0.25, 9, 0, -1), 2: (0.75, 30, 0, -1), 3: (0.5, 5, 0, -1)}
    for seed in range(3):
        for name in ("FedAvg", "IFCA", "Oracle"):
            gains = {"FedAvg": (0, 0, 0, 0), "IFCA": (1, 1, -1, -1 - seed), "Oracle": (2, 2, 2, 2)}[name]
            clients = {k: (first[k][0] + gain / 8, first[k][1], k % 2, -1) for k, gain in enumerate(gains)}
            write_clients(tmp_path / name / f"seed-{seed}", clients)
            change_summary(
                tmp_path / name / f"seed-{seed}",
                **{"test/worst10_accuracy": (1 + seed**2) / 8, "partition": f"p{seed}"},
            )
    results_of(tmp_path, compared_experiments(), 0.5)
    return tmp_path


def test_results_have_the_share_of_clients_that_lose_and_the_interval_of_the_worst_tenth(compared: Path):
    found = ComparisonTables(compared)
    shares = found.results[["paired_clients", "losing"]].values.tolist()
    assert shares[1:] == [[12, 0.5], [12, 0.0]]
    assert found.results["losing"].isna().tolist() == [True, False, False]
    worst = interval([1 / 8, 2 / 8, 5 / 8])
    expected = pytest.approx([1 / 3, worst.low, worst.high])
    assert found.results[["worst10", "worst10_low", "worst10_high"]].values.tolist() == [expected] * 3
    assert sorted(found.client_gains["gain"][found.client_gains["algorithm"] == "IFCA"] * 8) == [
        -3,
        -2,
        *[-1] * 4,
        *[1] * 6,
    ]
    assert found.results["point"].tolist()[1:] == [0.01, 0.01]


def test_the_page_shows_who_loses_by_found_cluster_if_no_true_one_is_known(compared: Path):
    head, *rows = table_on(page_of(compared), "Clients that lose")
    assert head == ["algorithm", "cluster", "clients", "lose", "mean gain", "lowest gain"]
    # clusters are those of the first seed: clients 0 and 2 gain 1 and -1 eighth, clients 1 and 3 the same
    assert rows[:3] == [
        ["IFCA", "all", "12", "50.0%", "-0.031", "-0.375"],  # (6 - 3 - 1 - 2 - 3) / 8 / 12
        ["IFCA", "0", "2", "50.0%", "+0.000", "-0.125"],
        ["IFCA", "1", "2", "50.0%", "+0.000", "-0.125"],
    ]
    assert rows[3] == ["Oracle", "all", "12", "0.0%", "+0.250", "+0.250"]


def test_the_page_shows_who_loses_by_true_cluster_over_all_seeds(compared: Path):
    file = compared / "client_gains.csv"
    gains = ComparisonTables(compared).client_gains
    gains["true_cluster"] = gains["client"].map({0: 1, 1: 0, 2: 0, 3: 0})
    gains.to_csv(file, index=False)
    _, *rows = table_on(page_of(compared), "Clients that lose")
    # clients 1, 2 and 3 gain 3, -3 and -6 eighths over the seeds
    assert rows[1:3] == [
        ["IFCA", "0", "9", "66.7%", "-0.083", "-0.375"],
        ["IFCA", "1", "3", "0.0%", "+0.125", "+0.125"],
    ]
    file.write_text("algorithm,gain\nIFCA,0.5")
    assert any(str(file) in problem for problem in page_of(compared).problems)
    file.unlink()
    assert "Who gains" not in [section.title for section in page_of(compared).sections]


def test_the_figure_shows_sorted_gains_and_both_scores_in_the_algorithms_colours(compared: Path):
    figure = figure_on(page_of(compared), "gains")
    (bars, dots), (_, other) = figure.rows
    assert [value * 8 for value in bars.bars[0].height] == [-3, -2, *[-1] * 4, *[1] * 6]
    assert figure.styles["IFCA"].colour == BLUE
    assert (bars.x_limits, bars.bars[0].width, list(bars.bars[0].x)) == ((0, 12), 1, list(range(12)))
    assert {(x, y - x) for x, y in zip(other.points[0].x, other.points[0].y, strict=True)} == {
        (k / 4, 0.25) for k in (1, 2, 3)
    }
    assert sorted(y - x for x, y in zip(dots.points[0].x, dots.points[0].y, strict=True)) == list(bars.bars[0].height)
    axes = draw(figure).axes
    axes[0].figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in axes[0].get_xticks())
    assert axes[0].get_ylim() == axes[2].get_ylim()
    assert axes[1].get_xlim() == axes[1].get_ylim()
    sizes = [
        text.get_fontsize() for ax in axes for text in (*ax.get_xticklabels(), ax.title, ax.xaxis.label, ax.yaxis.label)
    ]
    assert min(sizes) >= 7


def test_a_client_without_a_gain_does_not_lose_and_one_client_is_counted_in_whole_numbers(compared: Path):
    gains = ComparisonTables(compared).client_gains
    gains[:1].assign(gain=0.0).to_csv(compared / "client_gains.csv", index=False)
    page = page_of(compared)
    assert table_on(page, "Clients that lose")[1:] == [["IFCA", "all", "1", "0.0%", "+0.000", "+0.000"]]
    axes = draw(figure_on(page, "gains")).axes[0]
    axes.figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_many_clients_are_sixty_sorted_bars_and_a_sample_of_points(compared: Path):
    gains = ComparisonTables(compared).client_gains
    one = gains[gains["algorithm"] == "IFCA"].iloc[[0] * 2000].assign(gain=[(k * 7) % 2000 - 500 for k in range(2000)])
    one.to_csv(compared / "client_gains.csv", index=False)
    figure = figure_on(page_of(compared), "gains")
    ((left, right),) = figure.rows
    (bars,) = left.bars
    assert (bars.x[0], bars.x[-1] + bars.width, bars.height[0], bars.height[-1]) == (0, 2000, -500, 1499)
    assert len(bars.height) == 60
    assert list(bars.height) == sorted(bars.height)
    assert len(right.points[0].x) == 1500
    assert "1,500 of 2,000 clients" in figure.caption
