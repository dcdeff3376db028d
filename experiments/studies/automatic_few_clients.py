"""Evaluates rules for the number of clusters with few clients in a cluster, by the protocol of the page of this name.

    LITCFL_DATA=DIR python experiments/studies/automatic_few_clients.py --out FILE [--verdict]

DIR has the folder `mnist`, for the verdict also `fashion_mnist` and `femnist`. Each row has the numbers of clusters
that all rules find in one draw. Rows that the file already contains are not computed again.
"""

import argparse
import csv
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import load_dataset
from scipy.ndimage import rotate
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from lit_cfl import load_experiment
from lit_cfl.algorithms import FedAvg
from lit_cfl.clustering import cosine_similarity, edc_embedding
from lit_cfl.clustering.number_of_clusters import prediction_strength
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import Notice
from lit_cfl.experiment import Experiment, LocalTraining, PlanOptions
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SEEDS, MOST, IMAGES = (201, 202, 203, 204), 10, 60
KINDS, NUMBERS, CLIENTS = ("rotation", "labels", "groups"), range(2, 9), (4, 5, 6, 8, 12)
NONE, TOTALS = ("iid", "dirichlet"), (4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96)
GROUPS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (1, 2), (3, 4), (5, 6))
RULES = ("today", "n/6", "no vote", "gap", "silhouette")
COLUMNS = ("kind", "true", "clients", "sizes", "seed", *RULES)
CONFIGS, VERDICT_SEEDS = Path(__file__).parents[1] / "configs" / "which_method", (21, 22, 23, 24, 25)
VERDICT: dict[str, tuple[int, tuple[str, ...]]] = {  # true number (1: no clusters) and rates of each data set
    "rotated_mnist": (4, ("0.03", "0.1", "0.3")),
    "swapped_mnist": (4, ("0.01", "0.1", "0.3")),
    "pathological_mnist": (4, ("0.01", "0.03", "0.1", "0.3")),
    "hybrid_mnist": (2, ("0.1", "0.3")),
    "rotated_fashionmnist": (4, ("0.03", "0.1")),
    "rotated_mnist_mlp": (4, ("0.3",)),
    "pathological_mnist_mlp": (4, ("0.3",)),
    "shifting_mnist": (4, ("0.01", "0.03", "0.1")),
    "dirichlet_mnist": (1, ("0.03", "0.1")),
    "femnist": (1, ("0.01", "0.03")),
}


def draws() -> Iterator[tuple[str, int, int, str, int]]:
    """Yields kind, true number, mean number of clients in a cluster, sizes of the clusters, and seed."""
    for seed in SEEDS:
        for clients in CLIENTS:
            for number in NUMBERS:
                for kind in KINDS:
                    yield from ((kind, number, clients, sizes, seed) for sizes in ("equal", "unequal"))
        yield from ((kind, 1, total, "equal", seed) for kind in NONE for total in TOTALS)


def divide(images: np.ndarray, labels: np.ndarray, kind: str, number: int, clients: int, sizes: str, seed: int):
    """Returns inputs, labels and owners of the examples of a draw."""
    rng = np.random.default_rng([seed, number, clients, sizes == "equal"])
    share = np.linspace(0.5, 1.5, number) if sizes == "unequal" else np.ones(number)
    clusters = np.repeat(np.arange(number), np.rint(share * clients).astype(int))
    left = {label: list(rng.permutation(np.flatnonzero(labels == label))) for label in range(10)}
    x, y = [], []
    for cluster in clusters:
        if kind == "groups":
            drawn = rng.choice(GROUPS[cluster], IMAGES)
        elif kind == "dirichlet":
            drawn = rng.choice(10, IMAGES, p=rng.dirichlet([0.3] * 10))
        else:
            drawn = rng.choice(10, IMAGES)
        chosen = images[[left[label].pop() for label in drawn]]
        if kind == "rotation":
            chosen = rotate(chosen, 360 * cluster / number, axes=(1, 2), reshape=False, order=1)
        x.append(chosen)
        y.append((drawn + cluster) % 10 if kind == "labels" else drawn)
    return np.concatenate(x)[:, None], np.concatenate(y), np.repeat(np.arange(len(clusters)), IMAGES)


def compute_updates(x: np.ndarray, y: np.ndarray, owner: np.ndarray, seed: int) -> torch.Tensor:
    """Returns the clients' updates after one local training, as `num_clusters: auto` computes them."""

    def task() -> Classification:
        return Classification(MCLR([1, 28, 28], 10), partial(torch.optim.SGD, lr=0.1))

    data = ArrayData(x, y, owner, num_labels=10, allow_unseen_labels=True)  # four clients may lack a label
    local, plan = LocalTraining(3, 10), PlanOptions(device="cpu")
    return updates_of(Experiment(data, task, FedAvg(), cohort_size=1, seeds=[seed], local=local, plan=plan), seed)


