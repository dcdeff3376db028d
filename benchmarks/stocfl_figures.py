"""Measures which clients StoCFL's Psi separates, and which clusters result (StoCFL, Figures 2, 6 and 7).

    LITCFL_DATA=DIR python benchmarks/stocfl_figures.py [--out docs/reproduction/stocfl] [--only cosines clients taus]

* `cosines.csv` (Figure 2): cosines of ten sets of 600 images each: of the labels 0 to s, rotated by 36 s degrees, with
  labels shifted by s, and of two domains. The first is our interpretation: set s has s + 1 labels, all of which are in
  every later set.
* `clients.csv` (Figure 6): a t-SNE map of the clients of four settings by their Psi, and their clusters in rounds 5, 10
  and 40 (-1: not sampled yet). The curves over the rounds are in `rounds.csv`, written by `benchmarks/stocfl.py`.
* `tau_clients.csv`, `taus.csv` (Figure 7): MNIST under two rotations in four groups of labels: the same map, the
  clusters at two values of tau fixed beforehand (0.6, below 0.67, and 0.8, above 0.76), and the final number of
  clusters for each tau.

Clients, rounds and cohorts are the paper's (section A.1). The net is always linear, as in its Figure 2; for the other
figures the paper does not name a net. Clients train one epoch: neither Psi nor the clusters depend on it. `python -m
benchmarks.reproduction summary` draws the files.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import stocfl
import torch
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from lit_cfl.algorithms.stocfl import StoCFL
from lit_cfl.algorithms.stocfl_clusters import StoCFLState
from lit_cfl.clustering import cosine_similarity
from lit_cfl.datamodules import MNIST, ArrayData, FashionMNIST, FederatedDataModule, LabelGroups, Rotations
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.storage.csv_log import write_rows

SETTINGS = ("pathological", "rotated", "shifted", "hybrid")
Psi = Literal["gradient", "update"]
PSI: tuple[Psi, ...] = ("gradient", "update")
SETS, IMAGES, SHOWN, SEED = 10, 600, (5, 10, 40), 0
TAUS, MAPPED = [round(0.3 + 0.05 * k, 2) for k in range(14)], (0.6, 0.8)


def build_experiment(module: FederatedDataModule, algorithm: StoCFL, everyone: bool) -> Experiment:
    """Builds an experiment of `benchmarks/stocfl.py` with one epoch; if `everyone`, with one round of all clients."""
    base = replace(stocfl.build_experiment(module, algorithm, SEED), local=LocalTraining(1, "full"))
    clients = module.federated(SEED).num_clients
    return replace(base, rounds=1, cohort_size=clients) if everyone else base


def compute_psi(module: FederatedDataModule, psi: Psi) -> tuple[Tensor, Tensor]:
    """Returns Psi of all clients `[n, d]` at the seed's anchor, and their true clusters."""
    algorithm = StoCFL(psi=psi, representation="sampled", tau=1)
    prepared = build_experiment(module, algorithm, everyone=True).prepare(SEED)
    (only,) = prepared.rounds()
    assert isinstance(only.state, StoCFLState)
    return only.state.psi_of(prepared.data.population), prepared.data.true_clusters


def compute_cosines() -> Iterator[Row]:
    """Yields the cosines between the ten image sets of each panel, for both kinds of Psi."""
    for panel, module in draw_image_sets().items():
        for psi in PSI:
            found = cosine_similarity(compute_psi(module, psi)[0])
            for i, j in torch.combinations(torch.arange(SETS), with_replacement=True).tolist():
                yield {"panel": panel, "psi": psi, "i": i, "j": j, "cosine": float(found[i, j])}


