"""Tests errors and notes on users' modules beside the table of `test_modules.py`, and what fits keep."""

import warnings
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from ragged import PLANS, SGD, Linear, fitted, ragged_data, task
from torch import Tensor, nn
from torch.nn.functional import dropout

from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.fingerprint import digest_of_constants
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.errors import DivergedError, InputError, Notice
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification


class Own(Classification):
    """Linear module, of which each subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__(Linear(), SGD)


def engine_of(net: Callable[[], nn.Module], plan: Plan = Plan("loop"), seed: int = 0) -> Engine:
    return build_engine(task(net), plan, seed, LocalTraining(2, 10))


# Initial models, and what is in no row


class SeedsItself(Linear):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()


@pytest.mark.parametrize(("net", "notes"), [(SeedsItself, 1), (Linear, 0)])
def test_equal_initial_models_are_noted_once(net: Callable[[], nn.Module], notes: int):
    engine = engine_of(net)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        models = [engine.initial(number) for number in (0, 1, 2, 0)]
    assert ["initial models 0 and 1" in str(line.message) for line in said] == [True] * notes
    assert torch.equal(models[0], models[3])
    assert [torch.equal(one, other) for one, other in pairwise(models)] == [notes == 1] * 3


def test_what_is_in_no_row_is_in_the_digest_of_constants():
    def digest(weight: float = 0.0, mean: Tensor = torch.zeros(2), **changes: object) -> str:
        net = Linear()
        for parameter in net.parameters():
            nn.init.constant_(parameter, weight)
        net.register_buffer("mean", mean)
        for name, value in (zeros | changes).items():
            setattr(net, name, value)
        return digest_of_constants(net, ParameterLayout.of(net))

    def frozen(*values: float, **options: Any) -> nn.Parameter:
        return nn.Parameter(torch.tensor(values, **options), requires_grad=False)

    zeros: dict[str, object] = {
        "frozen": frozen(0.0, 0.0),
        "count": nn.Buffer(torch.tensor([0, 0])),
        "hidden": nn.Buffer(torch.zeros(2), persistent=False),
        "mask": nn.Buffer(torch.tensor([0.0, -inf])),
        "table": torch.zeros(2),
        "kept": {"a": [torch.zeros(2)]},
        "numbers": np.zeros(2),
        "brief": frozen(0.0, 0.0, dtype=torch.bfloat16),
    }
    changes: dict[str, object] = {
        "frozen": frozen(0.0, 1.0),
        "count": nn.Buffer(torch.tensor([0, 1])),
        "hidden": nn.Buffer(torch.tensor([0.0, 1.0]), persistent=False),
        "mask": nn.Buffer(torch.tensor([-inf, 0.0])),
        "table": torch.tensor([0.0, 1.0]),
        "kept": {"a": [torch.tensor([0.0, 1.0])]},
        "numbers": np.array([0.0, 1.0]),
        "brief": frozen(0.0, 1.0, dtype=torch.bfloat16),
    }
    digests = {digest(**{name: value}) for name, value in changes.items()}
    assert len(digests | {digest()}) == len(changes) + 1
    of_names = {digest(numbers=np.array([f"{n} of 2" for n in (1, 2)], dtype=object)) for _ in range(2)}
    assert len(of_names | digests) == len(changes) + 1  # by their values, not by where they lie
    # values in a row are recorded with the model, not in this digest
    assert digest(1.0, torch.tensor([5.0, 6.0])) == digest()


# Evaluation


class MonteCarlo(Linear):
    """Net that applies dropout to its inputs in evaluation, too."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc1(dropout(inputs.flatten(1), 0.5, True))


def test_what_a_module_draws_in_evaluation_follows_from_the_seed_alone():
    data, index, found = ragged_data(), torch.arange(80), []
    models = torch.stack([torch.linspace(-1, 1, 650), torch.linspace(1, -1, 650)])
    for seed, before in ((5, 0), (5, 7), (6, 0)):
        engine = engine_of(MonteCarlo, seed=seed)
        torch.rand(before)
        state = torch.get_rng_state()
        found.append((engine.losses_of_all(models, index, data), engine.outcomes(models[0], index, data).losses))
        assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, found[0], found[1]))
    assert torch.equal(found[0][0][0], found[0][1])  # all models are evaluated with the same draws
    assert not torch.equal(found[0][0], found[2][0])


