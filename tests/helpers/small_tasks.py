"""Small data and tasks other than classification: numbers and sentences of two clients."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.tasks import NextToken, Regression

X = np.arange(24, dtype=np.float32).reshape(12, 2) / 10
OWNERS = [0] * 5 + [1] * 7
SENTENCES = np.array([[1, 2, 3, 0], [1, 3, 0, 0], [2, 2, 2, 2], [3, 0, 0, 0]] * 3)


def numbers(**changes: Any) -> ArrayData:
    return ArrayData(**{"x": X, "y": X.sum(1) - 1, "client": OWNERS, "test": 0.25} | changes)


def sentences(**changes: Any) -> ArrayData:
    return ArrayData(**{"x": SENTENCES, "client": OWNERS, "test": 0.25, "vocabulary": 4} | changes)


class Bigram(nn.Module):
    """Net with a table of the next token's logits, given the last token."""

    def __init__(self, vocabulary: int = 4):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


def regression() -> Regression:
    return Regression(nn.Linear(2, 1))


def language() -> NextToken:
    return NextToken(Bigram())
