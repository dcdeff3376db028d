"""MLPs with the first layer in dual form: the trainer's numbers, and the plain loop where it does not pay."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from lightning import LightningModule
from ragged import SGD, SHAPE, fitted, in_groups, ragged_data, require_same_bits_in_any_company, rows_of, task
from torch.testing import assert_close

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines import dual
from lit_cfl.engines.client_fit import ClientFit
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.loop import PlainLoop
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.errors import DivergedError, InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP
from lit_cfl.tasks import Classification

DUAL = Plan("stacked", products="own", dual=True)
FULL, SMALL = LocalTraining(4, "full"), LocalTraining(4, 8)


def penalised(layers: str) -> Callable[[], LightningModule]:
    return lambda: Classification(MLP(33, SHAPE, 10), SGD, kernel_l2=0.05, kernel_l2_layers=layers)


@pytest.fixture
def plainly_trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of steps of the clients that the plain loop trains."""
    found: list[int] = []
    train = PlainLoop._train

    def noted(loop: PlainLoop, fit: ClientFit, *others: Any) -> float:
        found.append(fit.num_steps)
        return train(loop, fit, *others)

    monkeypatch.setattr(PlainLoop, "_train", noted)
    return found


@pytest.mark.parametrize("local", [FULL, SMALL], ids=["full batches", "mini-batches"])
@pytest.mark.parametrize(("precision", "tolerance"), [("64-true", 1e-13), ("32-true", 1e-6)])
@pytest.mark.parametrize(
    ("make", "prox"),
    [
        (task(lambda: MLP(33, SHAPE, 10)), 0.0),
        (task(lambda: MLP(33, SHAPE, 10)), 0.3),
        (task(lambda: MLP(33, SHAPE, 10), in_groups), 0.0),
        (task(lambda: MLP(33, SHAPE, 10), in_groups), 0.3),
        (penalised("fc2"), 0.3),
    ],
    ids=["plain", "centre", "decay, groups", "decay, groups, centre", "penalty of the other layer"],
)
def test_models_and_losses_are_the_trainers(
    make: Callable[[], LightningModule],
    prox: float,
    precision: Precision,
    tolerance: float,
    local: LocalTraining,
    plainly_trained: list[int],
):
    plan = replace(DUAL, precision=precision)
    data = ragged_data((0, 3, 17, 12, 9, 20))
    found, engine = fitted(make, plan, local=local, prox=prox, data=data)
    rows = rows_of(found)
    assert engine.plan.dual
    assert not plainly_trained
    expected, _ = fitted(make, Plan("trainer", precision=precision), local=local, prox=prox, data=data)
    assert_close(rows, rows_of(expected), rtol=0, atol=tolerance)
    assert_close(found.losses, expected.losses, rtol=0, atol=10 * tolerance, equal_nan=True)
    assert not torch.equal(rows[1:], rows[:1].expand(5, -1))  # they have trained


def test_there_may_be_more_labels_than_examples_and_inputs(plainly_trained: list[int]):
    """Of a block of 128 units: the gradients of its weights in the next layer have more columns than its products."""
    generator = torch.Generator().manual_seed(1)
    examples = Examples(torch.rand(9, 30, generator=generator), torch.arange(9) * 9, 90)
    train, none = ClientIndex.from_sizes(torch.arange(9), torch.tensor([4, 5])), ClientIndex.empty(2)
    data = FederatedData(examples, train, none, none, torch.zeros(2, dtype=torch.int64))
    make, local = task(lambda: MLP(300, [30], 90)), LocalTraining(9, "full")
    found, expected = (rows_of(fitted(make, plan, local=local, data=data)[0]) for plan in (DUAL, Plan("trainer")))
    assert not plainly_trained
    assert_close(found, expected, rtol=0, atol=1e-6)


def test_weights_are_pulled_towards_their_own_centre():
    make, clients = task(lambda: MLP(33, SHAPE, 10), in_groups), torch.arange(6)
    models = torch.randn(3, 64 * 33 + 33 + 330 + 10, generator=torch.Generator().manual_seed(3)).double() / 8
    found = []
    for plan in (DUAL, Plan("trainer")):
        work = build_engine(make, replace(plan, precision="64-true"), 5, FULL).at(2, ragged_data())
        found.append(work.fit(models, clients, clients % 2, prox=0.3, centers=models, center=clients % 3).rows)
    assert_close(*found, rtol=0, atol=1e-13)


