"""Perceptrons trained by our own C++ function: the trainer's numbers, the same bits in any company, no other module."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from ragged import LOCAL, SGD, SHAPE, fitted, in_groups, ragged_data, require_same_bits_in_any_company, rows_of, task
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines import perceptron
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.perceptron import is_perceptron
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import DivergedError, InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP, MNISTCNN
from lit_cfl.tasks import Classification, Regression

FUSED = Plan("stacked", products="own", fused=True)


def penalised(net: Callable[[], nn.Module], layers: str) -> Callable[[], LightningModule]:
    return lambda: Classification(net(), SGD, kernel_l2=0.05, kernel_l2_layers=layers)


@pytest.mark.parametrize(("precision", "tolerance"), [("64-true", 1e-13), ("32-true", 1e-6)])
@pytest.mark.parametrize(
    ("make", "prox", "batch_size"),
    [
        (task(lambda: MCLR(SHAPE, 10)), 0.0, 10),
        (penalised(lambda: MCLR(SHAPE, 10), "*"), 0.3, 7),
        (task(lambda: MLP(33, SHAPE, 10), in_groups), 0.0, 10),
        (penalised(lambda: MLP(16, SHAPE, 10), "fc2"), 0.3, 100),
    ],
    ids=["linear", "linear, penalty and centre", "MLP, groups", "MLP, penalty of a layer, centre, whole clients"],
)
def test_models_and_losses_are_the_trainers(
    make: Callable[[], LightningModule], prox: float, batch_size: int, precision: str, tolerance: float
):
    local = LocalTraining(3, batch_size)
    found, engine = fitted(make, replace(FUSED, precision=precision), local=local, prox=prox)
    assert engine.plan.fused
    expected, _ = fitted(make, Plan("trainer", precision=precision), local=local, prox=prox)
    assert_close(rows_of(found), rows_of(expected), rtol=0, atol=tolerance)
    assert_close(found.losses, expected.losses, rtol=0, atol=10 * tolerance, equal_nan=True)
    assert not torch.equal(rows_of(found)[1:], rows_of(found)[:1].expand(5, -1))  # they have trained


@pytest.mark.parametrize("shape", [[1], [3], [17], [1, 5, 7], [300]])
@pytest.mark.parametrize("sizes", [(2, 1), (3, 7), (11, 50)], ids=str)
def test_layers_of_any_width_are_trained_whole(shape: list[int], sizes: tuple[int, int]):
    labels, hidden = sizes
    rng = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(23, *shape, generator=rng), torch.randint(0, labels, (23,), generator=rng)
    train, none = ClientIndex.from_sizes(torch.arange(23), torch.tensor([20, 3])), ClientIndex.empty(2)
    data = FederatedData(Examples(inputs, targets, labels), train, none, none, torch.zeros(2, dtype=torch.int64))
    for net in (lambda: MCLR(shape, labels), lambda: MLP(hidden, shape, labels)):
        found, expected = (
            fitted(task(net), replace(plan, precision="64-true"), data=data)[0] for plan in (FUSED, Plan("trainer"))
        )
        assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)


def test_a_step_from_zero_is_what_arithmetic_says():
    """Two outputs of 0 are two probabilities of 1/2: each example moves its own label's weights by half of itself."""
    inputs, labels = torch.tensor([[2.0, 0.0, 4.0], [0.0, 6.0, 0.0]]), torch.tensor([0, 1])
    train, none = ClientIndex.from_sizes(torch.arange(2), torch.tensor([2])), ClientIndex.empty(1)
    data = FederatedData(Examples(inputs, labels, 2), train, none, none, torch.zeros(1, dtype=torch.int64))
    engine = build_engine(task(lambda: MCLR([3], 2)), FUSED, 0, LocalTraining(1, 2))
    fit = engine.at(0, data).fit(torch.zeros(1, 8), torch.tensor([0]))
    step = 0.1 * torch.tensor([2.0, -6.0, 4.0]) / 4  # rate times half the difference, a mean over two examples
    assert_close(fit.rows[0], torch.cat([step, -step, torch.zeros(2)]))
    assert float(fit.losses[0]) == pytest.approx(math.log(2))


def test_kernels_and_biases_are_pulled_towards_their_own_centre():
    make, clients = task(lambda: MLP(16, SHAPE, 10)), torch.arange(6)
    models = torch.randn(3, 64 * 16 + 16 + 16 * 10 + 10, generator=torch.Generator().manual_seed(3)).double() / 8
    found = []
    for plan in (FUSED, Plan("trainer")):
        engine = build_engine(make, replace(plan, precision="64-true"), 5, LOCAL)
        work = engine.at(2, ragged_data())
        found.append(work.fit(models, clients, clients % 2, prox=0.3, centers=models, center=clients % 3).rows)
    assert_close(*found, rtol=0, atol=1e-13)