def updates_of(experiment: Experiment, seed: int) -> torch.Tensor:
    prepared = experiment.prepare(seed)
    work = prepared.engine.at(0, prepared.data)
    initial, clients = work.initial(0), work.population[work.num_examples[work.population] > 0]
    return (work.fit(initial[None], clients, purpose="count").collect() - initial)[:, : work.layout.num_parameters]


def run_verdict(writer: "csv.DictWriter[str]", known: set[tuple[str, ...]]) -> None:
    for name, (true, rates) in VERDICT.items():
        examples = load_experiment(str(CONFIGS / f"{name}.yaml")).data.examples
        for rate in rates:
            for seed in VERDICT_SEEDS:
                if (f"{name} {rate}", str(true)) in {one[:2] for one in known if one[-1] == str(seed)}:
                    continue
                words = ["--algorithm", "FedAvg", "--task.optimizer.lr", rate, "--seed", str(seed)]
                experiment = load_experiment(str(CONFIGS / f"{name}.yaml"), words)
                experiment.data.examples = examples
                updates = updates_of(experiment, seed)
                draw = (f"{name} {rate}", true, len(updates), "", seed)
                writer.writerow(dict(zip(COLUMNS, draw, strict=False)) | apply_rules(updates, seed))


def apply_rules(updates: torch.Tensor, seed: int) -> dict[str, int]:
    """Returns the number of clusters by each rule."""
    n = len(updates)
    most = min(MOST, n // 4)
    points = edc_embedding(updates, min(most, n)).double().numpy() if most > 1 else np.zeros((n, 1))
    return {
        **by_strength(points, most, seed),
        "gap": gap(points, most, seed),
        "silhouette": silhouette(updates, points, most, seed),
    }


def by_strength(points: np.ndarray, most: int, seed: int) -> dict[str, int]:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(points)) for _ in range(10)]
    halves = [(points[order[::2]], points[order[1::2]]) for order in orders]
    found = dict.fromkeys(("today", "n/6", "no vote"), 1)
    for k in range(2, most + 1):
        strengths = np.array([prediction_strength(one, other, k) for one, other in halves])
        votes = np.array([smallest(other, k) > 1 for _, other in halves])
        if strengths.mean() >= 0.9 - 1e-9:
            found["today"] = k
            found["n/6"] = k if k <= len(points) // 6 else found["n/6"]
        if votes.sum() >= 5 and strengths[votes].mean() >= 0.9 - 1e-9:
            found["no vote"] = k
    return found


def smallest(points: np.ndarray, k: int) -> int:
    """Returns the size of the smallest cluster of a half."""
    if len(np.unique(points, axis=0)) < k:
        return 0
    return int(np.bincount(KMeans(k, n_init=10, random_state=0).fit(points).labels_, minlength=k).min())


def gap(points: np.ndarray, most: int, seed: int, references: int = 10) -> int:
    if most < 2:
        return 1
    centred, rng = points - points.mean(0), np.random.default_rng(seed)
    turned = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    boxes = [rng.uniform(turned.min(0), turned.max(0), turned.shape) for _ in range(references)]
    gaps, spreads = [], []
    for k in range(1, most + 2):
        logs = np.log([KMeans(k, n_init=10, random_state=0).fit(box).inertia_ for box in boxes])
        gaps.append(logs.mean() - np.log(KMeans(k, n_init=10, random_state=0).fit(turned).inertia_))
        spreads.append(logs.std() * (1 + 1 / references) ** 0.5)
    return next((k for k in range(1, most + 1) if gaps[k - 1] >= gaps[k] - spreads[k]), most)


def silhouette(updates: torch.Tensor, points: np.ndarray, most: int, seed: int) -> int:
    if most < 2:
        return 1
    distances = (1 - cosine_similarity(updates).double()).clamp(min=0).fill_diagonal_(0).numpy()
    found = {
        k: silhouette_score(distances, KMeans(k, n_init=10, random_state=0).fit(points).labels_, metric="precomputed")
        for k in range(2, most + 1)
    }
    best = max(found, key=found.__getitem__)
    return best if found[best] >= 0.25 else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--verdict", action="store_true")
    given = parser.parse_args()
    out: Path = given.out
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Notice)
    table = load_dataset(str(Path(os.environ["LITCFL_DATA"], "mnist")), split="train").with_format("numpy")
    images = np.stack([np.asarray(image, np.float32) / 255 for image in table["image"]])
    labels = np.asarray(table["label"])
    known: set[tuple[str, ...]] = set()
    if out.exists():
        with out.open(newline="") as file:
            known = {tuple(row[name] for name in COLUMNS[:5]) for row in csv.DictReader(file)}
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not known:
            writer.writeheader()
        if given.verdict:
            run_verdict(writer, known)
        for draw in draws() if not given.verdict else ():
            if tuple(map(str, draw)) in known:
                continue
            updates = compute_updates(*divide(images, labels, *draw), draw[-1])
            writer.writerow(dict(zip(COLUMNS, draw, strict=False)) | apply_rules(updates, draw[-1]))
            file.flush()


if __name__ == "__main__":
    main()
