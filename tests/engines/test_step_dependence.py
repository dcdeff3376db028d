"""Tests modules whose loss depends on the Trainer's progress or on earlier steps, so that they need `trainer`."""

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from lightning import LightningModule
from ragged import ragged_data, reasons_against
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lit_cfl.engines import agreement
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification


class Plain(LightningModule):
    """Linear module, of which each subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.seen = None

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(inputs.flatten(1))

    def losses(self, batch: Batch) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1], reduction="none") * self.factor(batch)

    def factor(self, batch: Batch) -> float | Tensor:
        return 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def obstacles_of(module: Callable[[], LightningModule]) -> list[str]:
    return reasons_against(module)


# Progress of a Trainer


class ByEpoch(Plain):
    def factor(self, batch):
        return 1 / (1 + self.current_epoch)


class ByStep(Plain):
    def factor(self, batch):
        return 1 / (1 + self.global_step)


class ByTrainer(Plain):
    def factor(self, batch):
        try:
            return 1 / (1 + self.trainer.max_epochs)
        except RuntimeError:
            return 1.0


class Inner(LightningModule):
    def forward(self, inputs):
        return inputs / (1 + self.global_step)


class ByPartsStep(Plain):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, inputs):
        return self.inner(super().forward(inputs))


class BySlots(Plain):
    """Module whose loss depends on the Trainer's number of training batches."""

    def factor(self, batch):
        return 1 / self.trainer.num_training_batches

    def outcomes(self, batch):
        outputs = self(batch[0])
        return cross_entropy(outputs, batch[1], reduction="none"), outputs.argmax(-1) == batch[1]


class Step(Plain):
    """Module whose training loss is divided by a function `by` of the module and the batch index."""

    by: Callable[["Step", int], float]

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() / type(self).by(self, batch_idx)


def step_by(rule: Callable[[Step, int], float]) -> type[Step]:
    return type("Own", (Step,), {"by": staticmethod(rule)})


class Times(Plain):
    """Module that gives the batch index to a tensor's method, and calls no method of the index itself."""

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() * (1 + torch.ones(()).mul(batch_idx))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ByEpoch, "losses reads self.current_epoch"),
        (ByStep, "losses reads self.global_step"),
        (ByTrainer, "losses reads self.trainer"),
        (ByPartsStep, "losses reads self.global_step"),
        (BySlots, "losses reads self.trainer"),
        (step_by(lambda own, number: 1 + own.current_epoch), "training_step reads self.current_epoch"),
        (step_by(lambda own, number: 1 + number), "training_step reads batch_idx"),
        (step_by(lambda own, number: 2 if number == 7_000 else 1), "training_step reads batch_idx"),
        (step_by(lambda own, number: 2 if number % 3 == 5 else 1), "training_step reads batch_idx"),
        (step_by(lambda own, number: number or 1), "training_step reads batch_idx"),
        (step_by(lambda own, number: len(f"{number:1}") % 3 or 1), "training_step reads batch_idx"),
        (step_by(lambda own, number: {0: 1.0}.get(number, 1.0)), "training_step reads batch_idx"),
        (Times, "training_step depends on batch_idx"),
    ],
)
def test_progress_that_is_read_is_named(module: Callable[[], LightningModule], reason: str):
    assert obstacles_of(module) == [reason]


# What steps before have left


class Counts(Plain):
    def factor(self, batch):
        self.seen = (self.seen or 0) + 1
        return 1 / self.seen


class CountsForNothing(Plain):
    """Module that counts its steps, but changes its loss only at the 100th."""

    def factor(self, batch):
        self.seen = (self.seen or 0) + 1
        return 1.0 if self.seen < 100 else 2.0


class Queue(Plain):
    def factor(self, batch):
        self.seen = deque(self.seen or [], maxlen=2)
        self.seen.append(batch[0].mean())
        return torch.stack(tuple(self.seen)).mean()


class LastBatch(Plain):
    """Module that compares each batch with the previous one."""

    def factor(self, batch):
        last, self.seen = self.seen, batch[0].mean()
        return 1.0 if last is None else 1 + (last - self.seen).square()


class BestSoFar(Plain):
    def factor(self, batch):
        mean = float(batch[0].mean())
        self.seen = mean if self.seen is None else min(self.seen, mean)
        return 1.0


