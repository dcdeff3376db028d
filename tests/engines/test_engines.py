"""Tests that every engine, plan and order of clients computes the same results."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from ragged import LOCAL, PLANS, SGD, SHAPE, SIZES, fitted, ragged_data, rows_of, task
from torch import Tensor, nn
from torch.testing import assert_close

import lit_cfl.algorithms
from lit_cfl import nets
from lit_cfl.algorithms import CFL, FLHC, IFCA, AdaCFL, Algorithm, FedGroup, FeSEM, FlexCFL, LayerCFL
from lit_cfl.clustering import random_projection
from lit_cfl.config import catalogue
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines import scorer
from lit_cfl.engines.cohort import CohortFit, Ended
from lit_cfl.engines.factory import build_engine, warn_of_slowness
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plain_loop import LoopWay
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.engines.scorer import Outcomes
from lit_cfl.engines.stacked import gradients
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.ways import get_way
from lit_cfl.engines.workload import measure_workload
from lit_cfl.errors import DivergedError, InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP, MNISTCNN
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.storage.checkpoint import state_to_dict
from lit_cfl.tasks import Classification
from lit_cfl.tasks.classification import Batch

NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: MCLR(SHAPE, 10),
    "mlp": lambda: MLP(12, SHAPE, 10),
    "mlp with dropout": lambda: nn.Sequential(MLP(12, SHAPE, 16), nn.Dropout(0.4), nn.Linear(16, 10)),
    "cnn with dropout": lambda: MNISTCNN(SHAPE, 10),
}
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "dampening": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "adam, decoupled": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "decay of weights alone": lambda parameters: torch.optim.AdamW(_groups(list(parameters)), lr=0.01),
}
STACKS = [name for name in PLANS if name != "trainer"]


def _groups(parameters: list[nn.Parameter]) -> list[dict[str, object]]:
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0, "lr": 0.02},
    ]


@cache  # one fit for all plans, since one Trainer per client takes longest
def of_trainer(
    net: str, optimizer: str = "sgd", precision: Precision = "64-true", **options: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rows, losses and the mask of trained clients as the engine `trainer` computes them."""
    found, _ = fitted(task(NETS[net], OPTIMIZERS[optimizer]), Plan("trainer", precision=precision), **options)
    return rows_of(found), found.losses, found.trained