class Merging(Linear):
    """Keeps its doubled weights when it leaves training, as adapters are merged."""

    merged: Tensor | None = None

    def train(self, mode: bool = True) -> "Merging":
        self.merged = None if mode else 2 * self.fc1.weight.detach()
        return super().train(mode)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = 2 * self.fc1.weight if self.merged is None else self.merged
        return nn.functional.linear(inputs.flatten(1), weight, self.fc1.bias)


def test_each_model_is_scored_with_its_own_merged_weights():
    engine, data, index = engine_of(Merging), ragged_data(), torch.arange(6)
    models = torch.stack([engine.initial(0), 2 * engine.initial(1) + 0.1])
    found = engine.outcomes_of_each(models, index // 4, index, data).losses
    one, other = (engine.module(model).losses(data.examples.batch(index)) for model in models)
    torch.testing.assert_close(found, torch.cat([one[:4], other[4:]]).detach().double(), rtol=1e-6, atol=1e-6)
    assert torch.equal(engine.losses_of_all(models, index, data)[0, :4], found[:4])


class Normed(Linear):
    """Net that divides each input by its norm: 0/0 for a black image."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs / inputs.flatten(1).norm(dim=1).view(-1, 1, 1, 1))


@pytest.mark.parametrize("plan", ["trainer", "4 lanes"])
def test_loss_that_is_no_number_before_training_is_not_blamed_on_the_learning_rate(plan: str):
    data = ragged_data()
    example = int(data.train[2][5])  # one example of client 2's 17
    data.examples.inputs[example] = 0
    with pytest.raises(DivergedError, match=f"client 2 .* round 3 .*example {example} is nan .1 of its 17") as caught:
        fitted(task(Normed), PLANS[plan], data=data)
    assert "lower" not in str(caught.value)


# Data that a net does not take, and what is noted


def test_a_net_of_images_is_told_what_a_table_lacks():
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2))

    table = ArrayData(np.arange(80.0).reshape(20, 4) / 80, np.arange(20) % 2, client=np.arange(20) // 10)
    with pytest.raises(InputError, match=r"Conv1d .*inputs.unsqueeze\(1\)"):
        require_trainable(engine_of(net), table.federated(0))


@pytest.mark.parametrize(
    ("last", "notes"),
    [([nn.Softmax(-1)], 1), ([], 0), ([nn.LogSoftmax(-1)], 0)],
)
def test_probabilities_instead_of_logits_are_noted(last: list[nn.Module], notes: int):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        require_trainable(engine_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *last)), ragged_data())
    assert ["softmax" in str(line.message) for line in said if line.category is Notice] == [True] * notes


def test_restart_of_a_scheduler_in_every_fit_is_noted():
    class Scheduled(Own):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}

    with pytest.warns(Notice, match="StepLR .* 3 epochs"):
        require_trainable(build_engine(Scheduled, Plan(), 0, LocalTraining(3, 10)), ragged_data())


# Fits, and gradients, for which a module is asked outside of a fit


class AsksItsTrainer(Own):
    def losses(self, batch: Batch) -> Tensor:
        return super().losses(batch) / (1 + self.trainer.current_epoch)


class Detached(Own):
    """Module whose losses have no gradient; its step has one."""

    def losses(self, batch: Batch) -> Tensor:
        return super().losses(batch).detach()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return super().losses(batch).mean()


class NeedsItsHook(Own):
    def on_train_start(self) -> None:
        self.scale = 2.0

    def losses(self, batch: Batch) -> Tensor:
        return super().losses(batch) * self.scale


@pytest.mark.parametrize("way", ["trainer", "loop"])
@pytest.mark.parametrize(
    ("module", "named"),
    [
        (AsksItsTrainer, r"round 4: RuntimeError: AsksItsTrainer .*Trainer.* \(in .*, line \d+\);"),
        (Detached, r"Detached.*detach"),
        (NeedsItsHook, r"round 4: AttributeError: 'NeedsItsHook' .* 'scale' \(in .*psi: update"),
    ],
)
def test_a_module_without_gradients_outside_of_a_fit_is_refused_with_the_reason(
    module: Callable[[], LightningModule], named: str, way: Any
):
    engine = Engine(module, Plan(way), 0, LocalTraining())
    with pytest.raises(InputError, match=named) as raised:
        engine.at(3, ragged_data()).gradients(engine.initial(0), torch.tensor([2, 5]))
    assert "\n" not in str(raised.value)
