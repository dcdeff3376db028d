"""Evaluates rules for the number of clusters on small data sets, by the protocol of docs/automatic_clusters.md.

    python benchmarks/automatic_clusters.py --out benchmarks/results/automatic_clusters.csv

Each row is the number of clusters that a rule finds for a data set and a seed. Prints each rule's share of correct
numbers. Rows that the file already contains are not computed again.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import Tensor

from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.algorithms import FedAvg
from lit_cfl.clustering import agglomerate, cosine_similarity, direction_cosines, edc_embedding, madc, merge_distances
from lit_cfl.data import FederatedData
from lit_cfl.datamodules import Digits, LabelSwaps, Rotations, Synthetic
from lit_cfl.datamodules.partition import Dirichlet, LabelGroups
from lit_cfl.experiment import Experiment, LocalTraining, PlanOptions
from lit_cfl.local_work import LocalWork
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SEEDS, MOST = (101, 102, 103, 104, 105), 10
IMAGES, SYNTHETIC = ([1, 8, 8], 0.1, LocalTraining(3, 10)), ([60], 0.03, LocalTraining(1, 10))
SWAPS = LabelSwaps([[], [0, 1, 2, 3], [5, 6, 7, 8]])
GROUPS = LabelGroups(groups=[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], clients_per_group=8)
NONE = Rotations([0])
DATA: dict[str, tuple[int, Callable[[], object]]] = {
    "digits, four rotations": (4, lambda: Digits(rotations=[0, 90, 180, 270], num_clients=40)),
    "digits, two rotations": (2, lambda: Digits(rotations=[0, 90], num_clients=40)),
    "digits, swapped labels": (3, lambda: Digits(num_clients=40, skew=SWAPS)),
    "digits, groups of labels": (5, lambda: Digits(partition=GROUPS, skew=NONE)),
    "synthetic, three models": (3, lambda: Synthetic(1, 0, 60, num_clusters=3, log_size_deviation=1.0)),
    "synthetic, five models": (5, lambda: Synthetic(1, 1, 60, num_clusters=5, log_size_deviation=1.0)),
    "digits, IID": (1, lambda: Digits(num_clients=40, rotations=[0])),
    "digits, Dirichlet 0.1": (1, lambda: Digits(partition=Dirichlet(40, 0.1), skew=NONE)),
    "digits, Dirichlet 0.5": (1, lambda: Digits(partition=Dirichlet(40, 0.5), skew=NONE)),
    "synthetic, a model each": (1, lambda: Synthetic(1, 1, 60, log_size_deviation=1.0)),
}


class Updates:
    """Clients' updates after one local training from the initial model: the input of every rule."""

    def __init__(self, work: LocalWork, data: FederatedData, seed: int) -> None:
        clients = work.population[work.num_examples[work.population] > 0]
        self.work, self.seed, self.initial = work, seed, work.initial(0)
        fitted = work.fit(self.initial[None], clients, purpose="count")
        self.models, self.clients = fitted.collect(), clients[fitted.trained]
        self.rows = (self.models - self.initial)[:, : work.layout.num_parameters]
        self.cosines = cosine_similarity(self.rows).double()
        self.embedding = edc_embedding(self.rows, min(MOST, len(self.rows))).double().numpy()

    @property
    def most(self) -> int:
        return min(MOST, len(self.rows) - 1)

    def kmeans(self, k: int, points: np.ndarray | None = None) -> KMeans:
        points = self.embedding if points is None else points
        return KMeans(k, n_init=10, random_state=self.seed).fit(points)


def silhouette(updates: Updates, least: float) -> int:
    distances = (1 - updates.cosines).clamp(min=0).fill_diagonal_(0).numpy()
    return _best(lambda k: (distances, updates.kmeans(k).labels_), updates.most, least)


def madc_silhouette(updates: Updates, least: float) -> int:
    distances = madc(updates.cosines)
    return _best(
        lambda k: (distances.numpy(), agglomerate(distances, linkage="complete", num_clusters=k).numpy()),
        updates.most,
        least,
    )


def _best(clustered: Callable[[int], tuple[np.ndarray, np.ndarray]], most: int, least: float) -> int:
    found = {k: float(silhouette_score(*clustered(k), metric="precomputed")) for k in range(2, most + 1)}
    best = max(found, key=found.__getitem__)
    return best if found[best] >= least else 1


def gap(updates: Updates, references: int = 10) -> int:
    points = updates.embedding - updates.embedding.mean(0)
    rng, axes = np.random.default_rng(updates.seed), np.linalg.svd(points, full_matrices=False)[2]
    turned = points @ axes.T
    boxes = [rng.uniform(turned.min(0), turned.max(0), turned.shape) for _ in range(references)]
    gaps, spreads = [], []
    for k in range(1, updates.most + 1):
        logs = np.log([updates.kmeans(k, box).inertia_ for box in boxes])
        gaps.append(logs.mean() - np.log(updates.kmeans(k, turned).inertia_))
        spreads.append(logs.std() * (1 + 1 / references) ** 0.5)
    return next((k for k in range(1, len(gaps)) if gaps[k - 1] >= gaps[k] - spreads[k]), len(gaps))


