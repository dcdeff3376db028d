"""Tests weights of examples' losses: equal results in every engine, and which losses allow weights."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from quadratic import ids
from ragged import PLANS, SGD, SHAPE, SIZES, in_groups, ragged_data, rows_of
from small_tasks import language, sentences
from test_kernel_l2 import mlp
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.data import FederatedData
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import TaskFactory
from lit_cfl.errors import InputError
from lit_cfl.local_work import Fitted
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

DATA = ragged_data()
CLIENTS = ids(3, 0, 5, 3, 1)  # one client twice, and one without data
WAYS = {name: PLANS[name] for name in ("trainer", "plain loop", "4 lanes", "2 lanes")}  # chains: test_compiled_steps.py
LOCAL = LocalTraining(3, 10)


def drawn(data: FederatedData = DATA, clients: Tensor = CLIENTS) -> Tensor:
    """Draws weights from 0 to 1, some of them exactly 0."""
    rng = torch.Generator().manual_seed(3)
    found = torch.rand(int(data.num_examples[clients].sum()), generator=rng, dtype=torch.float64)
    return torch.where(found < 0.2, 0.0, found)


def fit(
    make: TaskFactory,
    plan: Plan,
    weights: Tensor | None,
    local: LocalTraining = LOCAL,
    data: FederatedData = DATA,
    **options: object,
) -> Fitted:
    engine = build_engine(make, replace(plan, precision="64-true"), 5, local)
    models = torch.stack([engine.initial(number) for number in range(3)])
    start = ids(0, 1, 1, 2, 0)
    found = engine.at(2, data).fit(models, CLIENTS, start, centers=models, center=2, weights=weights, **options)
    rows_of(found)
    return found


TASKS: dict[str, TaskFactory] = {
    "mlp with a penalty": mlp(0.1),
    "mlp under momentum": mlp(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "mlp under adam": mlp(optimizer=partial(torch.optim.Adam, lr=0.01)),
    "linear in groups": lambda: Classification(MCLR(SHAPE, 10), in_groups),
    "dropout": lambda: Classification(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 10)), SGD
    ),
    "cnn": lambda: Classification(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)), SGD),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("plan", "name"), list(product([name for name in WAYS if name != "trainer"], TASKS)))
def test_every_way_gives_the_trainers_result(plan: str, name: str):
    for options in ({"prox": 0.3}, {}):
        expected, found = (fit(TASKS[name], WAYS[way], drawn(), **options) for way in ("trainer", plan))
        assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)
        assert_close(found.losses, expected.losses, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert found.trained.tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("plan", WAYS)
def test_weights_of_one_change_no_bit(plan: str):
    ones = torch.ones(int(DATA.num_examples[CLIENTS].sum()), dtype=torch.float64)
    for make in (mlp(0.0), mlp(0.1)):
        plain, weighted = (fit(make, WAYS[plan], weights) for weights in (None, ones))
        assert torch.equal(rows_of(plain), rows_of(weighted))
        assert torch.equal(plain.losses.nan_to_num(), weighted.losses.nan_to_num())


@pytest.mark.parametrize("plan", WAYS)
def test_a_full_batch_step_is_the_weighted_sum_of_gradients_over_the_number_of_examples(plan: str):
    make, weights, local = mlp(0.0), drawn(), LocalTraining(1, "full")
    found = fit(make, WAYS[plan], weights, local)
    engine = build_engine(make, Plan("trainer", precision="64-true"), 5, local)
    for position, (client, model) in enumerate([(3, 0), (0, 1), (5, 1), (3, 2), (1, 0)]):
        if not SIZES[client]:
            continue
        own = weights.split(DATA.num_examples[CLIENTS].tolist())[position]
        row = engine.initial(model)
        module = engine.module(row)
        inputs, labels = DATA.examples.batch(DATA.train[client], torch.float64)
        losses = nn.functional.cross_entropy(module(inputs), labels, reduction="none") * own
        (losses.sum() / len(own)).backward()
        step = torch.cat([p.grad.flatten() for p in module.parameters()])
        assert_close(rows_of(found)[position], row - 0.1 * step, rtol=0, atol=1e-12)
        assert float(found.losses[position]) == pytest.approx(losses.mean().item(), rel=1e-12)


@pytest.mark.parametrize("plan", WAYS)
def test_what_weighs_nothing_trains_nothing(plan: str):
    weights = torch.zeros(int(DATA.num_examples[CLIENTS].sum()), dtype=torch.float64)
    found = fit(mlp(0.0), WAYS[plan], weights)
    engine = build_engine(mlp(0.0), Plan(precision="64-true"), 5, LOCAL)
    assert torch.equal(rows_of(found), torch.stack([engine.initial(k) for k in (0, 1, 1, 2, 0)]))
    assert found.losses.nan_to_num(-1).tolist() == [0, -1, 0, 0, 0]


def test_large_batches_of_a_loop_weigh_every_part():
    data = ragged_data((0, 5, 8, 2500, 9, 20))
    local, weights = LocalTraining(1, "full"), drawn(data)
    expected, found = (fit(mlp(0.1), Plan(way), weights, local, data) for way in ("trainer", "loop"))
    assert_close(rows_of(found), rows_of(expected), rtol=0, atol=1e-12)


def test_sequences_of_tokens_are_weighed_too():
    data = sentences().federated(0)
    clients = ids(*range(data.num_clients))
    weights = drawn(data, clients)
    rows = []
    for way in ("trainer", "loop"):
        engine = build_engine(language, Plan(way, precision="64-true"), 5, LOCAL)
        models = torch.stack([engine.initial(0)])
        rows.append(rows_of(engine.at(0, data).fit(models, clients, weights=weights)))
    assert_close(rows[0], rows[1], rtol=0, atol=1e-12)


class OwnStep(Classification):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.losses(batch).sum()


def test_a_task_whose_step_is_not_the_mean_of_its_losses_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"weighs examples.*training_step computes another loss"):
        fit(lambda: OwnStep(MCLR(SHAPE, 10), SGD), Plan("trainer"), drawn())


@pytest.mark.parametrize("plan", WAYS)
def test_losses_of_examples_are_listed_client_by_client_under_every_model(plan: str):
    engine = build_engine(mlp(0.1), replace(WAYS[plan], precision="64-true"), 5, LOCAL)
    models = torch.stack([engine.initial(number) for number in range(2)])
    work = engine.at(0, DATA)
    found = work.example_losses(models, CLIENTS)
    assert (found.shape, found.dtype) == ((2, 36 + 0 + 20 + 36 + 3), torch.float64)
    assert work.costs.scored == 2 * 95
    inputs, labels = DATA.examples.batch(torch.cat([DATA.train[k] for k in CLIENTS.tolist()]), torch.float64)
    for model, losses in zip(models, found, strict=True):
        with torch.no_grad():
            plain = nn.functional.cross_entropy(engine.module(model)(inputs), labels, reduction="none")
        assert_close(losses, plain, rtol=0, atol=1e-12)  # losses of single examples do not include the penalty
    means = torch.stack([part.mean(1) for part in found.split(DATA.num_examples[CLIENTS].tolist(), dim=1)])
    assert_close(engine.at(0, DATA).losses(models, CLIENTS), means, rtol=1e-12, atol=0, equal_nan=True)
    assert work.example_losses(models, ids()).shape == (2, 0)


@pytest.mark.ray
def test_workers_weigh_the_examples_of_their_own_clients(cluster: None):
    expected = fit(mlp(0.1), Plan("loop"), drawn())
    found = fit(mlp(0.1), Plan("loop", workers=2), drawn())
    assert torch.equal(rows_of(found), rows_of(expected))
    assert torch.equal(found.losses.nan_to_num(), expected.losses.nan_to_num())
