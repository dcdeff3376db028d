"""Tests FedDrift on quadratic clients (what counts as drift, which clusters merge), and against its authors' code."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from few_rounds import begin
from quadratic import Clients, clients_at, f64, ids, rng
from torch import Tensor

from lit_cfl.algorithms import FedDrift
from lit_cfl.algorithms.base import Info
from lit_cfl.algorithms.feddrift import FedDriftState, cluster_distances
from lit_cfl.seeds import generator

ONE = FedDrift(delta=2.0, step_rounds=1, start="one")


def line(*points: float, sizes: tuple[int, ...] | None = None, rate: float = 1.0) -> Clients:
    """Makes clients on a line with w_0 = 0, whose loss is half the squared distance to the client's point."""
    return clients_at(*points, sizes=sizes or (1,) * len(points), rate=rate, start=0.0)


def after_round(state: FedDriftState, algorithm: FedDrift, work: Clients, number: int, cohort: Tensor | None = None):
    return algorithm.round(state, work.population if cohort is None else cohort, work.at(number), rng(number))


def clusters(*models: float, of: Tensor, work: Clients, sizes: tuple[int, ...] | None = None) -> FedDriftState:
    """Makes a state with these models, in which each client's reference loss is its current lowest loss."""
    rows, number = f64(*models)[:, None], len(models)
    losses = work.losses(rows, torch.arange(len(of))).min(1).values
    summed = torch.bincount(of, work.num_examples, number).long() if sizes is None else torch.tensor(sizes)
    return FedDriftState(rows, of, losses=losses, sizes=summed, new=torch.zeros(number, dtype=torch.bool))


def served(state: FedDriftState) -> list[float]:
    return [float(state.models[cluster, 0]) for cluster in state.index.tolist()]


def rows(info: Info) -> list[tuple[int, ...]]:
    keys = ("client", "cluster_before", "cluster_after", "detected")
    return [tuple(row[key] for key in keys) for row in info.tables["migrations"]]


@pytest.mark.parametrize(("delta", "detected"), [(2.0, 0), (1.9999, 1)])
def test_jump_is_a_drift_above_delta_and_none_at_it(delta: float, detected: int):
    before = clusters(1.0, of=ids(0, 0), work=line(1.0, 1.0))
    now = line(1.0, 3.0)  # the loss of client 1 goes from 0 to 2
    state, info = after_round(before, replace(ONE, delta=delta), now, 1)
    assert (info.scores["shift/detected"], len(state.models)) == (detected, 1 + detected)
    assert state.losses.tolist() == [0.0, 2.0]


def test_loss_counts_under_the_best_model_so_that_a_known_concept_is_not_drift():
    before = clusters(0.0, 8.0, of=ids(0, 1), work=line(0.0, 8.0))
    state, info = after_round(before, ONE, line(8.0, 8.0), 1)
    assert (info.scores["shift/detected"], info.scores["shift/migrated"], rows(info)) == (0, 1, [(0, 0, 1, 0)])
    assert state.index.tolist() == [1, 1]
    state, info = after_round(state, ONE, line(0.0, 8.0), 2)  # the model of concept 0 still exists
    assert (info.scores["shift/detected"], rows(info), state.index.tolist()) == (0, [(0, 1, 0, 0)], [0, 1])


def test_client_that_drifts_starts_from_its_best_model_and_trains_it_alone_in_each_round_of_the_time_step():
    algorithm, work = replace(ONE, step_rounds=2), line(1.0, 1.0, 1.0, 9.0, rate=0.5)
    before = clusters(1.0, 4.0, of=ids(0, 0, 0, 0), work=line(1.0, 1.0, 1.0, 1.0), sizes=(4, 1))
    begun, _ = algorithm.begin_time_step(before, work.at(2))
    assert begun.index.tolist() == [0, 0, 0, 2]
    assert begun.models[2].tolist() == [4.0]
    state, info = algorithm.round(before, ids(0), work.at(2), rng())
    assert (rows(info), served(state)) == ([(3, 0, 2, 1)], [1.0, 1.0, 1.0, 6.5])
    # client 1 was not in an earlier cohort, but this is still its first time step
    state, info = algorithm.round(state, ids(1), work.at(3), rng())
    assert (info.tables, info.up, served(state)) == ({}, 2, [1.0, 1.0, 1.0, 7.75])
    state, info = algorithm.round(state, ids(1), work.at(4), rng())
    assert (info.up, served(state)[3]) == (1, 7.75)


