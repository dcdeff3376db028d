"""Tests that a simulated GPU gives the CPU's bits, and counts its launches, copies and waits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
import torch
from pretended_gpu import Counts, PretendedGPU, pretended
from ragged import SHAPE, ragged_data, task
from test_batch_norm import Residual
from test_frozen import ViT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lit_cfl import nets
from lit_cfl.aggregation import discrepancy, mean_by_cluster
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.examples import View
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.nets import MCLR, MLP, MNISTCNN, VGG16
from lit_cfl.tasks import Classification

pytestmark = pytest.mark.nightly  # a pretended GPU


class Recurrent(nn.Module):
    """Net that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc1 = nn.GRU(8, 5, batch_first=True), nn.Linear(5, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc1(self.gru(inputs.squeeze(1))[0][:, -1])


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: MCLR(SHAPE, 10),
    "mlp": lambda: nn.Sequential(MLP(12, SHAPE, 16), nn.Dropout(0.4), nn.Linear(16, 10)),
    "cnn": lambda: MNISTCNN(SHAPE, 10),
    "recurrent": Recurrent,
    "residual": Residual,
    "adapters": ViT,
}
# maximum number of operations of an eager step without a proximal term
KERNELS = {"linear": 46, "mlp": 97, "cnn": 108, "recurrent": 295, "residual": 391, "adapters": 207}
TENSORS = {"linear": 2, "mlp": 6, "cnn": 6, "recurrent": 6, "residual": 19, "adapters": 18}  # number of trained tensors
CPU_PLAN, GPU_PLAN = Plan("stack", lanes=6), Plan("stack", "cuda:0", lanes=6)


gpu = pytest.fixture(pretended)


@pytest.fixture(autouse=True)
def _one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the GPU's stack a single width, as on the CPU, because the last bits may depend on the number of lanes."""
    monkeypatch.setattr(stack_way, "widths_of", lambda lanes, narrow: [lanes])


def engine_of(net: str, plan: Plan, batch_size: int | Literal["full"] = 10, **optimizer: float) -> Engine:
    make = task(NETS[net], partial(torch.optim.SGD, lr=0.1, **optimizer))
    return Engine(make, plan, 5, LocalTraining(2, batch_size))


def round_of(engine: Engine, data: FederatedData, prox: float = 0.0) -> tuple[Tensor, float, Tensor, Tensor, Tensor]:
    """Trains all clients, averages their models in two clusters, and computes losses, gradients and scores."""
    work, clients = engine.at(2, data), torch.arange(data.num_clients)
    models, labels = torch.stack([engine.initial(number) for number in range(3)]), clients % 2
    fitted = work.fit(models, clients, labels, prox=prox, centers=models, center=2)
    means = mean_by_cluster(fitted, labels, data.num_examples, into=models[:2])
    gaps = discrepancy(fitted, means, labels)
    scored = engine.outcomes_of_each(means, torch.arange(2), torch.arange(2), data)
    return means, gaps, work.losses(means, clients), work.gradients(means[0], clients), scored.losses


OPTIONS = [(0.0, 0.9), (0.3, 0.0)]  # proximal term and momentum, tested in turn, since each net takes seconds


@pytest.mark.parametrize(("net", "prox", "momentum"), [(net, *OPTIONS[k % 2]) for k, net in enumerate(NETS)])
def test_gpu_gives_the_bits_of_the_cpu(net: str, prox: float, momentum: float, gpu: PretendedGPU):
    data = ragged_data()
    expected, found = (round_of(engine_of(net, plan, momentum=momentum), data, prox) for plan in (CPU_PLAN, GPU_PLAN))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(torch.as_tensor(mine).nan_to_num(), torch.as_tensor(theirs).nan_to_num())


# Other nets of the package: constructor, and shape of an input.
OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{
        name: (partial(getattr(nets, name), [1, 28, 28], 10), (1, 28, 28))
        for name in ("FEMNISTCNN", "FashionCNN", "LeNet", "StoCFLCNN", "SattlerCNN")
    },
    **{
        name: (partial(getattr(nets, name), input_shape=[6, 5], num_labels=2), (6, 5))
        for name in ("Sent140GRU", "Sent140LSTM", "FedGroupLSTM")
    },
    "VGG16": (partial(VGG16, [6], width=1, batch_norm=True, input_shape=[1, 32, 32], num_labels=10), (1, 32, 32)),
}


def test_every_net_is_among_those_on_a_gpu():
    known = {name for name, kind in vars(nets).items() if isinstance(kind, type) and issubclass(kind, nets.Net)}
    assert known - {"Net"} == {*OTHERS, "MCLR", "MLP", "MNISTCNN"}