def draw_image_sets() -> dict[str, ArrayData]:
    """Draws ten image sets for each panel; within a set, images are drawn without replacement."""
    rng = torch.Generator().manual_seed(0)
    digits, clothes = (load_images(kind) for kind in (MNIST, FashionMNIST))

    def draw(source: tuple[Tensor, Tensor], labels: int = 10) -> tuple[Tensor, Tensor]:
        x, y = source
        allowed = (y < labels).nonzero().flatten()
        taken = allowed[torch.randperm(len(allowed), generator=rng)[:IMAGES]]
        return x[taken], y[taken]

    def rotated(s: int) -> tuple[Tensor, Tensor]:
        x, y = draw(digits)
        return rotate(x, 36.0 * s, InterpolationMode.BILINEAR), y

    def shifted(s: int) -> tuple[Tensor, Tensor]:
        x, y = draw(digits)
        return x, (y + s) % 10

    return {
        "labels": make_module(lambda s: draw(digits, s + 1)),
        "rotation": make_module(rotated),
        "label shift": make_module(shifted),
        "domain": make_module(lambda s: draw(digits if s < SETS // 2 else clothes)),
    }


def load_images(kind: Callable[[], MNIST | FashionMNIST]) -> tuple[Tensor, Tensor]:
    """Returns all images of a data set, and their labels."""
    examples = kind().examples
    return examples.batch(torch.arange(len(examples)))


def make_module(made: Callable[[int], tuple[Tensor, Tensor]]) -> ArrayData:
    """Makes a data module in which each of the ten image sets is a client."""
    x, y = zip(*map(made, range(SETS)), strict=True)
    owner = torch.arange(SETS).repeat_interleave(IMAGES)
    return ArrayData(torch.cat(x).numpy(), torch.cat(y).numpy(), owner.numpy(), num_labels=10, test=0.0)


def map_clients(module: FederatedDataModule, psi: Psi) -> list[Row]:
    """Returns a row per client: its true cluster and its position on a t-SNE map of the cosines."""
    rows, truth = compute_psi(module, psi)
    distances = (1 - cosine_similarity(rows)).clamp(min=0)
    places = TSNE(metric="precomputed", init="random", perplexity=30, random_state=0).fit_transform(distances.numpy())
    return [
        {"client": client, "truth": int(kind), "x": float(x), "y": float(y)}
        for client, (kind, (x, y)) in enumerate(zip(truth, places, strict=True))
    ]


def track_clusters(module: FederatedDataModule, algorithm: StoCFL) -> Iterator[Tensor]:
    """Yields the cluster of every client after each round; -1 if not sampled yet."""
    for r in build_experiment(module, algorithm, everyone=False).prepare(SEED).rounds():
        assert isinstance(r.state, StoCFLState)
        yield r.state.index


def map_all_clients() -> Iterator[Row]:
    """Yields a row per client of the four settings: its position on the map of our default Psi, and its clusters."""
    for name in SETTINGS:
        module = stocfl.make_data(name)
        found = map_clients(module, "update")
        for number, index in enumerate(track_clusters(module, StoCFL()), 1):
            if number in SHOWN:
                for row, cluster in zip(found, index.tolist(), strict=True):
                    row[f"cluster_{number}"] = cluster
        yield from ({"data": name} | row for row in found)


def try_taus() -> tuple[list[Row], list[Row]]:
    """Clusters clients with rotated groups of labels under many values of tau.

    Returns:
        rows per client, and rows per value of tau, for both kinds of Psi.
    """
    groups = LabelGroups(clients_per_group=50, test="shared")
    module = MNIST(partition=groups, skew=Rotations([0, 180]), copies=True)
    places, ends = [], []
    for psi in PSI:
        found = map_clients(module, psi)
        truth = torch.tensor([row["truth"] for row in found])
        for tau in TAUS:
            algorithm = StoCFL(tau=tau, psi=psi)
            *_, index = track_clusters(module, algorithm)
            seen = index >= 0
            scores = {
                "ari": adjusted_rand_score(truth[seen], index[seen]),
                "ari_labels": adjusted_rand_score(find_label_groups(truth[seen]), index[seen]),
            }
            ends.append({"psi": psi, "tau": tau, "clusters": len(index[seen].unique())} | scores)
            print(ends[-1], flush=True)
            if tau in MAPPED:
                for row, cluster in zip(found, index.tolist(), strict=True):
                    row[f"cluster_{tau}"] = cluster
        places += [{"psi": psi} | row for row in found]
    return places, ends


def find_label_groups(truth: Tensor) -> Tensor:
    """Returns the label group of each true cluster; the two rotations of a group have adjacent numbers."""
    return truth // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/reproduction/stocfl"))
    parser.add_argument("--only", nargs="+", choices=["cosines", "clients", "taus"])
    options = parser.parse_args()
    wanted = options.only or ["cosines", "clients", "taus"]
    options.out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Row]] = {}
    if "cosines" in wanted:
        tables["cosines"] = list(compute_cosines())
    if "clients" in wanted:
        tables["clients"] = list(map_all_clients())
    if "taus" in wanted:
        tables["tau_clients"], tables["taus"] = try_taus()
    for name, rows in tables.items():
        write_rows(options.out / f"{name}.csv", list(rows[0]), rows, digits=4)
        print(f"{len(rows)} rows: {options.out / name}.csv")


if __name__ == "__main__":
    main()