@pytest.mark.parametrize(
    ("algorithm", "merged"),
    [
        (FedDrift(9.0, 2.0), False),
        (FedDrift(9.0, 2.0001), True),
        (FedDrift(2.1), True),  # the threshold is delta unless it is given
        (FedDrift(1.9), False),
    ],
)
def test_clusters_merge_below_the_threshold_and_not_at_it(algorithm: FedDrift, merged: bool):
    work = line(0.0, 2.0)  # distance 1/2 * 2^2
    before = clusters(0.0, 2.0, of=ids(0, 1), work=work)
    state, _ = after_round(before, replace(algorithm, step_rounds=1), work, 1, cohort=ids())
    assert state.index.tolist() == ([0, 0] if merged else [0, 1])


def test_merged_model_is_weighted_by_the_examples_that_chose_each_cluster():
    work = line(0.0, 1.0, 1.0, sizes=(3, 2, 4))
    before = clusters(0.0, 1.0, of=ids(0, 1, 1), work=work, sizes=(7, 15))
    state, _ = after_round(before, ONE, work, 1, cohort=ids())
    assert state.sizes.tolist() == [31]  # sums 7 + 3 and 15 + 6
    assert served(state) == pytest.approx([21 / 31] * 3)
    assert state.index.tolist() == [0, 0, 0]


def test_linkage_is_complete_and_mergers_are_listed_up_to_one_cluster():
    work = line(0.0, 1.2, 2.2)  # distances 0.72, 0.5 and 2.42, whose mean with 0.72 is below 2
    before = clusters(0.0, 1.2, 2.2, of=ids(0, 1, 2), work=work)
    state, info = after_round(before, ONE, work, 1, cohort=ids())
    assert state.index.tolist() == [0, 1, 1]
    first, second = info.tables["mergers"]
    assert first == {"clusters": 2, "distance": pytest.approx(0.5), "merged": 1}
    assert second == {"clusters": 1, "distance": pytest.approx(2.42), "merged": 0}


def test_distance_is_the_larger_rise_on_each_others_clients():
    # rows: clients of a cluster, columns: models
    assert cluster_distances(f64([1.0, 4.0], [2.5, 2.0])).tolist() == [[0.0, 2.0], [2.0, 0.0]]  # 4 - 2 and 2.5 - 1
    # each model fits the other cluster's clients better than its own
    assert cluster_distances(f64([1.0, 0.5], [0.5, 2.0])).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert cluster_distances(f64([1.0, torch.inf], [1.0, torch.inf]))[0, 1] > 1e20


@pytest.mark.parametrize(("threshold", "merged"), [(2.24, False), (2.26, True)])
def test_mean_losses_of_a_cluster_are_weighted_by_examples(threshold: float, merged: bool):
    work = line(0.0, 3.0, 2.0, sizes=(1, 1, 9))  # mean loss of model 0 on cluster 1: (4.5 + 9 * 2) / 10 = 2.25
    before = clusters(0.0, 2.1, of=ids(0, 1, 1), work=work)
    state, _ = after_round(before, FedDrift(9.0, threshold, step_rounds=1), work, 1)
    assert (state.index.tolist() == [0, 0, 0]) is merged


def test_each_client_starts_alone_and_like_clients_merge():
    algorithm = FedDrift(delta=2.0, step_rounds=2)
    assert [algorithm.needs_all(number) for number in range(4)] == [True, True, False, False]
    assert not replace(algorithm, start="one").needs_all(0)
    work = line(0.0, 0.6, 8.0, 8.2, 0.2, sizes=(1, 2, 1, 3, 1))
    state = begin(algorithm, work)
    assert (state.index.tolist(), served(state)) == ([0, 1, 2, 3, 4], [0.0] * 5)
    for number in (0, 1):
        state, info = after_round(state, algorithm, work, number, cohort=ids(0, 3))
        assert info.up == 5  # all clients train in the first time step
    state, _ = after_round(state, algorithm, work, 2, cohort=ids())
    assert state.index.tolist() == [0, 0, 1, 1, 0]
    assert served(state) == pytest.approx([(0 + 2 * 0.6 + 0.2) / 4] * 2 + [(8 + 3 * 8.2) / 4] * 2 + [1.4 / 4])


