"""A data module that gives a client an example that does not exist."""

import numpy as np
import torch

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules import FederatedDataModule


class Negative(FederatedDataModule):
    def load(self) -> Examples:
        return Examples(torch.arange(12.0).view(6, 2), torch.arange(6) % 2, 2)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        train = ClientIndex.from_lists([torch.tensor([0, 1]), torch.tensor([2, -3])])
        return Division(train, ClientIndex.empty(2), torch.tensor([0, 1]), "feature")