class WorstSoFar(Plain):
    def factor(self, batch):
        mean = float(batch[0].mean())
        self.seen = mean if self.seen is None else max(self.seen, mean)
        return 1.0


class HiddenBuffer(Plain):
    def __init__(self, **options):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), **options), persistent=False)

    def factor(self, batch):
        self.steps = self.steps + 1
        return 1.0


class Reassigned(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def factor(self, batch):
        self.steps = self.steps + 1
        return 1.0


class Teacher(Plain):
    """Module with a moving average of its own weights, like a mean teacher."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(64, 10).requires_grad_(False)
        self.teacher.load_state_dict(self.fc.state_dict())

    def factor(self, batch):
        with torch.no_grad():
            for mine, own in zip(self.teacher.parameters(), self.fc.parameters(), strict=True):
                mine.mul_(0.9).add_(own, alpha=0.1)
        return 1.0


class FirstWeights(Plain):
    """Module that stores its first weights, and is pulled towards them."""

    def factor(self, batch):
        if self.seen is None:
            self.seen = self.fc.weight.detach().clone()
        return 1 + (self.fc.weight - self.seen).square().sum()


class InitialisedByData(Plain):
    """Module that sets a bias from its first batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def factor(self, batch):
        if not self.ready:
            self.fc.bias.data.fill_(batch[0].mean())
            self.ready = torch.ones((), dtype=torch.bool)
        return 1.0


class OwnGenerator(Plain):
    def __init__(self):
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)

    def factor(self, batch):
        return 1 + torch.rand((), generator=self.rng)


class Iterates(Plain):
    """Module whose loss uses an iterator; only the values that it yields reveal its position."""

    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def factor(self, batch):
        return 1 / next(self.numbers)


class Schedule:
    def __init__(self):
        self.step = 0

    def __call__(self) -> float:
        self.step += 1
        return 1.0


class Elsewhere(Plain):
    """Module whose counter is in an object within a list."""

    def __init__(self):
        super().__init__()
        self.schedules = [Schedule()]

    def factor(self, batch):
        return self.schedules[0]()


class CountsInNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.seen = nn.Linear(64, 10), 0

    def forward(self, inputs):
        self.seen += self.training
        return self.fc(inputs.flatten(1)) / (1 + self.seen)


class InALayer(Plain):
    def __init__(self):
        super().__init__()
        self.fc = CountsInNet()