def test_bits_do_not_depend_on_company_and_budgets_are_kept():
    make = task(lambda: MLP(16, SHAPE, 10))
    require_same_bits_in_any_company(make, FUSED, LOCAL)
    budget = Budget(torch.tensor([0, 1, 4, 2, 0, 3]), "steps", "full")
    found, expected = (rows_of(fitted(make, plan, budget=budget)[0]) for plan in (FUSED, Plan("trainer")))
    assert_close(found, expected, rtol=0, atol=1e-6)


class Doubled(MCLR):
    """A net of the user's own."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class Smoothed(Classification):
    """A task of the user's own."""

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().losses(batch) / 2


def changed(change: Callable[[MLP], object]) -> Callable[[], LightningModule]:
    def make() -> LightningModule:
        net = MLP(16, SHAPE, 10)
        change(net)
        return Classification(net, SGD)

    return make


OTHERS = {
    "net": task(lambda: MNISTCNN([1, 28, 28], 10)),
    "subclass of a net": task(lambda: Doubled(SHAPE, 10)),
    "subclass of the task": lambda: Smoothed(MCLR(SHAPE, 10), SGD),
    "task": lambda: Regression(MLP(16, SHAPE, 1), SGD),
    "momentum": task(lambda: MCLR(SHAPE, 10), partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "optimizer": task(lambda: MCLR(SHAPE, 10), torch.optim.Adam),
    "frozen layer": changed(lambda net: net.fc1.requires_grad_(False)),
    "layer without bias": changed(lambda net: setattr(net, "fc1", nn.Linear(64, 16, bias=False))),
    "another layer": changed(lambda net: net.add_module("norm", nn.LayerNorm(10))),
    "parametrised layer": changed(lambda net: nn.utils.parametrizations.weight_norm(net.fc1)),
    "hook": changed(lambda net: net.fc1.register_forward_hook(lambda *_: None)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_modules_are_left_to_other_engines(other: str):
    assert not is_perceptron(OTHERS[other](), LOCAL)


def test_what_it_serves_it_takes_and_clipping_it_refuses():
    make = task(lambda: MCLR(SHAPE, 10))
    assert is_perceptron(make(), LOCAL)
    assert not is_perceptron(make(), replace(LOCAL, gradient_clip=1.0))
    with pytest.raises(InputError, match=r"plan\.fused trains Classification with MCLR or MLP by SGD"):
        build_engine(OTHERS["momentum"], FUSED, 0, LOCAL)
    for part in (
        {"lanes": 2},
        {"compile": True},
        {"precision": "bf16-mixed"},
        {"precision": "bf16-true"},
        {"device": "cuda:0"},
    ):
        with pytest.raises(InputError, match=r"plan\.fused is true with .*; it needs no compile"):
            replace(FUSED, **part)


@pytest.mark.parametrize(
    ("net", "message"),
    [(lambda: MCLR([63], 10), "examples have 64 numbers each, but the net takes 63"),
     (lambda: MCLR(SHAPE, 9), "an example has the label 9, but the net has 9 outputs")],
)  # fmt: skip
def test_examples_that_the_net_cannot_take_are_refused(net: Callable[[], nn.Module], message: str):
    with pytest.raises(InputError, match=message):
        rows_of(fitted(task(net), FUSED)[0])


def test_divergence_stops_the_run_or_leaves_the_client_out():
    make = task(lambda: MLP(16, SHAPE, 10), partial(torch.optim.SGD, lr=1e30))
    with pytest.raises(DivergedError):
        rows_of(fitted(make, FUSED)[0])
    fit, engine = fitted(make, FUSED, local=replace(LOCAL, on_divergence="skip"))
    assert torch.equal(rows_of(fit)[1], engine.initial(1))
    assert not fit.trained.any()


def test_where_it_cannot_be_built_clients_train_in_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\necho "error: no disk" >&2; exit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(perceptron, "load", perceptron.load.__wrapped__)
    make = task(lambda: MCLR(SHAPE, 10))
    with pytest.warns(Notice, match="compiling failed .*no disk.*: clients train in a plain loop"):
        found, engine = fitted(make, replace(FUSED, products="torch"))
    assert not engine.plan.fused
    assert torch.equal(rows_of(found), rows_of(fitted(make, Plan("stacked"))[0]))
