"""A synthetic mixture: each client labels its examples by several linear models, in individual proportions.

arXiv:2108.10252, section 4 and its published generator.

Where this differs from the published generator:
* these are clients of the same law, not the very clients of the paper.
* a client has `test_size` examples for testing; the paper's clients have 5,000, which is 0.9 GiB for 300 clients.
"""

from typing import Any, ClassVar

import numpy as np
import torch

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.synthetic import log_normal_sizes, require_at_least
from lit_cfl.errors import InputError
from lit_cfl.seeds import derive


class SyntheticMixture(FederatedDataModule):
    """Clients that are mixtures of linear models (Marfoq et al., FedEM, 2021): no client belongs to one cluster.

    The models are theta_m ~ U(-1, 1)^d. Client i has weights pi_i ~ Dirichlet(alpha) over them. Each of its examples
    has x ~ U(-1, 1)^d, and the label 1 where theta_m x + N(0, noise^2) is above 0, with m drawn by pi_i; else 0.

    True clusters are unknown, as there are none; its skew is `other`.

    Args:
        num_clients: 1 or more.
        num_components: M, the number of linear models, 1 or more.
        alpha: how alike the clients' weights are, above 0: small, one model each; large, the same mixture for all.
        dimensions: d, 1 or more.
        noise: deviation of the noise before the label is decided, 0 or more.
        mean_log_size: a client trains on min_size + int(exp(N(mean_log_size, log_size_deviation))) examples.
        log_size_deviation: see there; 0 or more.
        min_size: see there; the least size, 1 or more.
        max_size: the most examples that a client trains on; min_size or more.
        test_size: examples of a client for testing, 0 or more; 5,000 in the paper.
        population_seed: Seed of models, weights, sizes and examples.
        options: Options of `FederatedDataModule`.
    """

    paper: ClassVar[str] = (
        "Marfoq, Neglia, Bellet, Kameni, Vidal. Federated Multi-Task Learning under a Mixture of Distributions. "
        "NeurIPS 2021. arXiv:2108.10252"
    )

    def __init__(
        self,
        num_clients: int = 300,
        num_components: int = 3,
        alpha: float = 0.4,
        dimensions: int = 150,
        noise: float = 0.1,
        mean_log_size: float = 4.0,
        log_size_deviation: float = 2.0,
        min_size: int = 50,
        max_size: int = 1000,
        test_size: int = 500,
        population_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require_at_least(1, num_clients=num_clients, num_components=num_components, dimensions=dimensions)
        require_at_least(1, min_size=min_size)
        require_at_least(min_size, max_size=max_size)
        require_at_least(0, noise=noise, log_size_deviation=log_size_deviation, test_size=test_size)
        if not 0 < alpha < float("inf"):
            raise InputError(f"alpha is {alpha}; give a number above 0")
        self.dimensions, self.noise = dimensions, noise
        sizes, weights, models, self._rngs = _streams(population_seed)
        drawn = log_normal_sizes(num_clients, mean_log_size, log_size_deviation, min_size, sizes)
        self.train_sizes = torch.from_numpy(drawn.clip(max=max_size))
        self.test_size = test_size
        self.weights: np.ndarray = weights.dirichlet([alpha] * num_components, num_clients)  # [clients, M]
        self.models: np.ndarray = models.uniform(-1, 1, (num_components, dimensions))  # theta [M, d]

    def load(self) -> Examples:
        owners = np.repeat(np.arange(len(self.weights)), self.train_sizes.numpy() + self.test_size)
        inputs, components, noise = (np.random.default_rng(seed) for seed in self._rngs)
        x = inputs.uniform(-1, 1, (len(owners), self.dimensions)).astype(np.float32)
        borders = self.weights.cumsum(1)[owners, :-1]  # [N, M - 1]
        drawn = (components.random(len(owners))[:, None] >= borders).sum(1)
        scores = np.einsum("nd,nd->n", x, self.models[drawn]) + self.noise * noise.standard_normal(len(owners))
        return Examples(torch.from_numpy(x), torch.from_numpy((scores > 0).astype(np.int64)), 2)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        whole = ClientIndex.from_sizes(torch.arange(len(examples)), self.train_sizes + self.test_size)
        train, test = whole.first(self.train_sizes), whole.after(self.train_sizes)
        return Division(train.packed(), test.packed(), torch.full_like(self.train_sizes, -1), "other")


def _streams(seed: int) -> tuple[Any, ...]:
    """Makes generators for sizes, weights and models, and seeds for those of inputs, components and noise."""
    root = np.random.SeedSequence(derive(seed, "synthetic mixture"))
    first = [np.random.default_rng(one) for one in root.spawn(3)]
    return (*first, root.spawn(3))
