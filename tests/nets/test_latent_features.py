import pytest
import torch
from lightning import LightningModule
from quadratic import rng
from torch import Tensor, nn

from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR, MLP, FedGroupLSTM, LeNet, Sent140GRU
from lit_cfl.nets.last_layer import latent_features
from lit_cfl.tasks import Classification, NextToken, Regression

IMAGES = torch.randn(5, 1, 28, 28, generator=rng())


def test_features_of_our_nets_are_what_the_last_layer_takes():
    net = MLP(16, [1, 28, 28], 10)
    hidden = net.fc1(IMAGES.flatten(1)).relu()
    assert torch.equal(latent_features(Classification(net), IMAGES), hidden)
    assert not any(layer._forward_hooks for layer in net.modules())
    assert torch.equal(latent_features(MCLR([1, 28, 28], 10), IMAGES), IMAGES.flatten(1))
    lenet = LeNet([1, 28, 28], 10).eval()
    features = latent_features(lenet, IMAGES)
    assert features.shape == (5, 84)
    assert torch.equal(lenet.fc3(features), lenet(IMAGES))


def test_features_of_texts_and_of_numbers_are_rows():
    words = torch.randn(4, 25, 300, generator=rng())
    for net, width in ((Sent140GRU, 64), (FedGroupLSTM, 30)):
        assert latent_features(net([25, 300], 2).eval(), words).shape == (4, width)
    tokens = torch.randint(9, (3, 6), generator=rng())
    assert latent_features(NextToken(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))), tokens).shape == (3, 24)
    regression = Regression(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1), nn.Flatten(0)))
    assert latent_features(regression, torch.rand(3, 6)).shape == (3, 4)


def test_the_last_layer_is_the_one_called_last_not_the_one_made_last():
    class MadeBackwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.end, self.begin = nn.Linear(2, 3), nn.Linear(7, 2)
            self.weight = nn.Parameter(torch.ones(2))  # a parameter of the net itself, which is not a layer

        def forward(self, inputs: Tensor) -> Tensor:
            return self.end(input=self.weight * self.begin(inputs)).softmax(1)

    net, inputs = MadeBackwards(), torch.rand(4, 7)
    assert torch.equal(latent_features(net, inputs), net.begin(inputs))


class Functional(nn.Module):
    """Net whose last layer is a function call with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Parameter(torch.ones(3, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(self.body(inputs), self.head)


class Asked(Functional):
    def latent_features(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


def test_module_or_net_with_the_method_is_asked():
    class Module(LightningModule):
        def latent_features(self, inputs: Tensor) -> Tensor:
            return 2 * inputs

    net, inputs = Asked(), torch.rand(2, 4)
    assert torch.equal(latent_features(Classification(net), inputs), net.body(inputs))
    assert torch.equal(latent_features(Module(), inputs), 2 * inputs)


def test_features_that_cannot_be_found_are_refused():
    for net in (Classification(Functional()), nn.Flatten()):
        with pytest.raises(InputError, match=r"(Functional|Flatten) .*latent_features\(inputs\)"):
            latent_features(net, torch.rand(2, 4))
    net = Asked()
    for answer in (lambda inputs: inputs[:1], lambda inputs: inputs[:, 0], lambda inputs: None):
        net.latent_features = answer
        with pytest.raises(InputError, match=r"Asked\.latent_features returns .* for 2 inputs"):
            latent_features(net, torch.rand(2, 4))
