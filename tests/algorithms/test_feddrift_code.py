"""Compares FedDrift with its authors' code: six clients on a line that move between three places.

`feddrift_code.csv` has the answers of the authors' class for the same clients if clusters are compared on present data;
experiments/studies/feddrift_code.md says how they were made.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from quadratic import Clients, clients_at
from torch import Tensor

from lit_cfl.algorithms import FedDrift
from lit_cfl.seeds import generator

TABLE = list(csv.DictReader(Path(__file__).with_name("feddrift_code.csv").read_text().splitlines()))
CASES, CLIENTS, STEPS, DELTA = 4, 6, 6, 0.1
PLACES = (0.1, 0.4, 0.85)
ONE = FedDrift(DELTA, step_rounds=1, start="one")
FORMS = {"clients": replace(ONE, start="clients"), "one": ONE, "eager": replace(ONE, eager=True)}


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


def test_clients_of_the_table_drift():
    assert sum(bool(row["detected"]) for row in TABLE) > 10