class FirstMean(Plain):
    """Module that subtracts the mean of its first batch, which changes the statistics of its BatchNorm, too."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(64)

    def factor(self, batch):
        inputs = batch[0].flatten(1)
        self.seen = inputs.mean(0) if self.seen is None else self.seen
        return self.bn(inputs - self.seen).square().mean()


class StepThatCounts(Plain):
    def training_step(self, batch, batch_idx):
        self.seen = (self.seen or 0) + 1
        return self.losses(batch).mean()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Counts, "seen changes from step to step"),
        (CountsForNothing, "seen changes from step to step"),
        (Queue, "seen changes from step to step"),
        (LastBatch, "losses returns a different loss after other steps"),
        (BestSoFar, "seen changes from step to step"),
        (WorstSoFar, "seen changes from step to step"),
        (HiddenBuffer, "steps changes from step to step"),
        (partial(HiddenBuffer, dtype=torch.int64), "steps changes from step to step"),
        (Reassigned, "the buffer steps changes in training"),
        (Teacher, "teacher.weight changes from step to step"),
        (FirstWeights, "seen changes from step to step"),
        (InitialisedByData, "fc.bias changes from step to step"),
        (OwnGenerator, "rng changes from step to step"),
        (Iterates, "losses returns a different loss after other steps"),
        (Elsewhere, "schedules[0].step changes from step to step"),
        (FirstMean, "seen changes from step to step"),
        (InALayer, "fc.seen changes from step to step"),
        (StepThatCounts, "seen changes from step to step"),
    ],
)
def test_what_earlier_steps_have_left_is_named(module: Callable[[], LightningModule], reason: str):
    assert obstacles_of(module) == [reason]


# What may stay in a stack


class Remembers(Plain):
    """Module that stores its last batch, for a picture, and a constant made at first use."""

    def factor(self, batch):
        self.seen = batch[0].detach()
        if not hasattr(self, "ones"):
            self.ones = torch.ones(10, dtype=batch[0].dtype)
        return self.ones[0]


class Logs(Plain):
    """Module that logs a metric, and passes on the batch index without reading it."""

    def __init__(self):
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.accuracy = MulticlassAccuracy(10)

    def training_step(self, batch, batch_idx):
        self.accuracy(self(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)
        return self.shared(batch, batch_idx)

    def shared(self, batch, batch_idx):
        return self.losses(batch).mean()


class Normalised(Plain):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 10))


@pytest.mark.parametrize("module", [Plain, Remembers, Logs, Normalised])
def test_what_depends_on_its_batch_alone_is_stacked(module: Callable[[], LightningModule]):
    assert obstacles_of(module) == []


def test_the_check_leaves_the_module_and_the_generators_unchanged():
    state = torch.get_rng_state()
    made = []

    def make() -> LightningModule:
        made.append(Counts())
        return made[-1]

    obstacles_of(make)
    assert all(type(module) is Counts and module.seen is None for module in made)
    assert torch.equal(torch.get_rng_state(), state)


def test_our_nets_are_asked_as_others_are():
    assert obstacles_of(lambda: Classification(MCLR([1, 8, 8], 10))) == []


def test_progress_of_a_trainer_starts_at_0_in_every_fit():
    seen: list[tuple[int, int, int, int | None]] = []

    class Sees(Plain):
        def training_step(self, batch, batch_idx):
            seen.append((self.current_epoch, self.global_step, batch_idx, self.seen))
            self.seen = (self.seen or 0) + 1
            return self.losses(batch).mean()

    engine = Engine(Sees, Plan(), 0, LocalTraining(2, 10))
    one_fit = [(epoch, 2 * epoch + batch, batch, 2 * epoch + batch or None) for epoch in (0, 1) for batch in (0, 1)]
    for round in (0, 7):  # clients 2 and 5 have 17 and 20 examples, so two batches each
        seen.clear()
        engine.at(round, ragged_data()).fit(engine.initial(0)[None], torch.tensor([2, 5]))
        assert seen == one_fit + one_fit


# Gradients, for which a module is asked outside of a fit


class AsksItsTrainer(Plain):
    """Module whose losses need a Trainer, but whose scores do not."""

    def factor(self, batch):
        return 1 / (1 + self.trainer.current_epoch)


class NeedsItsHook(Plain):
    def on_train_start(self):
        self.scale = 2.0

    def factor(self, batch):
        return self.scale


class Detached(Plain):
    def factor(self, batch):
        return 0.5

    def losses(self, batch):
        return super().losses(batch).detach()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            AsksItsTrainer,
            r"in round 4: RuntimeError: AsksItsTrainer is not attached to a `Trainer`.* \(in .*, line \d+\);",
        ),
        (
            NeedsItsHook,
            r"in round 4: AttributeError: 'NeedsItsHook' object has no attribute 'scale' \(in .*psi: update",
        ),
        (Detached, "Detached.losses is detached from the parameters"),
    ],
)
@pytest.mark.parametrize("way", ["trainer", "loop"])
def test_a_module_without_gradients_outside_of_a_fit_is_refused_with_the_reason(
    module: Callable[[], LightningModule], said: str, way: Literal["trainer", "loop"]
):
    engine = Engine(module, Plan(way), 0, LocalTraining())
    with pytest.raises(InputError, match=said) as raised:
        engine.at(3, ragged_data()).gradients(engine.initial(0), torch.tensor([2, 5]))
    assert "\n" not in str(raised.value)


def test_an_error_of_ours_in_gradients_is_not_blamed_on_the_module(monkeypatch: pytest.MonkeyPatch):
    engine = Engine(Plain, Plan("loop"), 0, LocalTraining())

    def broken(*given):
        raise KeyError("ours")

    broken.__code__ = broken.__code__.replace(co_filename=agreement.__file__)
    monkeypatch.setattr(type(engine.way), "_gradient", broken)
    with pytest.raises(KeyError):
        engine.at(0, ragged_data()).gradients(engine.initial(0), torch.tensor([2]))
