"""Six clients on a line that move between three places, and FedDrift's answers in each time step.

`tests/algorithms/feddrift_code.csv` has the answers of the authors' class for the same clients;
experiments/studies/feddrift_code.md says how they were made.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_cfl.algorithms.feddrift import FedDrift
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork

CASES, CLIENTS, STEPS, DELTA, START = 4, 6, 6, 0.1, 0.5
PLACES = (0.1, 0.4, 0.85)
ALONE, ONE = FedDrift(DELTA, step_rounds=1), FedDrift(DELTA, step_rounds=1, start="one")
FORMS = {"clients": ALONE, "one": ONE, "eager": replace(ONE, eager=True)}
Answer = dict[str, str]


def draw_points(case: int) -> np.ndarray:
    """Draws the clients' positions over time `[steps, clients]`; a client sometimes moves from place to place."""
    rng = np.random.default_rng(case)
    place = rng.integers(2, size=CLIENTS)
    own, found = rng.uniform(-0.03, 0.03, CLIENTS), []
    for _ in range(STEPS):
        found.append(np.array(PLACES)[place] + own)
        place = np.where(rng.random(CLIENTS) < 0.3, rng.integers(3, size=CLIENTS), place)
    return np.stack(found)


class Line(QuadraticWork):
    """Clients on a line: the loss is the distance to the model, and training takes one step."""

    def __init__(self, at: np.ndarray) -> None:
        super().__init__(torch.from_numpy(at)[:, None], torch.full((CLIENTS,), 10), 1.0, layers={"fc1": 1})

    def initial(self, number: int) -> Tensor:
        return torch.tensor([START], dtype=torch.float64)

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        return (self.centers[clients] - models.T).abs()


def format_answer(detected: Any, clusters: list[int], models: list[float]) -> Answer:
    """Formats an answer as text; clusters are numbered in the order of their lowest client."""
    names = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return {
        "detected": " ".join(map(str, sorted(detected))),
        "clusters": " ".join(str(names[cluster]) for cluster in clusters),
        "models": " ".join(f"{model:.6f}" for model in models),
    }


def run_ours(algorithm: FedDrift, at: np.ndarray) -> Iterator[Answer]:
    """Yields, for each time step, the clients whose drift we detect, and every client's cluster and model."""
    everyone, state = torch.arange(CLIENTS), None
    for step, row in enumerate(at):
        work, before = Line(row).at(step), 0 if state is None else state.losses
        if state is None:
            state, _ = algorithm.init(work, generator(0, "init"))
        begun = algorithm.begin_time_step(state, work)[0] if step else state
        served = algorithm.serve(begun, everyone)
        jumped = (begun.losses - before > algorithm.delta).nonzero().flatten().tolist() if step else []
        yield format_answer(jumped, served.index.tolist(), served.models[served.index, 0].tolist())
        state, _ = algorithm.round(state, everyone, work, generator(0, "round", step))