@pytest.mark.parametrize("net", OTHERS)
def test_every_other_net_gives_the_bits_of_the_cpu(net: str, gpu: PretendedGPU):
    make, shape = OTHERS[net]
    rng, sizes = torch.Generator().manual_seed(0), torch.tensor([3, 0, 5])
    labels = torch.randint(0, 2, (8,), generator=rng)
    index = ClientIndex.from_sizes(torch.arange(8), sizes)
    examples = Examples(torch.rand(8, *shape, generator=rng), labels, 2 if len(shape) == 2 else 10)
    data = FederatedData(examples, index, ClientIndex.empty(3), index, torch.zeros(3, dtype=torch.int64))
    engines = [
        Engine(task(make, partial(torch.optim.SGD, lr=0.1)), plan, 5, LocalTraining(1, 2))
        for plan in (CPU_PLAN, GPU_PLAN)
    ]
    expected, found = (round_of(engine, data) for engine in engines)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(torch.as_tensor(mine).nan_to_num(), torch.as_tensor(theirs).nan_to_num())


def test_views_are_seen_without_a_wait_and_a_pool_may_stay_on_the_cpu(
    gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
):
    data = ragged_data()
    with gpu.counting() as without:
        round_of(engine_of("mlp", GPU_PLAN), data)
    views = (View(), View(quarter_turns=1, noise=0.3), View(label_map=(1, 0, *range(2, 10))))
    seen = data.train.values + len(data.examples) * (torch.arange(len(data.examples)) % 3)
    data = replace(data, examples=replace(data.examples, views=views), train=replace(data.train, values=seen))
    expected = round_of(engine_of("mlp", CPU_PLAN), data)[0]
    with gpu.counting() as counts:
        assert torch.equal(round_of(engine_of("mlp", GPU_PLAN), data)[0], expected)
    assert counts.waits == without.waits
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda device, size: False)
    with gpu.counting() as small:
        assert torch.equal(round_of(engine_of("mlp", GPU_PLAN), data)[0], expected)
    assert small.waits <= counts.waits


def counted(net: str, gpu: PretendedGPU, clients: int, steps: int, prox: float = 0.0) -> Counts:
    """Counts the operations, copies and waits of a fit and its means, after everything has been captured."""
    engine, data = engine_of(net, GPU_PLAN), ragged_data((10 * steps // 2,) * clients)
    everyone, models = torch.arange(clients), engine.initial(0)[None]
    for _ in range(2):
        with gpu.counting() as counts:
            fitted = engine.at(2, data).fit(models, everyone, prox=prox, centers=models)
            mean_by_cluster(fitted, torch.zeros_like(everyone), data.num_examples, into=models)
    return counts


@pytest.mark.parametrize(("net", "prox"), [(net, OPTIONS[(k + 1) % 2][0]) for k, net in enumerate(NETS)])
def test_a_step_is_one_replay_without_a_copy_or_a_wait(net: str, prox: float, gpu: PretendedGPU):
    few, many = counted(net, gpu, 6, 4, prox), counted(net, gpu, 6, 10, prox)
    assert (few.replays, many.replays) == (4, 10)
    assert (many.launches, many.uploads, many.downloads, many.waits) == (
        few.launches,
        few.uploads,
        few.downloads,
        few.waits,
    )
    assert many.replayed <= 10 * (KERNELS[net] + 3 * TENSORS[net] * (prox > 0))
    assert many.waits <= 4  # waits for the losses, the check that they are finite, the sums of weights, and the means
    assert many.downloads <= 3
    assert many.uploads <= 12


def test_a_client_more_is_one_addition_more_and_moves_only_its_batches(gpu: PretendedGPU):
    few, many = counted("mlp", gpu, 6, 4), counted("mlp", gpu, 12, 4)  # twelve clients take turns in six lanes
    tensors = 6  # number of tensors of the model
    assert many.replays == 2 * few.replays
    assert many.launches - few.launches == 6 + (1 + tensors) + (tensors + 2)  # six sums, one load and one save
    assert (many.uploads, many.downloads, many.waits) == (few.uploads, few.downloads, few.waits)
    row = 4 * engine_of("mlp", CPU_PLAN).layout.num_columns
    tables = 4 * 6 * (8 * 10 + 8 + 16 + 1)  # steps times lanes: batches, keys, corrections, first-step flags
    assert many.moved - few.moved < tables + row  # twelve rows would be more


class InFloat32(Classification):
    """Task that computes its losses in float32, regardless of the model's dtype."""

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(self(batch[0]).float(), batch[1], reduction="none")


def test_losses_are_held_in_single_precision_where_models_are_in_half(gpu: PretendedGPU):
    found, make = [], lambda: InFloat32(MLP(12, SHAPE, 10), partial(torch.optim.SGD, lr=0.1))
    for plan in (CPU_PLAN, GPU_PLAN):
        engine = Engine(make, replace(plan, precision="bf16-true"), 5, LocalTraining(2, 10))
        model = engine.layout.read(engine.template)
        found.append(engine.at(2, ragged_data()).fit(model[None], torch.arange(6)).losses)
    assert torch.equal(found[1].nan_to_num(), found[0].nan_to_num())