def strength(updates: Updates, least: float, divisions: int = 10) -> int:
    rng, found = np.random.default_rng(updates.seed), dict.fromkeys(range(2, updates.most + 1), 0.0)
    for _ in range(divisions):
        order = rng.permutation(len(updates.embedding))
        one, other = updates.embedding[order[::2]], updates.embedding[order[1::2]]
        for k in found:
            if k <= len(other):
                found[k] += _strength(updates.kmeans(k, one), updates.kmeans(k, other), other) / divisions
    return max((k for k, share in found.items() if share >= least), default=1)


def _strength(one: KMeans, other: KMeans, points: np.ndarray) -> float:
    predicted, shares = one.predict(points), []
    for cluster in range(other.n_clusters):
        mine = predicted[other.labels_ == cluster]
        together = (mine[:, None] == mine).sum() - len(mine)
        shares.append(together / (len(mine) * (len(mine) - 1)) if len(mine) > 1 else 1.0)
    return float(min(shares))


def held_out(updates: Updates) -> int:
    rng = np.random.default_rng(updates.seed)
    order = torch.from_numpy(rng.permutation(len(updates.rows)))
    held, known = order[: int(0.3 * len(order))], order[int(0.3 * len(order)) :]
    points, losses = updates.embedding[known.numpy()], []
    for k in range(1, min(MOST, len(known) - 1) + 1):
        labels = torch.from_numpy(updates.kmeans(k, points).labels_.astype(np.int64))
        models = mean_by_cluster(updates.models[known], labels)
        directions = mean_by_cluster(updates.rows[known], labels)
        nearest = direction_cosines(updates.rows[held], directions).argmax(1)
        losses.append(updates.work.losses(models, updates.clients[held]).gather(1, nearest[:, None])[:, 0].double())
    best = min(range(len(losses)), key=lambda number: float(losses[number].mean()))
    worse = [loss - losses[best] for loss in losses]
    errors = [float(more.std()) / len(held) ** 0.5 for more in worse]
    return 1 + next(n for n, more in enumerate(worse) if float(more.mean()) <= errors[n])


def merge_ratio(updates: Updates, least: float = 1.5) -> int:
    merges: Tensor = merge_distances(madc(updates.cosines), linkage="average")
    n = len(updates.rows)
    ratios = {k: float(merges[n - k] / merges[n - k - 1].clamp(min=1e-12)) for k in range(2, updates.most + 1)}
    best = max(ratios, key=ratios.__getitem__)
    return best if ratios[best] >= least else 1


RULES: dict[str, Callable[[Updates], int]] = {
    **{f"silhouette {t}": partial(silhouette, least=t) for t in (0.05, 0.1, 0.25)},
    **{f"madc silhouette {t}": partial(madc_silhouette, least=t) for t in (0.25, 0.5)},
    "gap": gap,
    **{f"strength {t}": partial(strength, least=t) for t in (0.8, 0.9)},
    "held out": held_out,
    "merge ratio": merge_ratio,
}


def compute_updates(name: str, seed: int) -> Updates:
    shape, rate, local = SYNTHETIC if name.startswith("synthetic") else IMAGES

    def task() -> Classification:
        return Classification(MCLR(shape, 10), partial(torch.optim.SGD, lr=rate))

    plan = PlanOptions(device="cpu")
    experiment = Experiment(DATA[name][1](), task, FedAvg(), seeds=[seed], local=local, plan=plan)
    prepared = experiment.prepare(seed)
    return Updates(prepared.engine.at(0, prepared.data), prepared.data, seed)


def apply_rules(known: set[tuple[str, ...]]) -> Iterator[dict[str, object]]:
    for name, (true, _) in DATA.items():
        for seed in SEEDS:
            missing = [rule for rule in RULES if (name, str(seed), rule) not in known]
            updates = compute_updates(name, seed) if missing else None
            for rule in missing:
                yield {"data": name, "seed": seed, "rule": rule, "true": true, "found": RULES[rule](updates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    columns, known = ("data", "seed", "rule", "true", "found"), []
    if out.exists():
        with out.open(newline="") as file:
            known = list(csv.DictReader(file))
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if not known:
            writer.writeheader()
        for row in apply_rules({(row["data"], row["seed"], row["rule"]) for row in known}):
            writer.writerow(row)
            file.flush()
    with out.open(newline="") as file:
        print_table(list(csv.DictReader(file)))


def print_table(found: list[dict[str, str]]) -> None:
    cells: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in found:
        cells[row["rule"], row["data"]].append(int(row["found"]))
    print("| rule | " + " | ".join(f"{name} ({true})" for name, (true, _) in DATA.items()) + " | score |")
    print("|" + "---|" * (len(DATA) + 2))
    for rule in RULES:
        right = {True: [], False: []}
        for name, (true, _) in DATA.items():
            right[true > 1] += [number == true for number in cells[rule, name]]
        score = np.mean([np.mean(shares) for shares in right.values() if shares])
        numbers = (" ".join(map(str, cells[rule, name])) for name in DATA)
        print(f"| {rule} | " + " | ".join(numbers) + f" | {score:.2f} |")


if __name__ == "__main__":
    main()
