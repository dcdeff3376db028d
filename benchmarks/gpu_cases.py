"""The models of `gpu.py`, and what their clients train on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from engines import NETS
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.tasks import Classification

BATCH, WIDTHS = 10, (1, 4, 16, 64, 256, 512)


class PflCNN(nn.Module):
    """The CIFAR-10 preset of pfl-research (Granqvist et al., 2024, arXiv:2404.06430): 1,626,442 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(12_544, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout1(max_pool2d(relu(self.conv2(relu(self.conv1(x)))), 2)).flatten(1)
        return self.fc2(self.dropout2(relu(self.fc1(hidden))))


class VGG16(nn.Sequential):
    """Thirteen convolutions and one fully connected layer, for 3 x 32 x 32: 14,719,818 parameters.

    Simonyan and Zisserman, 2015, arXiv:1409.1556, configuration D, as it is used for CIFAR-10.

    Args:
        channels: of the first convolution; the paper's 64.
    """

    def __init__(self, channels: int = 64) -> None:
        layers: list[nn.Module] = []
        before = 3
        for factor, times in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(times):
                layers += [nn.Conv2d(before, factor * channels, 3, padding=1), nn.ReLU()]
                before = factor * channels
            layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.Flatten(), nn.Linear(before, 10))


@dataclass(frozen=True)
class Case:
    """A model, and what its clients train on."""

    net: Callable[[], nn.Module]
    shape: tuple[int, ...] = (1, 28, 28)
    cohort: int = 100
    images: int = 60
    epochs: int = 10
    widths: tuple[int, ...] = WIDTHS

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.images // BATCH)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.net().parameters())

    @property
    def has_convolutions(self) -> bool:
        return any(isinstance(layer, nn.Conv2d) for layer in self.net().modules())

    def task(self) -> Classification:
        return Classification(self.net(), partial(torch.optim.SGD, lr=0.03))

    def data(self, clients: int) -> FederatedData:
        rng, total = torch.Generator().manual_seed(0), clients * self.images
        images = torch.randint(0, 255, (total, *self.shape), generator=rng, dtype=torch.uint8)
        examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
        train = ClientIndex.from_sizes(torch.arange(total), torch.full((clients,), self.images))
        none = ClientIndex.empty(clients)
        return FederatedData(examples, train, none, none, torch.zeros(clients, dtype=torch.int64))

    def local(self) -> LocalTraining:
        return LocalTraining(self.epochs, BATCH, on_divergence="skip")


CASES = {name: Case(net) for name, net in NETS.items()} | {
    "vgg16": Case(VGG16, (3, 32, 32), 20, 50, 1),
    "pfl-cifar10": Case(PflCNN, (3, 32, 32), 50, 50, 1),
}


def case_of(name: str, device: str) -> Case:
    """The case, or its small form where there is no GPU."""
    case = CASES[name]
    if device != "cpu":
        return case
    net = partial(VGG16, 8) if name == "vgg16" else case.net
    return replace(case, net=net, cohort=4, images=25, epochs=1, widths=(1, 4))