def same_as_trainer(net: str, optimizer: str, plan: Plan, precision: str, tolerance: float, **options: object) -> None:
    rows, losses, trained = of_trainer(net, optimizer, precision, **options)
    found, _ = fitted(task(NETS[net], OPTIMIZERS[optimizer]), replace(plan, precision=precision), **options)
    assert_close(rows_of(found), rows, rtol=0, atol=tolerance)
    assert_close(found.losses, losses, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert found.trained.tolist() == trained.tolist() == [size > 0 for size in SIZES]


@pytest.mark.nightly
@pytest.mark.parametrize(("net", "plan"), list(product(NETS, STACKS)))
def test_every_plan_gives_the_trainers_result(net: str, plan: str):
    same_as_trainer(net, "sgd", PLANS[plan], "64-true", 1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize(("optimizer", "plan"), list(product(OPTIMIZERS, ["plain loop", "2 lanes"])))
def test_every_optimizer_gives_the_trainers_result(optimizer: str, plan: str):
    local = LocalTraining(3, 10, gradient_clip=0.5)
    same_as_trainer("mlp", optimizer, PLANS[plan], "64-true", 1e-12, prox=0.3, local=local)


@pytest.mark.parametrize("plan", STACKS)
@pytest.mark.parametrize(
    "budget",
    [Budget(7, "steps"), Budget(2, "epochs", "full"), Budget(4, "steps", 7), Budget(torch.tensor([1, 2, 0, 3, 1, 2]))],
    ids=["steps", "full batch", "another batch size", "a number each"],
)
def test_every_budget_gives_the_trainers_result(budget: Budget, plan: str):
    rows, _, trained = of_trainer("mlp", budget=budget)
    found, _ = fitted(task(NETS["mlp"]), replace(PLANS[plan], precision="64-true"), budget=budget)
    assert_close(rows_of(found), rows, rtol=0, atol=1e-12)
    assert found.trained.tolist() == trained.tolist()


@pytest.mark.parametrize(("optimizer", "tolerance"), [("sgd", 1e-6), ("adam", 1e-4)])
@pytest.mark.parametrize("net", ["linear", "mlp"])
def test_single_precision_stays_close(net: str, optimizer: str, tolerance: float):
    same_as_trainer(net, optimizer, PLANS["4 lanes"], "32-true", tolerance)


def test_convolutions_in_single_precision_stay_close_for_a_step_and_in_the_loss():
    same_as_trainer("cnn with dropout", "sgd", PLANS["4 lanes"], "32-true", 1e-6, budget=Budget(1, "steps"))
    _, losses, _ = of_trainer("cnn with dropout", precision="32-true")
    found, _ = fitted(task(NETS["cnn with dropout"]), PLANS["4 lanes"])
    rows_of(found)
    assert_close(found.losses, losses, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("net", "plan"), list(product(["linear", "mlp with dropout", "cnn with dropout"], STACKS)))
def test_order_and_company_of_clients_change_no_bit(net: str, plan: str):
    make = task(NETS[net])
    whole = rows_of(fitted(make, PLANS[plan])[0])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(rows_of(fitted(make, PLANS[plan], clients=order)[0]), whole[order])
    for client in (1, 3):
        alone, _ = fitted(make, PLANS[plan], clients=torch.tensor([client]))
        assert torch.equal(rows_of(alone)[0], whole[client])


@pytest.mark.parametrize("net", ["linear", "mlp with dropout"])
def test_chunks_change_no_bit(net: str):
    plan = Plan("stack", lanes=3)
    whole, _ = fitted(task(NETS[net]), plan)
    for size in (1, 2, 4):
        parts = [fitted(task(NETS[net]), plan, clients=part)[0] for part in torch.arange(len(SIZES)).split(size)]
        assert torch.equal(torch.cat([rows_of(part) for part in parts]), rows_of(whole))


@pytest.mark.parametrize("client", [1, 3])  # client 1 is the first with data
@pytest.mark.parametrize("plan", STACKS)
def test_client_that_diverges_does_not_touch_the_others(plan: str, client: int):
    local = LocalTraining(2, 10, on_divergence="skip")
    data = ragged_data()
    inputs = data.examples.inputs.float()
    inputs[data.train[client]] = float("inf")
    broken = replace(data, examples=replace(data.examples, inputs=inputs))
    whole = replace(data, examples=replace(data.examples, inputs=data.examples.inputs.float()))
    found, _ = fitted(task(NETS["mlp"]), PLANS[plan], local=local, data=broken)
    expected, _ = fitted(task(NETS["mlp"]), PLANS[plan], local=local, data=whole)
    others = torch.arange(len(SIZES)) != client
    assert torch.equal(rows_of(found)[others], rows_of(expected)[others])
    assert (bool(found.trained[client]), found.skipped) == (False, 2)  # client 0 has no data
    with pytest.raises(DivergedError, match=f"client {client} diverged in round 3"):
        rows_of(fitted(task(NETS["mlp"]), PLANS[plan], data=broken)[0])


def test_gradient_that_is_infinite_does_not_touch_the_others():
    data, clients = ragged_data(), torch.tensor([1, 2, 3, 4])
    inputs = data.examples.inputs.float()
    inputs[data.train[1]] = float("inf")
    if not (data.train[1] == 0).any():  # the pool's first example, too, if no broken client has it
        inputs[0] = float("inf")
    broken = replace(data, examples=replace(data.examples, inputs=inputs))
    engine = build_engine(task(NETS["mlp"]), PLANS["4 lanes"], 5, LocalTraining(1, 10))
    found = engine.at(2, broken).gradients(engine.initial(0), clients).isfinite().all(1).tolist()
    assert found == [bool(inputs[data.train[client]].isfinite().all()) for client in clients.tolist()]
    assert sum(found) >= 2


def test_mixed_precision_trains_close_to_single():
    mixed, _ = fitted(task(NETS["mlp"]), replace(PLANS["4 lanes"], precision="bf16-mixed"))
    single, _ = fitted(task(NETS["mlp"]), PLANS["4 lanes"])
    trainer, _ = fitted(task(NETS["mlp"]), Plan("trainer", precision="bf16-mixed"))
    assert_close(rows_of(mixed), rows_of(trainer), rtol=0, atol=2e-2)  # bfloat16 has a precision of eight bits
    assert 0 < (rows_of(mixed) - rows_of(single)).abs().max() < 2e-2


@pytest.mark.parametrize("plan", ["plain loop", "4 lanes"])
@pytest.mark.parametrize("net", ["linear", "mlp with dropout", "cnn with dropout"])
def test_gradients_of_a_stack_are_the_trainers(net: str, plan: str):
    clients, data = torch.tensor([3, 1, 0, 5, 2, 4]), ragged_data()
    rows = []
    for one in (Plan("trainer", precision="64-true"), replace(PLANS[plan], precision="64-true")):
        engine = build_engine(task(NETS[net]), one, 5, LocalTraining(1, 10))
        rows.append(engine.at(2, data).gradients(engine.initial(0), clients))
    assert_close(rows[1], rows[0], rtol=0, atol=1e-12)
    assert (rows[0].norm(dim=1) > 0).tolist() == [True, True, False, True, True, True]  # client 0 has no data


@pytest.mark.parametrize(("examples", "calls"), [(10**6, [4, 1]), (40, [1, 2, 2]), (1, [1] * 5)])
def test_gradients_of_a_stack_stay_within_memory_and_in_any_order_the_same(
    examples: int, calls: list[int], monkeypatch: pytest.MonkeyPatch
):
    engine = build_engine(task(NETS["mlp"]), PLANS["4 lanes"], 5, LocalTraining(1, 10))
    work, model = engine.at(2, ragged_data()), engine.initial(0)
    clients, seen, whole = torch.tensor([3, 1, 5, 2, 4]), [], engine.way._steps.gradients
    monkeypatch.setattr(gradients, "STACK_EXAMPLES", examples)
    monkeypatch.setattr(engine.way._steps, "gradients", lambda p, *rest: seen.append(len(p[0])) or whole(p, *rest))
    rows = work.gradients(model, clients)
    assert seen == calls
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.equal(work.gradients(model, clients[order]), rows[order])
    seen.clear()
    monkeypatch.setattr(type(engine), "rows_that_fit", 2)
    work.gradients(model, clients)
    assert max(seen) <= 2


def test_large_clients_take_their_gradients_alone(monkeypatch: pytest.MonkeyPatch):
    engine = build_engine(task(NETS["mlp"]), replace(PLANS["4 lanes"], precision="64-true"), 5, LocalTraining(1, 10))
    work, model, clients = engine.at(2, ragged_data()), engine.initial(0), torch.tensor([4, 3, 1, 5, 2])
    expected = work.gradients(model, clients)
    monkeypatch.setattr(gradients, "LARGEST", 18)  # clients 3 and 5 have more
    seen, whole = [], engine.way._steps.gradients
    monkeypatch.setattr(engine.way._steps, "gradients", lambda p, *rest: seen.append(len(p[0])) or whole(p, *rest))
    assert_close(work.gradients(model, clients), expected, rtol=0, atol=1e-12)
    assert seen == [3]


def test_gradients_that_run_out_of_memory_are_taken_in_half_the_lanes(monkeypatch: pytest.MonkeyPatch):
    engine = build_engine(task(NETS["mlp"]), replace(PLANS["4 lanes"], precision="64-true"), 5, LocalTraining(1, 10))
    work, model, clients = engine.at(2, ragged_data()), engine.initial(0), torch.tensor([4, 3, 1, 5, 2])
    expected, seen, whole = work.gradients(model, clients), [], stack_way.compute_stacked_gradients

    def short_of_memory(steps: object, layout: object, plan: Plan, model: Tensor, work: CohortFit) -> Tensor:
        seen.append(len(work))
        if len(work) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(steps, layout, plan, model, work)

    monkeypatch.setattr(stack_way, "compute_stacked_gradients", short_of_memory)
    with pytest.warns(Notice, match="2 clients trained together"):
        found = work.gradients(model, clients)
    assert (seen, engine.plan.lanes) == ([4, 2, 2, 1], 2)
    assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("plan", [Plan("trainer"), PLANS["4 lanes"]], ids=["trainer", "4 lanes"])
def test_gradients_of_no_clients_have_no_rows(plan: Plan):
    engine = build_engine(task(NETS["mlp"]), plan, 5, LocalTraining(1, 10))
    work, nobody = engine.at(2, ragged_data()), torch.empty(0, dtype=torch.int64)
    found = work.gradients(engine.initial(0), nobody)
    assert (found.shape, found.dtype) == ((0, engine.layout.num_columns), plan.dtype)
    sketch = random_projection(engine.layout.num_columns, 7, 0)
    assert work.gradients(engine.initial(0), nobody, sketch).shape == (0, 7)


def test_running_out_of_memory_halves_the_chunks_and_says_so_once():
    make = task(lambda: MLP(2000, SHAPE, 10))  # one model takes 0.57 MiB
    engine = build_engine(make, Plan("loop"), 5, LocalTraining(1, 10))
    sizes, whole = [], engine._fit_part

    def short_of_memory(request, part, *rest):
        sizes.append(part.stop - part.start)
        if sizes[-1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(request, part, *rest)

    engine._fit_part = short_of_memory
    data, models = ragged_data((3,) * 12), engine.initial(0)[None]
    with pytest.warns(Notice, match="out of memory: reduced to 3 MiB of local models at once") as said:
        rows = engine.at(0, data).fit(models, torch.arange(12)).rows
    assert sizes == [12, 5, *[1] * 12]  # 3 MiB hold five, 1 MiB holds one
    assert (len(said), engine.plan.rows_mib) == (1, 1)
    alone = build_engine(make, Plan("loop"), 5, LocalTraining(1, 10))
    assert torch.equal(rows, alone.at(0, data).fit(models, torch.arange(12)).rows)


def test_losses_of_several_models_are_those_of_each():
    engine = build_engine(task(NETS["mlp"]), PLANS["plain loop"], 5, LocalTraining(1, 10))
    work = engine.at(0, ragged_data())
    models = torch.stack([engine.initial(number) for number in range(3)])
    together = work.losses(models, torch.tensor([3, 0, 2]))
    alone = torch.cat([work.losses(model[None], torch.tensor([3, 0, 2])) for model in models], dim=1)
    assert torch.equal(together.nan_to_num(-1), alone.nan_to_num(-1))
    assert together.isnan().tolist() == [[False] * 3, [True] * 3, [False] * 3]


def test_evaluation_that_runs_out_of_memory_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    engine, data = build_engine(task(NETS["mlp"]), PLANS["plain loop"], 5, LocalTraining(1, 10)), ragged_data()

    def short_of_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(scorer, "outcomes_of", short_of_memory)
    for score in (engine.outcomes, lambda model, *given: engine.losses_of_all(model[None], *given)):
        with pytest.raises(InputError, match=r"too little memory to score 1,024 examples at once .* use --device cpu"):
            score(engine.initial(0), torch.arange(50), data)


def test_a_batch_is_scored_in_several_passes_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    engine, data = build_engine(task(NETS["mlp"]), PLANS["plain loop"], 5, LocalTraining(1, 10)), ragged_data()
    models, index = torch.stack([engine.initial(number) for number in range(3)]), torch.randperm(50)
    weights = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    weights, which = weights / weights.sum(1, keepdim=True), torch.arange(50) % 2

    def score_all() -> tuple[Tensor, Outcomes, Outcomes]:
        way = engine.way.scorer(lambda first: None)
        return (
            way.losses_of_all(models, index, data.examples),
            way.score_each(models, which.sort().values, index, data.examples),
            way.score_mixtures(models, weights, which, index, data.examples),
        )

    whole, passes, score = score_all(), list[int](), scorer.outcomes_of
    monkeypatch.setattr(
        scorer, "outcomes_of", lambda module, batch: passes.append(len(batch[1])) or score(module, batch)
    )
    monkeypatch.setattr(scorer, "PASS_ON_CPU", 20)
    losses, each, mixed = score_all()
    assert passes == [*[20, 20, 10] * 3, *[20, 5] * 2]
    assert_close(losses, whole[0], rtol=1e-6, atol=1e-6)
    for found, expected in ((each, whole[1]), (mixed, whole[2])):
        assert_close(found.losses, expected.losses, rtol=1e-6, atol=1e-6)
        assert torch.equal(found.values, expected.values)


def test_examples_under_models_of_their_own_are_scored_as_by_each_model_alone(monkeypatch: pytest.MonkeyPatch):
    engine, data = build_engine(task(NETS["mlp"]), PLANS["plain loop"], 5, LocalTraining(1, 10)), ragged_data()
    models = torch.stack([engine.initial(number) for number in range(5)])
    which = torch.tensor([0] * 7 + [1] * 2 + [3] + [4] * 30)
    index = torch.randperm(len(data.examples), generator=torch.Generator().manual_seed(0))[: len(which)]
    alone = [engine.outcomes(models[k], index[which == k], data) for k in (0, 1, 3, 4)]
    for batch in (4096, 8):  # all lists in one batch; batches of one model, and of several
        monkeypatch.setattr(scorer, "EVALUATION_BATCH", batch)
        found = engine.outcomes_of_each(models, which, index, data)
        assert_close(found.losses, torch.cat([one.losses for one in alone]), rtol=1e-6, atol=1e-6)
        assert torch.equal(found.values, torch.cat([one.values for one in alone], dim=1))
        assert torch.equal(found.weights, torch.ones_like(found.values))
    none = engine.outcomes_of_each(models, which[:0], index[:0], data)
    assert (none.losses.shape, none.values.shape, none.weights.shape) == ((0,), (1, 0), (1, 0))


class Picky(Classification):
    def losses(self, batch: Batch) -> Tensor:
        if len(batch[1]) == 7:  # the second batch of client 2
            raise ValueError("seven is a crowd")
        return super().losses(batch)


@pytest.mark.parametrize("plan", ["trainer", "plain loop"])
def test_mini_batches_of_a_client_differ_between_rounds_and_are_a_rounds_own(plan: str):
    engine = build_engine(task(lambda: MCLR(SHAPE, 10)), PLANS[plan], 5, LOCAL)
    start, client = engine.initial(0)[None], torch.tensor([3])
    first, second, again = (engine.at(number, ragged_data()).fit(start, client).rows for number in (0, 1, 1))
    assert not torch.equal(first, second)
    assert torch.equal(second, again)


@pytest.mark.parametrize("plan", ["trainer", "plain loop"])
def test_error_of_the_users_module_names_client_and_round(plan: str):
    with pytest.raises(InputError, match="client 2 cannot be trained in round 3: seven is a crowd"):
        rows_of(fitted(lambda: Picky(MLP(12, SHAPE, 10), SGD), PLANS[plan])[0])


class SecondFirst(LoopWay):
    """Trains two of three clients, the second one first, and raises an error in the other."""

    error: Exception

    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        ended(1)
        ended(2)
        raise self.error


@pytest.mark.parametrize(
    ("together", "who"), [(False, "client 3"), (True, "one of the clients 1, 2, 3")], ids=["in order", "together"]
)
def test_an_error_names_the_clients_that_may_have_raised_it(together: bool, who: str):
    way = type("Way", (SecondFirst,), {"is_collective": together, "error": LookupError("no such thing")})
    engine = build_engine(task(NETS["mlp"]), PLANS["plain loop"], 5, LOCAL)
    engine._way = way(engine.template, engine.layout, engine.plan, engine.local)
    work, models, clients = engine.at(2, ragged_data()), engine.initial(0)[None], torch.tensor([1, 2, 3])
    with pytest.raises(LookupError, match="no such thing") as raised:
        work.fit(models, clients)
    assert raised.value.__notes__ == [f"It was raised in round 3, while {who} was trained."]
    way.error = ValueError("seven is a crowd")
    with pytest.raises(InputError, match=f"^{who} cannot be trained in round 3: seven is a crowd"):
        work.fit(models, clients)


class Coupled(Classification):
    """Task whose loss of an example wrongly depends on the whole batch."""

    def losses(self, batch: Batch) -> Tensor:
        return super().losses(batch) * (1 + batch[0].mean())


class Noisy(Classification):
    def losses(self, batch: Batch) -> Tensor:
        return super().losses((batch[0] + torch.rand_like(batch[0]), batch[1]))


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1, self.fc2 = nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc2(self.bn1(self.fc1(inputs.flatten(1))))


class WithAverage(nn.Module):
    """Net that keeps a moving average of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.lerp_(inputs.mean().detach(), 0.1)
        return self.fc1(inputs.flatten(1))


class WithSpare(MLP):
    """Net with an unused layer."""

    def __init__(self) -> None:
        super().__init__(12, SHAPE, 10)
        self.spare = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: Classification(WithAverage(), SGD), "the buffer net.seen changes in training"),
        (lambda: Classification(WithSpare(), SGD), "the parameter net.spare.weight takes no part in the losses"),
        (
            lambda: Coupled(MLP(12, SHAPE, 10), SGD),
            "the loss of an example depends on the other examples in its mini-batch",
        ),
        (lambda: Noisy(MLP(12, SHAPE, 10), SGD), "it draws random numbers, other than by nn.Dropout"),
        (lambda: Classification(WithBatchNorm(), SGD), r"BatchNorm1d with momentum None, .* \(net.bn1\)"),
        (task(NETS["mlp"], partial(torch.optim.Adam, amsgrad=True)), "the optimizer's option amsgrad"),
        (task(NETS["mlp"], torch.optim.RMSprop), "optimizer RMSprop"),
    ],
)
def test_what_only_a_trainer_can_train_is_named(module: Callable, reason: str):
    load = measure_workload(module, 0, LocalTraining(1, 10), ragged_data(), rounds=1, cohort=1)
    assert load.task is not None
    assert len(load.task.trainer_reasons) == 1
    assert re.match(reason, load.task.trainer_reasons[0])
    for way in ("loop", "stack"):
        against = get_way(way).reason_against(load.task, "cuda:0", "32-true", load.local)
        assert against == load.task.trainer_reasons[0]
    with pytest.warns(Notice, match=f"trained by lightning.Trainer, which is slower, for this reason: {reason}"):
        warn_of_slowness("auto", Plan("trainer"), load)


@pytest.mark.parametrize("net", NETS)
def test_nets_of_ours_can_be_looped_and_stacked(net: str):
    load = measure_workload(task(NETS[net]), 0, LocalTraining(1, 10), ragged_data(), rounds=1, cohort=10)
    assert load.task is not None
    assert load.task.trainer_reasons == load.task.stack_reasons == []


MAKE = task(lambda: MCLR(SHAPE, 10))


def pulled(plan: str, centers: Tensor, center: Tensor) -> Tensor:
    """Trains clients from one model, each pulled to row `center` of `centers`; returns their rows `[clients, d]`."""
    data = ragged_data()
    engine = build_engine(MAKE, Plan(**vars(PLANS[plan]) | {"precision": "64-true"}), 5, LOCAL)
    work, clients = engine.at(1, data), torch.arange(data.num_clients)
    return rows_of(work.fit(engine.initial(0)[None], clients, prox=0.5, centers=centers, center=center))


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "trainer"])
def test_each_client_of_a_stack_has_its_own_centre(plan: str):
    centers = torch.randn(3, 650, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    center = torch.tensor([0, 2, 1, 0, 2, 1])
    expected = pulled("trainer", centers, center)
    assert_close(pulled(plan, centers, center), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(pulled(plan, centers, center.flip(0)), expected)


TRAINER = Plan("trainer", precision="64-true")


ALL = [getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")]


STACK = Plan("stack", precision="64-true", lanes=4)


SPLITS = {"eps1": 10.0, "eps2": 1e-6, "warmup_rounds": 1}  # splits in every round that allows it


SETTINGS: dict[type[Algorithm], Algorithm] = {
    CFL: CFL(**SPLITS),
    LayerCFL: LayerCFL(layers=["fc*"], **SPLITS),
    AdaCFL: AdaCFL(**SPLITS),
    FLHC: FLHC(1, num_clusters=2),
    IFCA: IFCA(2),
    FeSEM: FeSEM(2),
    FedGroup: FedGroup(2),
    FlexCFL: FlexCFL(2),
}


def images(side: int, sizes: tuple[int, ...]) -> FederatedData:
    rng, total = torch.Generator().manual_seed(0), sum(sizes)
    pixels = torch.randint(0, 255, (total, 1, side, side), generator=rng, dtype=torch.uint8)
    none, train = ClientIndex.empty(len(sizes)), ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    examples = Examples(pixels, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    return FederatedData(examples, train, none, none, torch.zeros(len(sizes), dtype=torch.int64))


@pytest.mark.parametrize("name", ["FEMNISTCNN", "FashionCNN", "LeNet", "StoCFLCNN", "SattlerCNN"])
def test_every_convolutional_net_gives_one_result(name: str):
    data, make = images(28, (3, 0, 5)), task(partial(getattr(nets, name), [1, 28, 28], 10), SGD)
    rows = []
    for plan in (TRAINER, STACK):
        engine = build_engine(make, plan, 5, LocalTraining(1, 2))
        rows.append(engine.at(2, data).fit(engine.initial(0)[None], torch.arange(3)).rows)
    assert_close(rows[1], rows[0], rtol=0, atol=1e-12)
    assert (rows[0][0] - rows[0][1]).norm() > 1e-3  # client 0 has trained, client 1 has no data


@pytest.mark.parametrize("kind", ALL, ids=[kind.__name__ for kind in ALL])
def test_every_algorithm_gives_one_result(kind: type[Algorithm]):
    data, algorithm, ends = ragged_data((8, 3, 17, 36, 9, 20)), SETTINGS.get(kind) or kind(), []
    data = replace(data, test=data.train)
    for plan in (TRAINER, STACK):
        engine = build_engine(task(lambda: MLP(12, SHAPE, 10)), plan, 5, LocalTraining(2, 10))
        *_, last = rounds(algorithm, engine, data, Cohorts(4), seed=5, num_rounds=3)
        ends.append(state_to_dict(last.state))
    assert ends[0]
    require_alike(ends[1], ends[0])


def require_alike(found: Any, expected: Any, name: str = "state") -> None:
    """Checks that nested states agree: tensors and floats up to 1e-11 (rounding), other values exactly."""
    assert type(found) is type(expected), name
    if isinstance(expected, dict):
        assert list(found) == list(expected), name
        for key, value in expected.items():
            require_alike(found[key], value, f"{name}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), name
        for number, (mine, value) in enumerate(zip(found, expected, strict=True)):
            require_alike(mine, value, f"{name}.{number}")
    elif isinstance(expected, float | torch.Tensor):
        assert_close(found, expected, rtol=0, atol=1e-11, equal_nan=True, msg=lambda why: f"{name}: {why}")
    else:
        assert found == expected, name


@pytest.mark.parametrize("plan", [Plan("chain"), Plan("loop")], ids=["chain", "loop"])
def test_models_and_numbers_that_do_not_fit_are_refused(plan: Plan):
    engine = build_engine(task(NETS["linear"]), plan, 5, LOCAL)
    work, row, clients = engine.at(0, ragged_data()), engine.initial(0), torch.tensor([1, 3])
    wrong: dict[str, Callable[[], object]] = {
        r"models have the shape \[650\]; give rows \[K, 650\]": lambda: work.fit(row, clients),
        r"shape \[1, 649\]": lambda: work.fit(row[None, :-1], clients),
        r"shape \[2, 651\]": lambda: work.losses(torch.zeros(2, 651), clients),
        r"shape \[1, 1, 650\]": lambda: work.gradients(row[None], clients),
        "the model 1, but there are 1 models": lambda: work.fit(row[None], clients, torch.tensor([0, 1])),
        "the model 2, but": lambda: work.fit(row[None], clients, prox=0.1, centers=row[None], center=2),
        "3 numbers are given for 2 clients": lambda: work.fit(row[None], clients, torch.zeros(3, dtype=torch.int64)),
        "there is no client -1": lambda: work.fit(row[None], torch.tensor([1, -1])),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()
    short = work.fit(torch.stack([row, -row]), clients, torch.tensor([1, 0], dtype=torch.int32))
    assert torch.equal(short.rows, work.fit(torch.stack([row, -row]), clients, torch.tensor([1, 0])).rows)
    assert_close(work.losses(row[None].double(), clients), work.losses(row[None], clients), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"length is 1\.5; give a whole number of epochs"):
        Budget(1.5)  # type: ignore[arg-type]  # the mistake
