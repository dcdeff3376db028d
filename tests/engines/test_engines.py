"""Tests what an engine does around its way of training: errors, gradients, scores, answers, nets, a Trainer's hooks.

That every way trains alike is stated by `test_ways.py`; what happens when memory runs out, by `test_memory.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from lightning import LightningModule
from quadratic import ids, rng
from ragged import LOCAL, PLANS, SGD, SHAPE, clients_of, fitted, ragged_data, task
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl import nets
from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines import scorer
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.cohort import CohortFit, Ended
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plain_loop import LoopWay
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import gradients
from lit_cfl.errors import DivergedError, InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification
from lit_cfl.tasks.classification import Batch

TRAINER, LOOP, STACK = (Plan(way, precision="64-true", lanes=4) for way in ("trainer", "loop", "stack"))
exactly = partial(assert_close, rtol=0, atol=1e-12)


def engine_of(plan: Plan = LOOP, net: Callable[[], nn.Module] = partial(MLP, 12, SHAPE, 10)) -> Engine:
    return build_engine(task(net), plan, 5, LOCAL)


def broken_data(*clients: int) -> FederatedData:
    data = ragged_data()
    inputs = data.examples.inputs.float()
    inputs[torch.cat([data.train[client] for client in clients])] = float("inf")
    return replace(data, examples=replace(data.examples, inputs=inputs))


def test_a_gradient_that_is_infinite_does_not_touch_the_others():
    engine = engine_of(replace(STACK, precision="32-true"))
    rows = engine.at(2, broken_data(1, 4)).gradients(engine.initial(0), torch.tensor([1, 2, 3, 4]))
    assert rows.isfinite().all(1).tolist() == [False, True, True, False]


class Picky(Classification):
    def losses(self, batch: Batch) -> Tensor:
        if len(batch[1]) == 7:  # the second batch of client 2
            raise ValueError("seven is a crowd")
        return super().losses(batch)


@pytest.mark.parametrize("plan", ["trainer", "plain loop", "4 lanes"])
def test_a_client_that_diverges_or_raises_an_error_is_named_with_the_round(plan: str):
    with pytest.raises(DivergedError, match="client 3 diverged in round 3"):
        fitted(task(partial(MLP, 12, SHAPE, 10)), PLANS[plan], data=broken_data(3, 4))
    if plan != "4 lanes":  # a stack takes no losses that depend on the number of examples
        with pytest.raises(InputError, match=r"client 2 .* round 3: seven is a crowd"):
            fitted(lambda: Picky(MLP(12, SHAPE, 10), SGD), PLANS[plan])


@pytest.mark.parametrize(
    ("together", "who"), [(False, "client 3"), (True, "one of the clients 1, 2, 3")], ids=["in order", "together"]
)
def test_an_error_names_the_clients_that_may_have_raised_it(together: bool, who: str):
    """The way trains two of three clients, the second one first, and raises an error in the other."""

    class SecondFirst(LoopWay):
        is_collective = together

        def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
            ended(1)
            ended(2)
            raise LookupError("no such thing")

    engine = engine_of()
    engine._way = SecondFirst(engine.template, engine.layout, engine.plan, engine.local)
    with pytest.raises(LookupError, match="no such thing") as raised:
        engine.at(2, ragged_data()).fit(engine.initial(0)[None], ids(1, 2, 3))
    assert raised.value.__notes__ == [f"It was raised in round 3, while {who} was trained."]


def test_models_and_numbers_that_do_not_fit_are_refused():
    engine = engine_of(LOOP, partial(MCLR, SHAPE, 10))
    work, row, clients = engine.at(0, ragged_data()), engine.initial(0), torch.tensor([1, 3])
    wrong: dict[str, Callable[[], object]] = {
        r"shape \[650\]": lambda: work.fit(row, clients),
        r"shape \[2, 651\]": lambda: work.losses(torch.zeros(2, 651), clients),
        r"shape \[1, 1, 650\]": lambda: work.gradients(row[None], clients),
        "the model 1, but there are 1 models": lambda: work.fit(row[None], clients, torch.tensor([0, 1])),
        "the model 2, but": lambda: work.fit(row[None], clients, prox=0.1, centers=row[None], center=2),
        "there is no client -1": lambda: work.fit(row[None], torch.tensor([1, -1])),
    }
    for named, call in wrong.items():
        with pytest.raises(ValueError, match=named):
            call()
    models = torch.stack([row, -row])
    short = work.fit(models, clients, torch.tensor([1, 0], dtype=torch.int32))
    assert torch.equal(short.rows, work.fit(models, clients, torch.tensor([1, 0])).rows)


@pytest.mark.parametrize(("examples", "calls"), [(10**6, [4, 1]), (40, [1, 2, 2]), (1, [1] * 5)])
def test_gradients_of_a_stack_stay_within_memory_and_in_any_order_the_same(
    examples: int, calls: list[int], monkeypatch: pytest.MonkeyPatch
):
    engine = engine_of(STACK)
    work, model = engine.at(2, ragged_data()), engine.initial(0)
    clients, seen, whole = torch.tensor([3, 1, 5, 2, 4]), [], engine.way._steps.gradients
    expected = work.gradients(model, clients)
    monkeypatch.setattr(gradients, "STACK_EXAMPLES", examples)
    monkeypatch.setattr(engine.way._steps, "gradients", lambda p, *rest: seen.append(len(p[0])) or whole(p, *rest))
    rows = work.gradients(model, clients)
    assert seen == calls
    exactly(rows, expected)
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.equal(work.gradients(model, clients[order]), rows[order])
    monkeypatch.setattr(gradients, "LARGEST", 18)  # clients 3 and 5 have more, and are computed alone
    seen.clear()
    exactly(work.gradients(model, clients), expected)
    assert sum(seen) == 3
    seen.clear()
    monkeypatch.setattr(type(engine), "rows_that_fit", 2)
    work.gradients(model, clients)
    assert max(seen) <= 2


def test_examples_under_models_of_their_own_are_scored_as_by_each_model_alone(monkeypatch: pytest.MonkeyPatch):
    engine, data = engine_of(), ragged_data()
    models = torch.stack([engine.initial(number) for number in range(5)])
    which = torch.tensor([0] * 7 + [1] * 2 + [3] + [4] * 30)
    index = torch.randperm(len(data.examples), generator=torch.Generator().manual_seed(0))[: len(which)]
    alone = [engine.outcomes(models[k], index[which == k], data) for k in (0, 1, 3, 4)]
    for batch, passed in ((4096, 4096), (4096, 20), (8, 20)):  # one batch, in passes; batches of one and more models
        monkeypatch.setattr(scorer, "EVALUATION_BATCH", batch)
        monkeypatch.setattr(scorer, "PASS_ON_CPU", passed)
        found = engine.outcomes_of_each(models, which, index, data)
        exactly(found.losses, torch.cat([one.losses for one in alone]))
        assert torch.equal(found.values, torch.cat([one.values for one in alone], dim=1))
        assert torch.equal(found.weights, torch.ones_like(found.values))
    none = engine.outcomes_of_each(models, which[:0], index[:0], data)
    assert (none.losses.shape, none.values.shape, none.weights.shape) == ((0,), (1, 0), (1, 0))


def test_what_a_client_sends_holds_no_other_memory_and_draws_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    (first,) = engine_of().at(0, ragged_data()).map(lambda inputs, labels: inputs[0, 0].T[1] + torch.rand(8), ids(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.untyped_storage().nbytes() == first.nbytes
    assert first.is_contiguous()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda inputs, labels: 3.0, "a float"),
        (lambda inputs, labels: (inputs, 2), "a tuple of Tensor, int"),
        (lambda inputs, labels: {1: inputs}, "a dict of Tensor"),
    ],
)
def test_anything_but_tensors_is_refused_with_the_client(answer: Callable, named: str):
    with pytest.raises(InputError, match=f"client 3: .*{named}"):
        engine_of().at(0, ragged_data()).map(answer, ids(0, 3, 2))


def test_error_of_the_function_names_the_client():
    def fails(inputs: Tensor, labels: Tensor) -> Tensor:
        return 1 // (len(labels) - 17) * inputs

    with pytest.raises(ZeroDivisionError) as caught:
        engine_of().at(4, ragged_data()).map(fails, ids(1, 2, 3))
    assert caught.value.__notes__ == ["It was raised in round 5, by the function of work.map on client 2."]


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # constructor, and shape of an input
    **{
        name: (partial(getattr(nets, name), [1, 28, 28], 10), (1, 28, 28))
        for name in ("FEMNISTCNN", "FashionCNN", "LeNet", "StoCFLCNN", "SattlerCNN")
    },
    **{
        f"{name} of {what}": (partial(getattr(nets, name), *options), shape)
        for name in ("Sent140GRU", "Sent140LSTM", "FedGroupLSTM")
        for what, shape, options in (("vectors", (5, 4), ([5, 4], 2)), ("tokens", (5,), ([5], 2, 7, 4)))
    },
}


def data_for(shape: tuple[int, ...]) -> FederatedData:
    draws, tokens, classes = rng(), len(shape) == 1, 10 if len(shape) == 3 else 2
    inputs = torch.randint(0, 7, (5, *shape), generator=draws) if tokens else torch.rand(5, *shape, generator=draws)
    labels = torch.randint(0, classes, (5,), generator=draws)
    return clients_of(Examples(inputs, labels, classes, vocabulary=7 if tokens else 0), (0, 2, 3))


@pytest.mark.parametrize("name", NETS)
def test_every_net_of_the_package_gives_one_result(name: str):
    make, shape = NETS[name]
    data, rows = data_for(shape), []
    for plan in (TRAINER, LOOP, STACK):
        engine = build_engine(task(make), plan, 5, LocalTraining(1, 2, gradient_clip=0.5))
        start = engine.initial(0)[None]
        rows.append(engine.at(2, data).fit(start, torch.arange(3), prox=0.1, centers=start + 0.01).rows)
    exactly(rows[1], rows[0])
    exactly(rows[2], rows[0])
    assert (rows[0] - start).norm(dim=1).gt(1e-3).tolist() == [False, True, True]


def half_frozen() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12).requires_grad_(False), nn.LayerNorm(12), nn.Linear(12, 10))


def test_lanes_hold_what_is_trained_alone_and_all_nets_of_an_engine_share_what_is_frozen():
    _, engine = fitted(task(half_frozen), Plan("stack", lanes=4), local=LocalTraining(1, 10))
    stack = engine.way
    assert engine.layout.num_columns == 2 * 12 + (12 + 1) * 10
    assert sum(tensor.numel() for tensor in stack._lanes.tensors) == 4 * engine.layout.num_columns
    nets = [stack._steps.module, stack.module_for_gradients, engine.way.scorer(lambda first: None)._module]
    for name, parameter in nets[0].named_parameters():
        same = len({net.get_parameter(name).data_ptr() for net in nets}) == 1
        assert same == (not parameter.requires_grad), name


@pytest.mark.parametrize("plan", [Plan("trainer"), Plan("loop"), Plan("stack", lanes=4)])
def test_modules_that_are_handed_out_share_nothing_with_the_engine(plan: Plan):
    engine, data = build_engine(task(half_frozen), plan, 5, LocalTraining(1, 10)), ragged_data()
    model, clients = engine.initial(0), torch.tensor([1, 2])
    before = engine.at(0, data).gradients(model, clients)
    first, second = engine.module(model), engine.module(model)
    pointers = [{tensor.data_ptr() for tensor in one.state_dict().values()} for one in (first, second)]
    assert not pointers[0] & pointers[1]
    for parameter in first.half().parameters():
        parameter.data.zero_()
    assert torch.equal(engine.at(0, data).gradients(model, clients), before)
    assert torch.equal(engine.module(model).net[1].weight, second.net[1].weight)


DATA = clients_of(
    Examples(torch.randn(22, 5, generator=rng(), dtype=torch.float64), torch.randint(0, 3, (22,), generator=rng(1)), 3),
    sizes=(0, 7, 12, 3),
)


def trainer_of(
    task: Callable[..., LightningModule] = Classification,
    net: Callable[[], nn.Module] = partial(MCLR, [5], 3),
    **local: Any,
) -> Engine:
    plan = Plan("trainer", precision="64-true")
    return Engine(lambda: task(net(), SGD), plan, 11, LocalTraining(**{"epochs": 1, "batch_size": 4} | local))


def test_batch_statistics_are_part_of_the_row():
    engine = trainer_of(net=lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), batch_size=7)
    row = engine.at(0, DATA).fit(engine.initial(0)[None], ids(1)).rows[0]
    mean, variance = row[engine.layout.num_parameters :].view(2, 5)
    inputs = DATA.examples.inputs[DATA.train[1]]
    assert_close(mean, 0.1 * inputs.mean(0))
    assert_close(variance, 0.9 + 0.1 * inputs.var(0))


def test_a_net_made_outside_the_task_is_refused():
    engine = Engine(partial(Classification, MCLR([5], 3)), Plan(), seed=0)
    with pytest.raises(InputError, match="same net at every call"):
        engine.initial(1)
    with pytest.raises(InputError, match="same net at every call"):
        require_trainable(engine, DATA)


def test_hooks_schedulers_progress_and_attributes_of_a_module_start_again_in_each_fit():
    calls: list[tuple[int, int, int]] = []

    class Hooked(Classification):
        count = 0

        def on_train_epoch_end(self) -> None:
            self.count += 1
            calls.append((self.current_epoch, self.global_step, self.count))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)]

    engine = trainer_of(task=lambda net, _: Hooked(net), epochs=3, batch_size="full")
    start, work = engine.initial(0), engine.at(0, DATA)
    row = work.fit(start[None], ids(3, 1)).rows[1]
    assert calls == [(0, 1, 1), (1, 2, 2), (2, 3, 3)] * 2
    assert_close(row, start - work.gradients(start, ids(1))[0])  # from epoch 1 on, the rate is 0


class TwoOptimizers(Classification):
    """Task that updates weights and biases by separate optimizers, after a common backward pass."""

    def __init__(self, *options: object):
        super().__init__(*options)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD([p for p in self.parameters() if p.dim() == dim], lr=0.1) for dim in (1, 2)]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(self.losses(batch).mean())
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("prox", [0.0, 0.8])
def test_several_optimizers_take_the_steps_of_one(prox: float):
    rows = []
    for kind in (Classification, TwoOptimizers):
        engine = trainer_of(task=kind)
        start = engine.initial(0)[None]
        centers, budget = torch.zeros_like(start), Budget(5, "steps")  # client 2 has 3 mini-batches per epoch
        rows.append(engine.at(4, DATA).fit(start, ids(2), budget=budget, prox=prox, centers=centers).rows)
    exactly(*rows)
