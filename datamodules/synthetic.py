"""Synthetic(alpha, beta): each client has its own input distribution and its own linear labelling model.

arXiv:1812.06127, section 5.1. The 100 clients of the clustering papers come from the code released with Li, Sanjabi,
Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020. arXiv:1905.10497.

Where this differs from the papers:
* alpha and beta are standard deviations, as in the released code; the text writes N(0, alpha), which is the same for 1.
* the released code has no seed, so clients follow the same distribution, but are not the same clients as in a paper.
* clients may share models (`num_clusters`), so that there are true clusters to find.
"""

from typing import Any, ClassVar

import numpy as np
import torch

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.partition.base import shuffle_lists
from lit_cfl.datamodules.partition.checks import require_share
from lit_cfl.errors import InputError
from lit_cfl.seeds import derive

_MOST = 10**9  # maximum number of examples; more would be a mistake in the size options


def draw_around_means(rows: int, size: int, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Draws numbers N(m, 1) with a separate m ~ N(0, deviation^2) per row: float32 `[rows, size]`."""
    numbers: np.ndarray = rng.standard_normal((rows, 1 + size), dtype=np.float32)
    numbers[:, 1:] += np.float32(deviation) * numbers[:, :1]
    return numbers[:, 1:]


def draw_inputs(centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws one input N(centre, diag(j^-1.2)) for each centre, j from 1: float32 `[n, dimensions]`."""
    inputs: np.ndarray = rng.standard_normal(centres.shape, dtype=np.float32)
    deviations = np.arange(1, centres.shape[1] + 1) ** -0.6  # in float32 the last bit would depend on the processor
    inputs *= deviations.astype(np.float32)
    inputs += centres
    return inputs


def label_inputs(models: np.ndarray, which: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Computes argmax(W x + b), int64 `[n]`; ties go to the lowest label.

    Args:
        models: W with b in the last column, `[models, labels, dimensions + 1]`.
        which: Model of each input, int64 `[n]`.
        x: Inputs `[n, dimensions]`.
    """
    scores = np.empty((len(x), models.shape[1]), x.dtype)
    for label in range(models.shape[1]):  # avoids an array [n, labels, dimensions]
        mine = models[which, label]
        scores[:, label] = np.einsum("nd,nd->n", mine[:, :-1], x) + mine[:, -1]
    labels: np.ndarray = scores.argmax(1)
    return labels


def log_normal_sizes(clients: int, mean: float, deviation: float, least: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the sizes of clients, least + int(exp(N(mean, deviation^2))), int64 `[clients]`."""
    with np.errstate(over="ignore"):
        drawn = np.exp(mean + deviation * rng.standard_normal(clients))
    total = drawn.sum() + least * clients
    if not total <= _MOST:
        raise InputError(
            f"{clients} clients would have {total:.2g} examples in all (mean_log_size {mean}, "
            f"log_size_deviation {deviation}, min_size {least}); the maximum is {_MOST:.0e}, so lower one of these"
        )
    sizes: np.ndarray = drawn.astype(np.int64) + least
    return sizes


class Synthetic(FederatedDataModule):
    """Synthetic(alpha, beta): linear models in many dimensions (Li et al., FedProx, 2020, section 5.1).

    y = argmax(W_i x + b_i) with W_i, b_i ~ N(u_i, 1) and u_i ~ N(0, alpha); x ~ N(v_i, diag(j^-1.2)) with
    v_i ~ N(B_i, 1) and B_i ~ N(0, beta). The defaults are Synthetic(1, 1) of the clustering papers. Each client has
    a different distribution, so there are no true clusters unless `num_clusters` is given.

    The skew is `label` with `num_clusters`: clusters label the same input differently, and inputs differ between the
    clients of a cluster. Without, it is `other`: both differ from client to client.

    Args:
        alpha: Difference between the clients' models, 0 or more.
        beta: Difference between the clients' inputs, 0 or more.
        num_clients: Number of clients, 1 or more.
        dimensions: Dimensions of an input, 1 or more.
        num_labels: Number of labels, 2 or more.
        mean_log_size: Mean of the logarithm of sizes: a client has min_size + int(exp(N(mean_log_size,
            log_size_deviation))) examples.
        log_size_deviation: Standard deviation of the logarithm of sizes, 0 or more.
        min_size: Minimum size, 1 or more.
        num_clusters: Number of true clusters: clients i, i + num_clusters, ... share a model. null = each client has a
            separate model.
        test: Share of a client's examples for testing, 0 to below 1; int((1 - test) n), at least 1, are for training.
        population_seed: Seed of models, sizes and examples; the run's seed only draws which examples are for testing.
        options: Options of `FederatedDataModule`.
    """

    paper: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. "
        "arXiv:1812.06127"
    )

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        num_clients: int = 100,
        dimensions: int = 60,
        num_labels: int = 10,
        mean_log_size: float = 4.0,
        log_size_deviation: float = 2.0,
        min_size: int = 50,
        num_clusters: int | None = None,
        test: float = 0.1,
        population_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require_at_least(1, num_clients=num_clients, dimensions=dimensions, min_size=min_size)
        require_at_least(2, num_labels=num_labels)
        require_at_least(0, alpha=alpha, beta=beta, log_size_deviation=log_size_deviation)
        if num_clusters is not None and not 1 <= num_clusters <= num_clients:
            raise InputError(f"num_clusters is {num_clusters}; give 1 to {num_clients}, the number of clients, or null")
        require_share("test", test)
        rng = np.random.default_rng(derive(population_seed, "synthetic sizes"))
        self.sizes = log_normal_sizes(num_clients, mean_log_size, log_size_deviation, min_size, rng)
        self.alpha, self.beta, self.num_clusters, self.test = alpha, beta, num_clusters, test
        self.dimensions, self.num_labels = dimensions, num_labels
        # separate streams of models, centres and inputs
        self._seeds = np.random.SeedSequence(derive(population_seed, "synthetic population")).spawn(3)

    def models(self) -> np.ndarray:
        """Draws linear models: W with b in the last column, float32 `[clients or clusters, labels, dimensions + 1]`."""
        number, shape = self.num_clusters or len(self.sizes), (self.num_labels, self.dimensions + 1)
        flat = draw_around_means(number, shape[0] * shape[1], self.alpha, np.random.default_rng(self._seeds[0]))
        return flat.reshape(number, *shape)

    def load(self) -> Examples:
        of_centres, of_inputs = map(np.random.default_rng, self._seeds[1:])
        owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        centres = draw_around_means(len(self.sizes), self.dimensions, self.beta, of_centres)
        x, models = draw_inputs(centres[owners], of_inputs), self.models()
        labels = label_inputs(models, owners % len(models), x)
        return Examples(torch.from_numpy(x), torch.from_numpy(labels), self.num_labels)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        sizes = torch.from_numpy(self.sizes)
        mixed = shuffle_lists(ClientIndex.from_sizes(torch.arange(len(examples)), sizes), rng)
        test = sizes - ((1 - self.test) * sizes.double()).long().clamp(min=1)
        clients = torch.arange(len(sizes))
        clusters = torch.full_like(clients, -1) if self.num_clusters is None else clients % self.num_clusters
        skew = "other" if self.num_clusters in (None, 1) else "label"
        return Division(mixed.after(test).pack(), mixed.first(test).pack(), clusters, skew)


def require_at_least(least: int, **numbers: float) -> None:
    """Raises InputError if an option is below its minimum, or infinite."""
    for name, number in numbers.items():
        if not least <= number < float("inf"):
            raise InputError(f"{name} is {number}; give {least} or more")