WIDE = task(lambda: MLP(300, SHAPE, 10), in_groups)  # three blocks of units, the last one not full
CLIENTS = ragged_data((70, 41, 96))  # of two panels of columns, and of one; mini-batches take one each


@pytest.fixture
def halves_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets clients of few examples take products of bfloat16, too."""
    monkeypatch.setattr(dual, "_HALVES_PAY", 1)


@pytest.mark.usefixtures("halves_of_few")
def test_shorter_factors_keep_sixteen_bits():
    """With AMX rows are two or three times as far from the exact ones as in float32; without it all is float32."""
    expected, _ = fitted(WIDE, Plan("trainer", precision="64-true"), local=FULL, prox=0.3, data=CLIENTS)

    def off(precision: Precision) -> float:
        rows = rows_of(fitted(WIDE, replace(DUAL, precision=precision), local=FULL, prox=0.3, data=CLIENTS)[0])
        return float((rows - rows_of(expected)).abs().max())

    if dual.has_halves():
        assert 1.5 * off("32-true") < off("tf32") < 5e-7  # bfloat16 alone has 1e-3
    else:
        assert off("tf32") == off("32-true") < 1e-7


@pytest.mark.usefixtures("halves_of_few")
@pytest.mark.parametrize("local", [FULL, SMALL], ids=["full batches", "mini-batches"])
@pytest.mark.parametrize("precision", ["32-true", "tf32"])
def test_threads_share_the_units_and_change_no_bit(precision: Precision, local: LocalTraining):
    plan, found = replace(DUAL, precision=precision), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(rows_of(fitted(WIDE, plan, local=local, prox=0.3, data=CLIENTS)[0]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_clients_for_whom_it_does_not_pay_train_in_the_plain_loop(plainly_trained: list[int]):
    """Those who pass once over their 17 or 20 examples; those of 3, 36 and 9 examples pass three times."""
    make, budget = task(lambda: MLP(33, SHAPE, 10)), Budget(torch.tensor([3, 3, 1, 3, 3, 1]), "epochs", 20)
    found, plain = (rows_of(fitted(make, plan, budget=budget)[0]) for plan in (DUAL, Plan("stacked", products="own")))
    assert plainly_trained == [1, 1, 3, 1, 6, 3, 1]  # two; then all, in the plain loop's own fit
    assert torch.equal(found[[2, 5]], plain[[2, 5]])
    assert_close(found, plain, rtol=0, atol=1e-6)


def test_bits_do_not_depend_on_company_and_budgets_are_kept():
    make = task(lambda: MLP(33, SHAPE, 10))
    require_same_bits_in_any_company(make, DUAL, FULL)
    require_same_bits_in_any_company(make, DUAL, SMALL)
    budget = Budget(torch.tensor([0, 1, 4, 2, 0, 3]), "steps", "full")
    found, expected = (rows_of(fitted(make, plan, budget=budget)[0]) for plan in (DUAL, Plan("trainer")))
    assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [penalised("fc1"), task(lambda: MLP(33, SHAPE, 10), partial(torch.optim.SGD, lr=0.1, momentum=0.9))],
    ids=["penalty of the first layer", "momentum"],
)
def test_other_modules_are_refused(make: Callable[[], LightningModule]):
    with pytest.raises(InputError, match=r"plan\.dual trains Classification with MLP by SGD"):
        build_engine(make, DUAL, 0, FULL)


def test_other_plans_are_refused():
    with pytest.raises(InputError, match=r"plan\.dual is true with .* 2 lanes.*; it needs no compile, 1 lane"):
        replace(DUAL, lanes=2)
    with pytest.raises(InputError, match=r"plan\.fused and plan\.dual are true; .*leave one out"):
        replace(DUAL, fused=True)


def test_too_little_memory_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dual, "_function", lambda kind: lambda *arguments: False)
    with (
        pytest.warns(Notice, match="out of memory"),
        pytest.raises(
            InputError, match=r"too little memory for one client \(can't allocate memory for \d+ examples in"
        ),
    ):
        fitted(task(lambda: MLP(33, SHAPE, 10)), DUAL)


def test_divergence_stops_the_run_or_leaves_the_client_out():
    make = task(lambda: MLP(33, SHAPE, 10), partial(torch.optim.SGD, lr=1e30))
    with pytest.raises(DivergedError):
        rows_of(fitted(make, DUAL, local=FULL)[0])
    fit, engine = fitted(make, DUAL, local=replace(FULL, on_divergence="skip"))
    assert torch.equal(rows_of(fit)[1], engine.initial(1))
    assert not fit.trained.any()
