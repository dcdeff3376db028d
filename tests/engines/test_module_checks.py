"""Tests errors and notes on users' modules beside the table of `test_modules.py`, and what fits keep.

That each client has statistics of its own, and when an example may be alone, is stated by `test_ways.py`.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
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

from lit_cfl.algorithms import FedAvg
from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_module import require_no_single_batch, takes_tokens
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.fingerprint import digest_of_constants
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.errors import DivergedError, InputError, Notice
from lit_cfl.experiment import Experiment
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification, NextToken


class Own(Classification):
    """Linear module, of which each subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__(Linear(), SGD)


def engine_of(net: Callable[[], nn.Module], plan: Plan = Plan("loop"), seed: int = 0) -> Engine:
    return build_engine(task(net), plan, seed, LocalTraining(2, 10))


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
        for name, value in (constants(0.0) | changes).items():
            setattr(net, name, value)
        return digest_of_constants(net, ParameterLayout.of(net))

    def constants(last: float) -> dict[str, object]:
        values = torch.tensor([0.0, last])
        return {
            "frozen": nn.Parameter(values, requires_grad=False),
            "count": nn.Buffer(values.long()),
            "hidden": nn.Buffer(values, persistent=False),
            "mask": nn.Buffer(torch.tensor([-inf, 0.0] if last else [0.0, -inf])),
            "table": values,
            "kept": {"a": [values]},
            "numbers": values.double().numpy(),
            "brief": nn.Parameter(values.bfloat16(), requires_grad=False),
        }

    changes = constants(1.0)
    digests = {digest(**{name: value}) for name, value in changes.items()}
    assert len(digests | {digest()}) == len(changes) + 1
    of_names = {digest(numbers=np.array([f"{n} of 2" for n in (1, 2)], dtype=object)) for _ in range(2)}
    assert len(of_names | digests) == len(changes) + 1  # by their values, not by where they lie
    # values in a row are recorded with the model, not in this digest
    assert digest(1.0, torch.tensor([5.0, 6.0])) == digest()


class MonteCarlo(Linear):
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


def test_a_net_of_images_is_told_what_a_table_lacks():
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2))

    table = ArrayData(np.arange(80.0).reshape(20, 4) / 80, np.arange(20) % 2, client=np.arange(20) // 10)
    with pytest.raises(InputError, match=r"Conv1d .*inputs.unsqueeze\(1\)"):
        require_trainable(engine_of(net), table.federated(0))


@pytest.mark.parametrize(("last", "notes"), [([nn.Softmax(-1)], 1), ([], 0), ([nn.LogSoftmax(-1)], 0)])
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


class AsksItsTrainer(Own):
    def losses(self, batch: Batch) -> Tensor:
        return super().losses(batch) / (1 + self.trainer.current_epoch)


class Detached(Own):
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


def units() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))


@pytest.mark.parametrize("plan", ["trainer", "plain loop", "4 lanes"])
def test_every_engine_refuses_a_batch_of_one_example_before_it_trains(plan: str):
    engine = build_engine(task(units), PLANS[plan], 5, LocalTraining(2, 4))
    model, part = engine.initial(0), engine._fit_part
    engine._fit_part = None  # must not be called
    for sizes, budget, client in (
        ((8, 9, 6), None, 1),
        ((8, 10, 6), Budget(1, "epochs", 9), 1),
        ((8, 3, 1), Budget(1, "epochs", "full"), 2),
    ):
        size = budget.batch_size if budget is not None else 4
        with pytest.raises(InputError, match=f"client {client} .* batch size {size}, .* GroupNorm"):
            engine.at(0, ragged_data(sizes)).fit(model[None], torch.arange(3), budget=budget)
    with pytest.raises(InputError, match=r"client 2 .* only example"):
        engine.at(0, ragged_data((8, 9, 1))).gradients(model, torch.arange(3))
    engine._fit_part = part
    with pytest.raises(InputError, match=r"client 1 .* one of its 9 examples"):
        require_trainable(engine, ragged_data((8, 9, 16)))


@pytest.mark.parametrize(
    ("size", "batch_size", "last", "remedy"),
    [
        (31, 10, "keep", "local.last_batch to join,"),
        (1, 10, "join", "partition.min_examples"),
        (31, 10, "join", None),
        (31, 10, "drop", None),
    ],
)
def test_a_remedy_is_named_where_an_example_is_alone(size: int, batch_size: int, last: Any, remedy: str | None):
    counts = torch.tensor([size, 40])
    with pytest.raises(InputError, match=remedy) if remedy else nullcontext():
        require_no_single_batch(torch.arange(2), counts, counts, batch_size, last)


X = np.random.default_rng(0).integers(1, 12, (60, 4))
LINEAR = partial(MCLR, [4], 3)


def data_of(inputs: Any = X, **options: Any) -> ArrayData:
    return ArrayData(inputs, X[:, 0] % 3, np.arange(60) // 10, **options)


def embedding(labels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Embedding(12, 5), nn.Flatten(), nn.Linear(20, labels))


def prepared(net: Any, data: ArrayData) -> Any:
    def task() -> Classification:
        return Classification(net(), partial(torch.optim.SGD, lr=0.1))

    return Experiment(data, task, FedAvg(), rounds=1, cohort_size=2).prepare(0)


def test_integers_are_numbers_unless_the_net_has_an_embedding():
    numbers, tokens = prepared(LINEAR, data_of()), prepared(embedding, data_of())
    of_numbers, of_tokens = (run.engine.examples(run.data).batch(torch.tensor([3]))[0] for run in (numbers, tokens))
    assert of_numbers.tolist() == X[3:4].astype(float).tolist()
    assert of_tokens.tolist() == X[3:4].tolist()
    assert (of_numbers.dtype, of_tokens.dtype) == (torch.float32, torch.int64)
    assert tokens.data.examples.vocabulary == 12
    assert numbers.fingerprint["partition"] == tokens.fingerprint["partition"]
    assert [np.isfinite(done.info.loss) for done in tokens.rounds()] == [True]
    kinds = Classification(nn.Linear(2, 2)), NextToken(nn.Linear(2, 2)), nn.Sequential(nn.EmbeddingBag(12, 2))
    assert list(map(takes_tokens, kinds)) == [False, True, True]  # a task may say that it takes tokens
    floats = prepared(LINEAR, data_of(X.astype(np.float32)))
    assert torch.equal(*(list(run.rounds())[-1].state.models for run in (numbers, floats)))


def test_token_ids_are_blamed_only_if_the_net_has_no_embedding():
    with pytest.raises(InputError, match="token ids: choose a net with an embedding"):
        prepared(LINEAR, data_of(vocabulary=12))
    with pytest.raises(InputError) as error:
        prepared(partial(embedding, 2), data_of())  # a label that the net does not have
    assert "token ids" not in str(error.value)
