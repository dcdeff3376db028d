"""Tests the penalty on kernels: in training but not in reported losses, and equal in every engine (C10, C11)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from quadratic import ids
from ragged import PLANS, SGD, SHAPE, SIZES, fitted, ragged_data, reasons_against, rows_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import weigh_losses
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP, MNISTCNN, Sent140GRU
from lit_cfl.tasks import Classification

Make = Callable[[], Classification]


def mlp(kernel_l2: float = 0.1, layers: str | list[str] = "*", optimizer: Callable = SGD) -> Make:
    return lambda: Classification(MLP(12, SHAPE, 10), optimizer, kernel_l2, layers)


def batch_of(count: int) -> tuple[Tensor, Tensor]:
    return ragged_data().examples.batch(torch.arange(count))


def engine_of(make: Make, plan: Plan = Plan("trainer", precision="64-true")) -> Engine:
    return build_engine(make, plan, 5, LocalTraining(1, 10))


def only_of_kernels(parameters: list[nn.Parameter], decay: float) -> list[dict[str, object]]:
    kernels, biases = ([p for p in parameters if (p.dim() > 1) is many] for many in (True, False))
    return [{"params": kernels, "weight_decay": decay}, {"params": biases, "weight_decay": 0.0}]


def test_penalty_is_the_sum_of_squares_of_the_kernels():
    module = mlp(0.001)()
    net = module.net
    with torch.no_grad():
        net.fc1.weight.fill_(0.5), net.fc2.weight.fill_(-2.0), net.fc1.bias.fill_(7.0), net.fc2.bias.fill_(7.0)
    assert module.penalty().item() == pytest.approx(0.001 * (0.25 * 64 * 12 + 4 * 12 * 10))


def test_every_example_carries_the_penalty_in_training_and_none_in_the_report():
    module, batch = mlp(0.1)(), batch_of(4)
    plain = cross_entropy(module(batch[0]), batch[1], reduction="none")
    assert module.penalty() > 1
    assert torch.equal(module.losses(batch), plain + module.penalty())
    assert torch.equal(module.training_step(batch, 0), (plain + module.penalty()).mean())
    assert torch.equal(module.outcomes(batch)[0], plain)


def test_without_it_nothing_is_added():
    module, batch = mlp(0.0)(), batch_of(4)
    assert torch.equal(module.losses(batch), module.outcomes(batch)[0])
    assert module.penalty() == 0


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("*", "conv1 conv2 fc1"),
        ("fc*", "fc1"),
        (["conv2", "fc1"], "conv2 fc1"),
        ("conv[0]", "conv1"),
        ("fc1.weight", "fc1"),
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


def test_gradient_is_that_of_a_weight_decay_twice_as_large_on_the_kernels_alone():
    def decaying(parameters: object) -> torch.optim.SGD:
        return torch.optim.SGD(only_of_kernels(list(parameters), 0.2), lr=0.1)

    for plan in ("trainer", "plain loop"):
        double = replace(PLANS[plan], precision="64-true")
        expected, _ = fitted(mlp(0.0, optimizer=decaying), double)
        found, _ = fitted(mlp(0.1), double)
        without, _ = fitted(mlp(0.0), double)
        assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)
        assert (rows_of(found) - rows_of(without)).abs().max() > 0.01


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "trainer"])
@pytest.mark.parametrize("layers", ["*", "fc2"])
def test_stack_gives_the_trainers_result(layers: str, plan: str):
    options = {"prox": 0.3, "budget": Budget(2, "epochs")}
    expected, _ = fitted(mlp(0.1, layers), Plan("trainer", precision="64-true"), **options)
    found, _ = fitted(mlp(0.1, layers), replace(PLANS[plan], precision="64-true"), **options)
    assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)
    assert_close(found.losses, expected.losses, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert found.trained.tolist() == [size > 0 for size in SIZES]


def test_adam_has_the_penalty_in_its_moments_on_every_engine():
    make = mlp(0.1, optimizer=partial(torch.optim.Adam, lr=0.01))
    expected, _ = fitted(make, Plan("trainer", precision="64-true"))
    found, _ = fitted(make, Plan("stack", lanes=4, precision="64-true"))
    assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)


def test_it_can_be_stacked():
    assert reasons_against(mlp(0.1)) == []


@pytest.mark.parametrize("plan", ["trainer", "plain loop", "4 lanes"])
def test_gradient_of_a_client_holds_the_penalty(plan: str):
    double = replace(PLANS[plan], precision="64-true")
    model = engine_of(mlp(0.0), double).initial(0)
    plain, penalised = (
        engine_of(mlp(strength), double).at(2, ragged_data()).gradients(model, ids(3, 1)) for strength in (0.0, 0.1)
    )
    layout = engine_of(mlp(0.1)).layout
    expected = torch.zeros_like(model).index_copy_(
        0, layout.columns("fc*.weight"), 0.2 * model[layout.columns("fc*.weight")]
    )
    assert_close(penalised - plain, expected.expand(2, -1), rtol=0, atol=1e-12)


def test_losses_leave_the_penalty_out():
    engine, plain_engine = engine_of(mlp(0.1, "fc2")), engine_of(mlp(0.0))
    work, plain_work = (one.at(2, ragged_data()) for one in (engine, plain_engine))
    models = torch.stack([engine.initial(0), 2 * engine.initial(1), 0 * engine.initial(2)])
    clients = ids(3, 0, 2)
    found = work.losses(models, clients)
    assert torch.equal(found.nan_to_num(-1), plain_work.losses(models, clients).nan_to_num(-1))
    assert found.isnan().tolist() == [[False] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize("penalty", [property(), 0.1], ids=["none", "a number"])
def test_module_without_a_method_penalty_adds_none(penalty: object):
    kind = type("Plain", (Classification,), {"penalty": penalty})  # a property without a getter hides the method
    engine = engine_of(lambda: kind(MLP(12, SHAPE, 10), SGD))
    losses, weights = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0])
    assert weigh_losses(engine.template, losses, weights).tolist() == [0.5, 6.0]


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (lambda: MLP(12, SHAPE, 10), {"kernel_l2": -0.1}, "kernel_l2 is -0.1; give 0 or more"),
        (lambda: MLP(12, SHAPE, 10), {"kernel_l2": float("nan")}, "kernel_l2 is nan"),
        (lambda: MLP(12, SHAPE, 10), {"kernel_l2": 0.1, "kernel_l2_layers": "conv*"}, r"'conv\*' matches nothing.*fc1"),
        (
            lambda: MLP(12, SHAPE, 10),
            {"kernel_l2": 0.1, "kernel_l2_layers": "fc1.bias"},
            "match no fully connected.*fc1, fc2",
        ),
        (lambda: nn.BatchNorm1d(4), {"kernel_l2": 0.1}, "match no fully connected or convolutional layer"),
    ],
)
def test_what_penalises_nothing_is_refused(net: Callable[[], nn.Module], options: dict, message: str):
    with pytest.raises(InputError, match=message):
        Classification(net(), SGD, **options)
