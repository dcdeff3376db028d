"""Determines the tau at which StoCFL separates two rotations of CIFAR-10, for each kind of Psi.

    LITCFL_DATA=DIR python benchmarks/stocfl_cifar.py [--out DIR] [--only gradient update published]
        [--starts glorot pytorch]

The 200 clients of Table 1 (LeNet, 500 images each). Psi of all clients is computed once, at the anchor of seed 0; then
clusters are merged in 200 rounds of 20 clients, as in StoCFL, without training. The anchor is initialised as our nets
are (Glorot), and by PyTorch's defaults, which the published code keeps for this net. Writes `cifar_cosines.csv`
(quantiles of the cosines of two clients under the same and under different rotations) and `cifar_taus.csv`. Takes about
half an hour on one core, most of it for the published code's Psi: 20 epochs in batches of 50.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from lit_cfl.algorithms.stocfl import StoCFL
from lit_cfl.algorithms.stocfl_clusters import StoCFLState
from lit_cfl.clustering import cosine_similarity, merge_by_threshold
from lit_cfl.config.variants import base_config, build
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import Row
from lit_cfl.storage.csv_log import write_rows

CONFIG, SEED, ROUNDS, COHORT = "paper/stocfl/rotated_cifar10", 0, 200, 20
KINDS = {
    "gradient": StoCFL(psi="gradient", representation="sampled", tau=1),
    "update": StoCFL(representation="sampled", tau=1),
    "published": StoCFL(psi_budget=Budget(20, "epochs", 50), representation="sampled", tau=1),
}
STARTS = {"glorot": "net", "pytorch": "pytorch"}
TAUS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


def compute_psi(start: str, kind: str) -> tuple[Tensor, Tensor]:
    """Returns Psi of all clients `[n, d]` and their true clusters."""
    words = ["--cohort_size", "200", "--rounds", "1", "--task.starting_weights", STARTS[start]]
    base = build(base_config(CONFIG), ["--seed", str(SEED), *words])
    prepared = replace(base, algorithm=KINDS[kind], local=LocalTraining(1, "full")).prepare(SEED)
    (only,) = prepared.rounds()
    assert isinstance(only.state, StoCFLState)
    return only.state.psi_of(prepared.data.population), prepared.data.true_clusters


def summarise_cosines(psi: Tensor, truth: Tensor) -> list[Row]:
    """Returns quantiles of the cosines between clients under the same and under different rotations."""
    found, same = cosine_similarity(psi), truth[:, None] == truth
    pairs = {"one": same & ~torch.eye(len(psi), dtype=torch.bool), "two": ~same}
    quantiles = torch.tensor(QUANTILES, dtype=found.dtype)
    return [
        {"rotations": name, "quantile": q, "cosine": round(float(value), 3)}
        for name, chosen in pairs.items()
        for q, value in zip(QUANTILES, found[chosen].quantile(quantiles), strict=True)
    ]


def merge_clusters(psi: Tensor, tau: float) -> Tensor:
    """Merges clusters round by round (Algorithm 1, lines 9 to 17); returns each client's cluster, -1 if unseen."""
    rng, index = torch.Generator().manual_seed(SEED), torch.full((len(psi),), -1)
    for _ in range(ROUNDS):
        cohort = torch.randperm(len(psi), generator=rng)[:COHORT].sort().values
        touched, fresh = index[cohort][index[cohort] >= 0].unique(), cohort[index[cohort] < 0]
        rows = [psi[index == cluster].sum(0, keepdim=True) for cluster in touched]
        groups = int(index.max()) + 1 + merge_by_threshold([*rows, psi[fresh]], tau)
        index[fresh] = groups[len(touched) :]
        for cluster, group in zip(touched.tolist(), groups.tolist(), strict=False):
            index[index == cluster] = group
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/reproduction/stocfl"))
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--starts", nargs="+", choices=list(STARTS), default=list(STARTS))
    options = parser.parse_args()
    closeness: list[Row] = []
    found: list[Row] = []
    for start, kind in product(options.starts, options.only):
        psi, truth = compute_psi(start, kind)
        closeness += [{"start": start, "psi": kind} | row for row in summarise_cosines(psi, truth)]
        for tau in TAUS:
            index = merge_clusters(psi, tau)
            ari = round(adjusted_rand_score(truth, index), 3)
            found.append({"start": start, "psi": kind, "tau": tau, "clusters": len(index.unique()), "ari": ari})
            print(found[-1], flush=True)
    write_rows(options.out / "cifar_cosines.csv", ("start", "psi", "rotations", "quantile", "cosine"), closeness)
    write_rows(options.out / "cifar_taus.csv", ("start", "psi", "tau", "clusters", "ari"), found)


if __name__ == "__main__":
    main()
