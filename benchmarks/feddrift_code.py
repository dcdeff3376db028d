"""Compares FedDrift's detections, clusters and merges with those of the authors' code on the same small inputs.

    git clone https://github.com/microsoft/FedDrift; git -C FedDrift checkout e4ac32f
    python benchmarks/feddrift_code.py FedDrift --out benchmarks/results/feddrift_code.csv

A client is a point on a line, its loss under a model (also a point) is their distance, and training moves a model to
the mean of its clients. Each step can thus be checked by hand. Six clients move between three places, at different
times and back, over six time steps; no two clients are at exactly the same point.

The authors' class `SoftClusterState` is taken unchanged from their file. Stubs replace its imports, and distances
replace what it computes from nets and examples (accuracy = 1 - distance).

* form: `clients` (their `H_A_F`), `one` (`H_A_C`), `eager` (`mmacc`). Under `H_A_F` new models receive the numbers 1,
  2, ..., which clients already have, and overwrite their models: `clients, published`. `clients` numbers them after
  those.
* data: clusters are compared on their data of `all` time steps (their code) or of the `present` one (ours: their code
  is made to find that a cluster without present clients is correct nowhere).
"""

import argparse
import ast
import csv
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_cfl.algorithms.feddrift import FedDrift
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork

CASES, CLIENTS, STEPS, DELTA, START = 4, 6, 6, 0.1, 0.5
PLACES = (0.1, 0.4, 0.85)
ALONE, ONE = FedDrift(DELTA, step_rounds=1), FedDrift(DELTA, step_rounds=1, start="one")
FORMS = {"clients": ALONE, "clients, published": ALONE, "one": ONE, "eager": replace(ONE, eager=True)}
COMPARED = [(form, data) for form in ("clients", "one") for data in ("present", "all")]
COMPARED += [("clients, published", "all"), ("eager", "all")]
COLUMNS = ("case", "form", "data", "step", "detected", "clusters", "models", "agrees")
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

    def losses(self, models: Tensor, clients: Tensor, *, penalised: bool = False) -> Tensor:
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


def run_authors(kind: Any, form: str, data: str, at: np.ndarray) -> Iterator[Answer]:
    """Yields the same values as `run_ours`, from the authors' class."""
    merging = {"one": "C", "eager": ""}.get(form, "F")
    state = kind(CLIENTS, 64, "", mmacc_delta=DELTA, h_delta=DELTA, h_deltap=DELTA, h_cluster=merging)
    state.h_next_free_model = CLIENTS if form == "clients" else 1
    models = [nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(state.model_num)]
    for model in models:
        nn.init.constant_(model.weight, START)
    examples = [[[(client, step)] for step in range(STEPS)] for client in range(CLIENTS)]
    react = state.cluster_mmacc2 if form == "eager" else state.cluster_hierarchical
    for step, row in enumerate(at):
        state._infer = state._infer_subset = partial(score_batches, at=at, since=step if data == "present" else 0)
        next_model = state.h_next_free_model
        if step:
            react(step, models, examples, None)
        else:
            state.cluster_init()
            for client in range(CLIENTS):
                state.set_acc(client, 1 - abs(START - row[client]))
        index = [int(state.get_test_model_idx(step, client)) for client in range(CLIENTS)]
        detected = [c for c in range(CLIENTS) if step and index[c] >= next_model] if form == "eager" else state.h_marked
        yield format_answer(detected, index, [float(models[number].weight.detach()) for number in index])
        for number in set(index):
            nn.init.constant_(models[number].weight, float(row[[i == number for i in index]].mean()))


def score_batches(
    model: nn.Linear, batches: list[tuple[int, int]], *_: object, at: np.ndarray, since: int
) -> tuple[float, int, float]:
    """Replaces the authors' `_infer`: returns the sum and number of scores since step `since`, and 0 as the loss.

    A score is 1 - distance of the client from the model.
    """
    found = [1 - abs(float(model.weight.detach()) - at[step, client]) for client, step in batches if step >= since]
    return sum(found), max(len(found), 1), 0.0


def compile_authors_class(checkout: Path) -> Any:
    """Compiles the class in the authors' file without running the file's imports."""
    source = (checkout / "fedml_api/distributed/fedavg_ens/FedAvgEnsDataLoader.py").read_text()
    found = [part for part in ast.parse(source).body if getattr(part, "name", "") == "SoftClusterState"]
    import scipy.cluster.hierarchy as sch
    from scipy.spatial.distance import squareform

    run = SimpleNamespace(summary={})
    known: dict[str, Any] = {"np": np, "random": random, "sch": sch, "squareform": squareform}
    known |= {"wandb": SimpleNamespace(run=run, log=lambda row: None), "reinitialize": lambda model: None}
    exec(compile(ast.Module(found, []), "SoftClusterState", "exec"), known)  # noqa: S102  # the authors' published code
    return known["SoftClusterState"]


def compare_answers(kind: Any) -> Iterator[dict[str, object]]:
    for case in range(CASES):
        at = draw_points(case)
        for form, data in COMPARED:
            both = zip(run_authors(kind, form, data, at), run_ours(FORMS[form], at), strict=True)
            for step, (theirs, mine) in enumerate(both):
                agrees = " ".join(name for name in theirs if theirs[name] == mine[name])
                yield {"case": case, "form": form, "data": data, "step": step, **theirs, "agrees": agrees}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="clone of the authors' repository")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    options = parser.parse_args()
    rows = list(compare_answers(compile_authors_class(options.checkout)))
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("| form | data | steps | same detections | same clusters | same models |\n|---|---|---|---|---|---|")
    for form, data in COMPARED:
        some = [str(row["agrees"]).split() for row in rows if (row["form"], row["data"]) == (form, data)]
        same = [sum(name in names for names in some) for name in ("detected", "clusters", "models")]
        print(f"| {form} | {data} | {len(some)} | {' | '.join(map(str, same))} |")


if __name__ == "__main__":
    main()
