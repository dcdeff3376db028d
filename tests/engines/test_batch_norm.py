"""Tests BatchNorm in a stack: every client has separate statistics, as with a separate Trainer."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from ragged import fitted, ragged_data, reasons_against, rows_of, task
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.testing import assert_close

from lit_cfl.engines.check_module import require_no_single_batch
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget

LOCAL = LocalTraining(2, 4)
# batches have 2, 3 and 4 examples: with one example, a channel of one pixel has no variance
SIZES = (0, 3, 18, 22, 7, 10)


class Residual(nn.Module):
    """Net with a residual block (He et al., 2016) between a convolution and a head."""

    def __init__(self, **options: bool | float) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, **options)
        self.conv2, self.bn2 = nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6, **options)
        self.conv3, self.bn3 = nn.Conv2d(6, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6, **options)
        self.short, self.bn4 = nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6, **options)
        self.fc1, self.bn5, self.fc2 = nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.Linear(5, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(inputs)))
        x = relu(self.bn3(self.conv3(relu(self.bn2(self.conv2(x))))) + self.bn4(self.short(x)))
        return self.fc2(relu(self.bn5(self.fc1(x.mean((2, 3))))))


@pytest.mark.nightly
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("options", [{}, {"affine": False, "momentum": 0.3}, {"track_running_stats": False}])
def test_batch_norm_in_a_stack_gives_the_trainers_result(options: dict[str, float], lanes: int):
    data, make = ragged_data(SIZES), task(partial(Residual, **options), partial(torch.optim.Adam, lr=0.01))
    assert reasons_against(make, data) == []
    rows, losses, gradients = [], [], []
    for plan in (Plan("trainer", precision="64-true"), Plan("stack", lanes=lanes, precision="64-true")):
        found, engine = fitted(make, plan, local=LOCAL, data=data, prox=0.1)
        rows.append(rows_of(found))
        losses.append(found.losses)
        gradients.append(engine.at(0, data).gradients(engine.initial(0), torch.arange(1, 6)))
    assert_close(rows[1], rows[0], rtol=0, atol=1e-10)
    assert_close(losses[1], losses[0], rtol=1e-10, atol=0, equal_nan=True)
    assert_close(gradients[1], gradients[0], rtol=0, atol=1e-12)
    statistics = rows[0][:, engine.layout.num_parameters :]
    assert bool((statistics[1] - statistics[2]).norm() > 1e-3) == ("track_running_stats" not in options)


class PartlyFrozen(nn.Module):
    """Net whose BatchNorm and dropout stay in evaluation mode, as in a frozen pretrained part."""

    def __init__(self, dropout: bool = True) -> None:
        super().__init__()
        self.fc1, self.bn1, self.fc2 = nn.Linear(64, 7), nn.BatchNorm1d(7).eval(), nn.Linear(7, 10)
        self.bn1.running_mean.fill_(0.3)
        self.bn1.running_var.fill_(2.0)
        self.drop = nn.Dropout(0.5).eval() if dropout else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc2(self.drop(self.bn1(self.fc1(inputs.flatten(1)))))


@pytest.mark.parametrize("lanes", [1, 4])
def test_layers_that_a_module_puts_into_evaluation_mode_stay_in_it(lanes: int):
    # the third client has two batches and one example, which needs the stored statistics
    data = ragged_data((8, 16, 9))
    assert reasons_against(task(PartlyFrozen), data) == []
    stack = Plan("stack", lanes=lanes, precision="64-true")
    found = {}
    for name, plan, dropout in (
        ("trainer", Plan("trainer", precision="64-true"), True),
        ("stack", stack, True),
        ("no dropout", stack, False),
    ):
        fit, engine = fitted(task(partial(PartlyFrozen, dropout)), plan, local=LOCAL, data=data)
        gradients = engine.at(0, data).gradients(engine.initial(0), torch.arange(3))
        found[name] = rows_of(fit), fit.losses, gradients
    for other in ("stack", "no dropout"):
        for mine, theirs in zip(found[other], found["trainer"], strict=True):
            assert_close(mine, theirs, rtol=0, atol=1e-12)
    statistics = found["stack"][0][:, engine.layout.num_parameters :]
    assert_close(statistics, torch.tensor([0.3] * 7 + [2.0] * 7, dtype=torch.float64).expand(3, -1), atol=1e-7, rtol=0)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1, self.fc2 = nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc2(self.bn1(self.fc1(inputs.flatten(1))))


ENGINES = {"trainer": Plan("trainer"), "plain loop": Plan("loop"), "4 lanes": Plan("stack", lanes=4)}


@pytest.mark.parametrize("plan", ENGINES)
@pytest.mark.parametrize(
    ("sizes", "budget"),
    [
        ((8, 9, 6), None),
        ((8, 1, 6), None),
        ((8, 10, 6), Budget(1, "epochs", 9)),
        ((8, 3, 6), Budget(1, "steps", 1)),
        ((8, 1, 6), Budget(1, "epochs", "full")),
    ],
)
def test_every_engine_refuses_a_batch_of_one_example_before_it_trains(
    plan: str, sizes: tuple[int, ...], budget: Budget | None
):
    engine, data = build_engine(task(Normalised), ENGINES[plan], 5, LOCAL), ragged_data(sizes)
    engine._fit_part = None  # must not be called
    client = 0 if budget is not None and budget.batch_size == 1 else 1
    size = budget.batch_size if budget is not None else 4
    which = "its only example" if sizes[client] == 1 else f"one of its {sizes[client]} examples"
    message = rf"client {client} .* batch size {size}, {which} is alone .* or take GroupNorm"
    with pytest.raises(InputError, match=message):
        engine.at(0, data).fit(engine.initial(0)[None], torch.arange(3), budget=budget)


@pytest.mark.parametrize("plan", ENGINES)
def test_single_examples_are_refused_in_gradients_and_by_the_check_before_a_run(plan: str):
    engine, data = build_engine(task(Normalised), ENGINES[plan], 5, LOCAL), ragged_data((8, 9, 16, 1))
    with pytest.raises(InputError, match=r"client 3 .* its only example is alone"):
        engine.at(0, data).gradients(engine.initial(0), torch.arange(4))
    with pytest.raises(InputError, match=r"client 1 .* batch size 4, one of its 9 examples is alone"):
        require_trainable(engine, data)


@pytest.mark.parametrize(
    ("size", "batch_size", "remedy"),
    [
        (31, 10, "; set local.last_batch to join, or take GroupNorm"),
        (31, 1, "; set local.last_batch to join and local.batch_size to 2 or more, or take GroupNorm"),
        (1, 10, "leave out clients with a single example (--data.partition Natural --data.partition.min_examples 10 "),
    ],
)
def test_the_message_about_a_single_example_names_what_helps(size: int, batch_size: int, remedy: str):
    counts = torch.tensor([size, 40])
    with pytest.raises(InputError, match=re.escape(remedy)):
        require_no_single_batch(torch.arange(2), counts, counts, batch_size, "keep")


@pytest.mark.parametrize("plan", ["plain loop", "4 lanes"])
def test_single_examples_train_where_a_channel_has_several_places_or_the_steps_end_before(plan: str):
    places = task(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10)))
    for make, budget in ((places, None), (task(Normalised), Budget(2, "steps"))):
        rows = [
            rows_of(
                fitted(make, replace(one, precision="64-true"), local=LOCAL, data=ragged_data((9, 13)), budget=budget)[
                    0
                ]
            )
            for one in (ENGINES["trainer"], ENGINES[plan])
        ]
        assert_close(rows[1], rows[0], rtol=0, atol=1e-10)