def test_traffic_is_every_model_for_every_client_at_a_time_step_and_fedavgs():
    algorithm, work = replace(ONE, step_rounds=2), line(0.0, 0.0, 8.0)
    state, info = after_round(clusters(0.0, 8.0, of=ids(0, 0, 1), work=work), algorithm, work, 1, cohort=ids(0, 2))
    assert (info.down, info.up, info.bytes_up) == (2, 2, 0)
    _, info = after_round(state, algorithm, work, 2, cohort=ids(0, 2))
    assert (info.down, info.up, info.bytes_up) == (2 + 3 * 2, 2, 3 * 2 * 4)  # losses as float32


def test_newcomer_takes_the_best_model_but_none_of_this_time_step():
    before = clusters(0.0, of=ids(0, 0, 0), work=line(0.0, 0.0, 0.0))
    state, _ = after_round(before, ONE, line(0.0, 0.0, 8.0), 1)
    more = line(0.0, 0.0, 8.0, 8.0)
    assert ONE.place(state, ids(3), more, rng())[0].index.tolist() == [0, 0, 1, 0]
    state, _ = after_round(state, ONE, line(0.0, 0.0, 8.0), 2)
    assert ONE.place(state, ids(3), more, rng())[0].index.tolist() == [0, 0, 1, 1]


# The answers of the authors' class for six clients on a line that move between three places, if clusters are
# compared on present data; experiments/studies/feddrift_code.md says how they were made
TABLE = list(csv.DictReader(Path(__file__).with_name("feddrift_code.csv").read_text().splitlines()))
CASES, CLIENTS, STEPS, DELTA = 4, 6, 6, 0.1
PLACES = (0.1, 0.4, 0.85)
AGAINST = FedDrift(DELTA, step_rounds=1, start="one")
FORMS = {"clients": replace(AGAINST, start="clients"), "one": AGAINST, "eager": replace(AGAINST, eager=True)}


def draw_points(case: int) -> np.ndarray:
    """Draws the clients' positions over time `[steps, clients]`; a client sometimes moves from place to place."""
    rng = np.random.default_rng(case)
    place = rng.integers(2, size=CLIENTS)
    own, found = rng.uniform(-0.03, 0.03, CLIENTS), []
    for _ in range(STEPS):
        found.append(np.array(PLACES)[place] + own)
        place = np.where(rng.random(CLIENTS) < 0.3, rng.integers(3, size=CLIENTS), place)
    return np.stack(found)


class Line(Clients):
    """Clients on a line: the loss is the distance to the model, and training takes one step."""

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        return (self.centers[clients] - models.T).abs()


@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("form", FORMS)
def test_it_answers_as_the_authors_code_if_clusters_are_compared_on_present_data(form: str, case: int):
    algorithm, everyone, state = FORMS[form], torch.arange(CLIENTS), None
    rows = [row for row in TABLE if (row["form"], row["case"]) == (form, str(case))]
    for row, points in zip(rows, draw_points(case), strict=True):
        step = int(row["step"])
        work = clients_at(*points.tolist(), sizes=(10,) * CLIENTS, rate=1.0, start=0.5).at(step)
        work.__class__ = Line
        before = 0 if state is None else state.losses
        state = algorithm.init(work, generator(0, "init"))[0] if state is None else state
        begun = algorithm.begin_time_step(state, work)[0] if step else state
        served = algorithm.serve(begun, everyone)
        jumped = (begun.losses - before > DELTA).nonzero().flatten().tolist() if step else []
        # clusters are numbered in the order of their lowest client
        names = {cluster: number for number, cluster in enumerate(dict.fromkeys(served.index.tolist()))}
        assert row["detected"] == " ".join(map(str, jumped))
        assert row["clusters"] == " ".join(str(names[cluster]) for cluster in served.index.tolist())
        assert row["models"] == " ".join(f"{float(served.models[cluster]):.6f}" for cluster in served.index)
        state, _ = algorithm.round(state, everyone, work, generator(0, "round", step))
