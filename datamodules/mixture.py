"""A synthetic mixture: each client labels its examples by several linear models, in individual proportions.

arXiv:2108.10252, section 4 and its published generator.

Where this differs from the published generator:
* clients follow the same distribution, but are not the same clients as in the paper.
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
    """Clients whose data are mixtures of linear models (Marfoq et al., FedEM, 2021), without true clusters.

    The models are theta_m ~ U(-1, 1)^d. Client i has weights pi_i ~ Dirichlet(alpha) over them. Each of its examples
    has x ~ U(-1, 1)^d, and the label 1 if theta_m x + N(0, noise^2) is above 0, otherwise 0, with m drawn from pi_i.

    There are no true clusters; the skew is `other`.

    Args:
        num_clients: Number of clients, 1 or more.
        num_components: M, the number of linear models, 1 or more.
        alpha: Similarity of the clients' weights, above 0: small values give each client one model, large ones give all
            clients the same mixture.
        dimensions: Number of inputs d, 1 or more.
        noise: Standard deviation of the noise that is added before the label is decided, 0 or more.
        mean_log_size: Mean of the logarithm of sizes: a client trains on min_size + int(exp(N(mean_log_size,
            log_size_deviation))) examples.
        log_size_deviation: Standard deviation of the logarithm of sizes, 0 or more.
        min_size: Minimum size, 1 or more.
        max_size: Maximum size; min_size or more.
        test_size: Test examples per client, 0 or more; 5,000 in the paper.
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
        root = np.random.SeedSequence(derive(population_seed, "synthetic mixture"))
        sizes, weights, models = (np.random.default_rng(one) for one in root.spawn(3))
        self._rngs = root.spawn(3)  # seeds for the generators of inputs, components and noise
        drawn = log_normal_sizes(num_clients, mean_log_size, log_size_deviation, min_size, sizes)
        self.train_sizes = torch.from_numpy(drawn.clip(max=max_size))
        self.test_size = test_size
        self.weights: np.ndarray = weights.dirichlet([alpha] * num_components, num_clients)  # [clients, M]
        self.models: np.ndarray = models.uniform(-1, 1, (num_components, dimensions))  # theta [M, d]

    def load(self) -> Examples:
        owners = np.repeat(np.arange(len(self.weights)), self.train_sizes.numpy() + self.test_size)
        inputs, components, noise = (np.random.default_rng(seed) for seed in self._rngs)
        x = inputs.uniform(-1, 1, (len(owners), self.dimensions)).astype(np.float32)
        borders = self.weights.cumsum(1)[owners, :-1]  # upper ends of the components' intervals [N, M - 1]
        drawn = (components.random(len(owners))[:, None] >= borders).sum(1)
        scores = np.einsum("nd,nd->n", x, self.models[drawn]) + self.noise * noise.standard_normal(len(owners))
        return Examples(torch.from_numpy(x), torch.from_numpy((scores > 0).astype(np.int64)), 2)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        whole = ClientIndex.from_sizes(torch.arange(len(examples)), self.train_sizes + self.test_size)
        train, test = whole.first(self.train_sizes), whole.after(self.train_sizes)
        return Division(train.pack(), test.pack(), torch.full_like(self.train_sizes, -1), "other")
