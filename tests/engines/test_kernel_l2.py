"""Tests which weights the penalty on kernels has (C10).

That it is in training but not in reported losses (C11), in every way, is stated by `test_ways.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ragged import SGD, SHAPE
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from lit_cfl.errors import InputError
from lit_cfl.nets import MLP, MNISTCNN, Sent140GRU
from lit_cfl.tasks import Classification

mlp = partial(MLP, 12, SHAPE, 10)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("*", "conv1 conv2 fc1"),
        ("fc*", "fc1"),
        (["conv[0]", "fc1.weight"], "conv1 fc1"),
    ],
)
def test_layers_are_chosen_by_patterns(layers: str | list[str], expected: str):
    module = Classification(MNISTCNN(SHAPE, 10), SGD, 1.0, layers)
    squares = [module.net.get_submodule(layer).weight.square().sum() for layer in expected.split()]
    assert_close(module.penalty(), torch.stack(squares).sum(), rtol=1e-6, atol=0)


def test_frozen_kernels_and_weights_of_other_layers_are_not_penalised():
    net = nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10))
    net[0].weight.requires_grad_(False)
    assert torch.equal(Classification(net, SGD, 1.0).penalty(), net[2].weight.square().sum())
    text = Sent140GRU([4], 2, vocabulary=7, embedding_width=5)  # recurrent kernels and embeddings are not penalised
    expected = text.fc1.weight.square().sum() + text.fc2.weight.square().sum()
    assert torch.equal(Classification(text, SGD, 1.0).penalty(), expected)


def test_a_kernel_shared_with_an_embedding_or_computed_from_parameters_is_penalised_once():
    net = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10), nn.Linear(8, 10), weight_norm(nn.Linear(10, 4)))
    net[1].weight = net[0].weight
    net[2].weight = net[0].weight
    module = Classification(net, SGD, 1.0)
    assert module.penalised_layers == ["1", "3"]
    assert_close(module.penalty(), net[0].weight.square().sum() + net[3].weight.square().sum())


@pytest.mark.parametrize(
    ("net", "strength", "layers", "named"),
    [
        (mlp, -0.1, "*", "kernel_l2 is -0.1"),
        (mlp, 0.1, "conv*", r"'conv\*'.*fc1"),
        (lambda: nn.BatchNorm1d(4), 0.1, "*", "no fully connected or convolutional layer"),
    ],
)
def test_what_penalises_nothing_is_refused(net: Callable[[], nn.Module], strength: float, layers: Any, named: str):
    with pytest.raises(InputError, match=named):
        Classification(net(), SGD, strength, layers)
