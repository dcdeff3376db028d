"""Which ways may train a user's module: those that give the result of lightning.Trainer, or a line why none does.

Each module is a row of one table: `@trains` names the ways that may train it, `@only_by_trainer` a piece of the reason
against the faster ones, `@refused` a piece of the error. A row that may train is trained for two rounds, and compared
with the Trainer. Every module is linear, and changes one thing; its expected row follows from that change.
"""

import itertools
import random
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from inside_training import fit_twice, judge, why_absent
from lightning import Callback, LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.testing import assert_close

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.experiment import LocalTraining
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

Batch = tuple[Tensor, Tensor]
SIZES, LOCAL = (5, 23, 12), LocalTraining(2, 10)
SHAPE = [1, 8, 8]
PLAIN = partial(SGD, lr=0.1)
WAYS = ("chain", "stack", "loop")


def sorted_clients() -> FederatedData:
    """Makes clients whose examples are sorted by label, as files of a folder per class are."""
    rng, total = torch.Generator().manual_seed(0), sum(SIZES)
    inputs = torch.rand(total, *SHAPE, generator=rng)
    labels = torch.cat([torch.randint(10, (size,), generator=rng).sort().values for size in SIZES])
    train, none = ClientIndex.from_sizes(torch.arange(total), torch.tensor(SIZES)), ClientIndex.empty(len(SIZES))
    examples = Examples(inputs, labels, 10)
    return FederatedData(examples, train, none, none, torch.zeros(len(SIZES), dtype=torch.int64))


# The table


@dataclass(frozen=True)
class Row:
    """A module of the table.

    Args:
        make: Makes the module.
        ways: Ways that may train it, besides `trainer`; None = it is refused.
        why: Piece of the reason against `loop`, or of the error.
        precision: Precision in which it is compared.
    """

    make: Callable[[], LightningModule]
    ways: tuple[str, ...] | None
    why: str = ""
    precision: str = "64-true"


ROWS: dict[str, Row] = {}


def add(ways: str | None, why: str = "", precision: str = "64-true") -> Callable[[Any], Any]:
    def register(make: Any, name: str | None = None) -> Any:
        of_net = isinstance(make, type) and not issubclass(make, LightningModule)
        task = partial(lambda net: Classification(net(), PLAIN), make) if of_net else make
        name = name or make.__name__
        assert name not in ROWS, name
        ROWS[name] = Row(task, None if ways is None else tuple(ways.split()), why, precision)
        return make

    return register


def trains(ways: str = "chain stack loop", precision: str = "64-true") -> Callable[[Any], Any]:
    """Adds a module, or a net of a classification, that these ways may train."""
    return add(ways, "", precision)


def only_by_trainer(why: str) -> Callable[[Any], Any]:
    return add("", why)


def refused(why: str) -> Callable[[Any], Any]:
    return add(None, why)


class Own(LightningModule):
    """Linear module with the two methods that a module needs; each subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.seen: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(inputs.flatten(1))

    def losses(self, batch: Batch) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1], reduction="none") * self.factor(batch)

    def factor(self, batch: Batch) -> Any:
        return 1.0

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class Stepped(Own):
    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        return self.losses(batch).mean()


class Linear(nn.Module):
    """Linear net of a classification; each subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Any:
        return self.fc(inputs.flatten(1))


# Nothing unusual


trains()(Own)
trains()(Stepped)

# `test_ways.py` has nets, optimizers and options; here is what no way but the Trainer has.
for name, optimizer, why in (
    ("Rprop", torch.optim.Rprop, "optimizer Rprop"),
    ("LBFGS", partial(torch.optim.LBFGS, lr=0.1), "optimizer LBFGS"),
):
    only_by_trainer(why)(partial(lambda optimizer: Classification(MCLR(SHAPE, 10), optimizer), optimizer), name)


@trains()
class Remembers(Own):
    """Stores its last batch, for a picture, and a constant that is made at first use."""

    def factor(self, batch):
        self.seen = batch[0].detach()
        if not hasattr(self, "ones"):
            self.ones = torch.ones(10, dtype=batch[0].dtype)
        return self.ones[0]


@trains()
class Logs(Own):
    """Logs a metric, and passes on the batch index without using it."""

    def __init__(self):
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.accuracy = MulticlassAccuracy(10)

    def training_step(self, batch, batch_idx):
        self.accuracy(self(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)
        return self.shared(batch, batch_idx)

    def shared(self, batch, batch_idx):
        return {"loss": self.losses(batch).mean()}


trains()(lambda: Classification(MLP(12, SHAPE, 10), partial(SGD, lr=3.0)), "a large rate")


trains()(lambda: Classification(MLP(12, SHAPE, 10), partial(SGD, lr=0.1, fused=True)), "a fused optimizer")


@trains("stack loop")
class Normalised(Own):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 10))


@trains()
class WithoutIndex(Own):
    """A step that takes no batch index."""

    def training_step(self, batch):
        return self.losses(batch).mean()


# Progress of a Trainer


@only_by_trainer("it reads self.current_epoch")
class ByEpoch(Own):
    def factor(self, batch):
        return 1 / (1 + self.current_epoch)


@only_by_trainer("it reads self.global_step")
class ByStep(Own):
    def factor(self, batch):
        return 1 / (1 + self.global_step)


@only_by_trainer("it reads self.trainer")
class ByTrainer(Own):
    def factor(self, batch):
        try:
            return 1 / (1 + self.trainer.max_epochs)
        except RuntimeError:
            return 1.0


class Inner(LightningModule):
    def forward(self, inputs):
        return inputs / (1 + self.global_step)


@only_by_trainer("it reads self.global_step")
class ByPartsStep(Own):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, inputs):
        return self.inner(super().forward(inputs))


@only_by_trainer("it reads self.trainer")
class BySlots(Stepped):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() / self.trainer.num_training_batches


@refused("scores are computed without a Trainer: use the Trainer only in training_step")
class ScoresByTrainer(Own):
    def factor(self, batch):
        return 1 / self.trainer.num_training_batches


@only_by_trainer("it reads self.current_epoch")
class LateEpoch(Own):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() * (2 if self.current_epoch >= 5 else 1)


@only_by_trainer("it reads self.trainer")
class LateByTrainer(Own):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() * (2 if self.trainer.global_step >= 500 else 1)


@only_by_trainer("it reads self.trainer|is not attached to a `Trainer`")
class AsksInItsOptimizer(Own):
    def configure_optimizers(self):
        return SGD(self.parameters(), lr=1 / self.trainer.max_epochs)


class Step(Own):
    """Module whose training loss is divided by a function `by` of the batch index."""

    by: Callable[[int], float]

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() / type(self).by(batch_idx)


for name, by, why in (
    ("1 + index", lambda number: 1 + number, "its models differ"),
    ("index or 1", lambda number: number or 1, "its models differ"),
    ("index 10", lambda number: 2 if number == 10 else 1, "its models differ"),
    ("digits of the index", lambda number: len(f"{number:1}") % 3 or 1, "its models differ"),
    ("index 7,000", lambda number: 2 if number == 7_000 else 1, ""),  # after the tenth mini-batch: as documented
    ("never", lambda number: 2 if number % 3 == 5 else 1, ""),
    ("always 1", lambda number: {0: 1.0}.get(number, 1.0), ""),
):
    add("" if why else "chain stack loop", why)(type("Own", (Step,), {"by": staticmethod(by)}), name)


@only_by_trainer("its models differ")
class Times(Own):
    """Gives the batch index to a tensor's method, and calls no method of the index itself."""

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() * (1 + torch.ones(()).mul(batch_idx))


# What earlier steps have left


@refused("Counts scores the same examples differently the second time")
class Counts(Own):
    def factor(self, batch):
        self.seen = (self.seen or 0) + 1
        return 1 / self.seen


@only_by_trainer("its models differ")
class CountsInTraining(Own):
    def factor(self, batch):
        self.seen = (self.seen or 0) + self.training
        return 1 / (1 + self.seen)


@trains()
class CountsForNothing(Own):
    """Counts its steps, but changes its loss only at the 100th, which is documented as not seen."""

    def factor(self, batch):
        self.seen = (self.seen or 0) + 1
        return 1.0 if self.seen < 100 else 2.0


@only_by_trainer("its models differ")
class Queue(Own):
    def factor(self, batch):
        self.seen = deque(self.seen or [], maxlen=2)
        self.seen.append(batch[0].mean())
        return torch.stack(tuple(self.seen)).mean() if self.training else 1.0


@only_by_trainer("its models differ")
class LastBatch(Own):
    """Compares each batch with the one before."""

    def factor(self, batch):
        last, self.seen = self.seen, batch[0].mean()
        return 1.0 if last is None else 1 + (last - self.seen).square()


@only_by_trainer("its models differ")
class BatchBeforeLast(Own):
    """Compares each batch with the one before the last."""

    def factor(self, batch):
        self.seen = [*(self.seen or []), batch[0].mean().detach()][-3:]
        return 1 + (self.seen[0] - self.seen[-1]).square() * (len(self.seen) == 3)


@only_by_trainer("its models differ")
class LastWeights(Own):
    """Compares its weights with those of the step before, which differ between clients that follow each other."""

    def factor(self, batch):
        now = self.fc.weight.detach().square().sum()
        last, self.seen = now if self.seen is None or not self.training else self.seen, now
        return 1 + (last - now).square()


@trains("chain loop")
class BestSoFar(Own):
    def factor(self, batch):
        mean = float(batch[0].mean())
        self.seen = mean if self.seen is None else min(self.seen, mean)
        return 1.0


@trains()
class HiddenBuffer(Own):
    def __init__(self, **options):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), **options), persistent=False)

    def factor(self, batch):
        self.steps = self.steps + 1
        return 1.0


trains()(partial(HiddenBuffer, dtype=torch.int64), "HiddenIntegers")


@trains("loop")
class Reassigned(Own):
    """Counts in a buffer that is part of the model's row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def factor(self, batch):
        self.steps = self.steps + 1
        return 1.0


@trains("loop")
class Average(Linear):
    """Keeps a moving average of its inputs in the row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.seen.lerp_(inputs.mean().detach(), 0.1)
        return super().forward(inputs)


class Teacher(Own):
    """Module with a moving average of its own weights, like a mean teacher."""

    pull = 0.0

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(64, 10).requires_grad_(False)
        self.teacher.load_state_dict(self.fc.state_dict())

    def factor(self, batch):
        for mine, own in zip(self.teacher.parameters(), self.fc.parameters(), strict=True):
            if self.training:
                mine.mul_(0.9).add_(own.detach(), alpha=0.1)
        return 1 + self.pull * (self.fc.weight - self.teacher.weight).square().sum()


trains("chain")(Teacher)  # in a loop, evaluation would share the teacher that training has changed


@only_by_trainer("it changes the frozen parameter teacher.weight in place")
class PulledByTeacher(Teacher):
    pull = 1.0


@only_by_trainer("its models differ")
class FirstWeights(Own):
    """Stores its first weights, and is pulled towards them."""

    def factor(self, batch):
        if self.seen is None:
            self.seen = self.fc.weight.detach().clone()
        return 1 + (self.fc.weight - self.seen).square().sum()


@refused("InitialisedByData scores the same examples differently the second time")
class InitialisedByData(Own):
    """Sets a bias from its first batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def factor(self, batch):
        if not self.ready:
            self.fc.bias.data.fill_(batch[0].mean())
            self.ready = torch.ones((), dtype=torch.bool)
        return 1.0


@refused("Iterates scores the same examples differently the second time")
class Iterates(Own):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def factor(self, batch):
        return 1 / next(self.numbers)


class Schedule:
    step = 0

    def __call__(self) -> float:
        self.step += 1
        return 1.0


@trains()
class Elsewhere(Own):
    """Counts in an object within a list, for nothing."""

    def __init__(self):
        super().__init__()
        self.schedules = [Schedule()]

    def factor(self, batch):
        return self.schedules[0]()


@only_by_trainer("its models differ")
class InALayer(Linear):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, inputs):
        self.seen += self.training
        return super().forward(inputs) / (1 + self.seen)


@only_by_trainer("its models differ")
class FirstMean(Own):
    """Subtracts the mean of its first batch, which changes the statistics of its BatchNorm, too."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(64)

    def factor(self, batch):
        inputs = batch[0].flatten(1)
        self.seen = inputs.mean(0) if self.seen is None else self.seen
        return self.bn(inputs - self.seen).square().mean()


@trains()
class StepThatCounts(Own):
    def training_step(self, batch, batch_idx):
        self.seen = (self.seen or 0) + 1
        return self.losses(batch).mean()


@only_by_trainer("its models differ")
class Momentless(Linear):
    """BatchNorm whose statistics are means over all steps, which it counts in a tensor outside of the row."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 10))


@trains("stack loop")
class FrozenStatistics(Linear):
    """BatchNorm that `train` keeps in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10))

    def train(self, mode: bool = True):
        super().train(mode)
        self.fc[0].eval()
        return self


# State outside of the object


@refused("the same fit gives other models the second time")
class InTheClass(Own):
    calls = 0

    def factor(self, batch):
        if self.training:
            type(self).calls += 1
        return min(1.0, type(self).calls / 100)


COUNT = [0]


@refused("the same fit gives other models the second time")
class Global(Own):
    def factor(self, batch):
        COUNT[0] += self.training
        return min(1.0, COUNT[0] / 100)


@cache
def ramp(count: int) -> Tensor:
    return torch.linspace(0, 1, count)


@trains("stack loop")
class Caches(Own):
    """Adds a table that the process keeps, and that must not have the type of the check's numbers."""

    def forward(self, inputs):
        return self.fc(inputs.flatten(1) + ramp(64))


@refused("the same fit gives other models the second time")
class HookOfALayer(Linear):
    def __init__(self):
        super().__init__()
        count = [0]

        def scale(layer, given, outputs):
            count[0] += layer.training
            return outputs / (1 + count[0] * layer.training)

        self.fc.register_forward_hook(scale)


def in_a_closure() -> LightningModule:
    count = 0

    class Closure(Own):
        def factor(self, batch):
            nonlocal count
            count += self.training
            return 1 / (1 + count)

    return Closure()


@refused("the same fit gives other models the second time")
class TrainsByScores(Own):
    """Counts in the class how often it was scored, and trains by that."""

    scored = 0

    def factor(self, batch):
        type(self).scored += not self.training
        return 1.0 if not self.training else 1 / (1 + self.scored)


refused("the same fit gives other models the second time")(in_a_closure, "InAClosure")


# Random numbers


@only_by_trainer("it draws random numbers")
class Noisy(Own):
    def losses(self, batch):
        noise = torch.rand_like(batch[0]) if self.training else 0
        return super().losses((batch[0] + noise, batch[1]))


class Rare(Own):
    """Mirrors one mini-batch in fifty."""

    def draw(self) -> float:
        return float(torch.rand(()))

    def losses(self, batch):
        inputs = batch[0].flip(-1) * 5 if self.training and self.draw() < 0.02 else batch[0]
        return super().losses((inputs, batch[1]))


only_by_trainer("it draws random numbers")(Rare)


@only_by_trainer("it draws random numbers")
class RareByPython(Rare):
    def draw(self):
        return random.random()


@only_by_trainer("it draws random numbers")
class RareInItsStep(Own):
    def training_step(self, batch, batch_idx):
        inputs = batch[0].flip(-1) * 5 if np.random.rand() < 0.02 else batch[0]  # as users do
        return self.losses((inputs, batch[1])).mean()


@only_by_trainer("it has a random generator of its own")
class RareByItself(Rare):
    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)

    def draw(self):
        return self.rng.random()


@refused("OwnGenerator scores the same examples differently the second time")
class OwnGenerator(Own):
    def __init__(self):
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)

    def factor(self, batch):
        return 1 + torch.rand((), generator=self.rng)


@only_by_trainer("it draws random numbers")
class MonteCarlo(Linear):
    """Drops inputs in evaluation, too."""

    def forward(self, inputs):
        return self.fc(dropout(inputs.flatten(1), 0.5, True))


@refused("is another model, or scores differently, when it is built again from the same seed.*default_rng")
class Unseeded(Linear):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.from_numpy(np.random.default_rng().normal(size=10)).float())


# Weights that change in place


@trains("loop")
class MaxNorm(Own):
    def losses(self, batch):
        with torch.no_grad():
            self.fc.weight.clamp_(-0.05, 0.05)
        return super().losses(batch)


@trains("loop")
class FarClamp(Own):
    """Clips weights where these few steps do not take them."""

    def losses(self, batch):
        with torch.no_grad():
            self.fc.weight.clamp_(-2, 2)
        return super().losses(batch)


@trains("loop")
class FarData(Own):
    def forward(self, inputs):
        self.fc.weight.data.clamp_(-2, 2)
        return super().forward(inputs)


@trains("loop")
class ClampsInputs(Own):
    def losses(self, batch):
        batch[0].clamp_(max=0.7)
        return super().losses(batch)


@trains("loop")
class ClampsLabels(Own):
    def losses(self, batch):
        batch[1].clamp_(max=8)
        return super().losses(batch)


@refused("ScalesInputs scores the same examples differently the second time")
class ScalesInputs(Own):
    def losses(self, batch):
        batch[0].mul_(2)
        return super().losses(batch)


@only_by_trainer("does not require grad")
class FreezesInItsLosses(Own):
    def losses(self, batch):
        self.fc.bias.requires_grad_(False)
        return super().losses(batch)


@trains("chain")  # in a loop, evaluation would share the frozen layer that training has changed
class TeacherScores(Own):
    """Trains without its teacher, but predicts by it."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(64, 10).requires_grad_(False)

    def losses(self, batch):
        if self.training:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.fc.weight, 0.5)
        return super().losses(batch)

    def outcomes(self, batch):
        return self.losses(batch), self.teacher(batch[0].flatten(1)).argmax(1) == batch[1]


# Optimizers with something attached


ATTACHED = "something is attached to the optimizer"


@only_by_trainer(ATTACHED)
class LateHook(Own):
    """A hook of the optimizer that acts after more steps than these."""

    def configure_optimizers(self):
        optimizer, count = super().configure_optimizers(), itertools.count()
        optimizer.register_step_post_hook(lambda *given: self.fc.weight.data.zero_() if next(count) > 100 else None)
        return optimizer


@only_by_trainer(ATTACHED)
class PostStep(Own):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(lambda *given: [p.data.clamp_(-0.05, 0.05) for p in self.parameters()])
        return optimizer


@only_by_trainer(ATTACHED)
class ReplacedStep(Own):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()

        def step(closure=None):
            loss = closure() if closure else None
            with torch.no_grad():
                for p in self.parameters():
                    p.sub_(0.01 * p.grad.sign())
            return loss

        optimizer.step = step
        return optimizer


class Decaying(SGD):
    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.5
        return result


@only_by_trainer("optimizer Decaying")
class Decays(Own):
    def configure_optimizers(self):
        return Decaying(self.parameters(), lr=0.1)


@only_by_trainer("the scheduler StepLR")
class Scheduled(Own):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 1)]


@only_by_trainer("the optimizer does not train all parameters")
class TrainsOnlyItsBias(Own):
    def configure_optimizers(self):
        return SGD([self.fc.bias], lr=0.1)


@only_by_trainer("configure_optimizers does not return one plain optimizer")
class TwoOptimizers(Own):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.losses(batch).mean())
            optimizer.step()

    def configure_optimizers(self):
        return SGD([self.fc.weight], lr=0.1), SGD([self.fc.bias], lr=0.2)


# Steps


@trains()
class Manual(Own):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.losses(batch).mean()
        self.manual_backward(loss)
        optimizer.step()
        return loss


@only_by_trainer("its models differ")
class ManualTwice(Manual):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        return super().training_step(batch, batch_idx)


@only_by_trainer("its models differ")
class SkipsSome(Own):
    """Returns no loss for a mini-batch without the labels 0 and 1."""

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() if (batch[1] < 2).any() else None


@only_by_trainer("its models differ")
class Sum(Own):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).sum()


@only_by_trainer("its models differ")
class TwoLosses(Own):
    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        return losses.mean() if batch_idx % 2 == 0 else losses.max()


@only_by_trainer("its models differ")
class SmoothStep(Own):
    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1], label_smoothing=0.1)


@only_by_trainer("its models differ")
class Penalised(Own):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() + 0.1 * self.fc.weight.square().sum()


@only_by_trainer("its models differ")
class WeightedMean(Own):
    """PyTorch's weighted mean, which divides by the sum of the weights."""

    weights = torch.tensor([1.0] * 5 + [8.0] * 5)

    def losses(self, batch):
        return cross_entropy(self(batch[0]), batch[1], weight=self.weights.to(batch[0].dtype), reduction="none")

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1], weight=self.weights.to(batch[0].dtype))


@only_by_trainer("its models differ")
class IgnoresALabel(Own):
    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1], ignore_index=9)


@only_by_trainer("its models differ")
class CountsALabel(Own):
    def losses(self, batch):
        self.seen = (self.seen or 0) + (int((batch[1] == 7).any()) if self.training else 0)
        return cross_entropy(self(batch[0]) * (1 + self.seen), batch[1], reduction="none")


@only_by_trainer("its models differ")
class HardMining(Own):
    """Trains on the eight largest losses, which in small mini-batches are all."""

    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        return losses.topk(min(8, len(losses))).values.mean()


@only_by_trainer("its models differ")
class RateInItsStep(Own):
    def training_step(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1 / (1 + batch_idx)
        return self.losses(batch).mean()


@only_by_trainer("its models differ")
class Validates(Own):
    """Changes its weights in a validation loop of its own."""

    def val_dataloader(self):
        return [1, 2]

    def validation_step(self, batch, batch_idx):
        self.fc.weight.data.mul_(0.5)


# Hooks, in the class, assigned to the object, or by callbacks


@only_by_trainer("hook on_train_epoch_end")
class Hooked(Own):
    def on_train_epoch_end(self):
        pass


@only_by_trainer("hook on_train_batch_end")
class Assigned(Own):
    def __init__(self):
        super().__init__()
        self.on_train_batch_end = self.clamp

    def clamp(self, *given, **named):
        for parameter in self.parameters():
            parameter.data.clamp_(-0.02, 0.02)


@only_by_trainer("hook configure_gradient_clipping")
class Signs(Own):
    def __init__(self):
        super().__init__()
        self.configure_gradient_clipping = self.take_signs

    def take_signs(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        for parameter in self.parameters():
            parameter.grad.sign_()


@only_by_trainer("its models differ")
class AssignedStep(Classification):
    """A step of a ready-made task that is chosen in __init__."""

    def __init__(self):
        super().__init__(MCLR(SHAPE, 10), PLAIN)
        self.training_step = self.smooth

    def smooth(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1], label_smoothing=0.9)


class Ema(Callback):
    """After a fit the model is the moving average of its steps."""

    def on_fit_start(self, trainer, pl_module):
        self.mean = {name: value.clone() for name, value in pl_module.fc.state_dict().items()}

    def on_train_batch_end(self, trainer, pl_module, *rest):
        for name, value in pl_module.fc.state_dict().items():
            self.mean[name].lerp_(value, 0.1)

    def on_fit_end(self, trainer, pl_module):
        pl_module.fc.load_state_dict(self.mean)


for name, callback in {
    "Ema": Ema,
    "Accumulates": lambda: GradientAccumulationScheduler({0: 4}),
    "Swa": lambda: StochasticWeightAveraging(0.01, swa_epoch_start=0.5),
}.items():
    own = {"configure_callbacks": partial(lambda callback, self=None: [callback()], callback)}
    only_by_trainer("hook configure_callbacks")(type(name, (Own,), own))


@only_by_trainer("hook on_fit_start")
class AccumulatesByItself(Own):
    def on_fit_start(self):
        self.trainer.accumulate_grad_batches = 4


@refused("the parameter frozen.weight is trained in a fit, but is not part of the model")
class Unfreezes(Own):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)

    def on_fit_start(self):
        self.frozen.requires_grad_(True)

    def forward(self, inputs):
        return self.fc(self.frozen(inputs.flatten(1)).relu())


for name in ("setup", "configure_model", "prepare_data"):
    own = {name: lambda self, stage=None: setattr(self, "scale", 10.0)}
    refused(f"has the hook {name}, which is not called.*do in __init__ what it does")(type(f"Has_{name}", (Own,), own))


# Losses that depend on each other, have a fixed type, or take gradients


@trains("loop")
class Coupled(Own):
    def factor(self, batch):
        return 1 + batch[0].mean()


@trains("loop")
class Standardised(Own):
    def forward(self, inputs):
        inputs = inputs.flatten(1)
        return self.fc(inputs - inputs.mean(0)) if self.training else self.fc(inputs)


@trains("loop")
class Balanced(Own):
    """Each label of a mini-batch counts the same."""

    def factor(self, batch):
        counts = nn.functional.one_hot(batch[1], 10).sum(0)
        return len(batch[1]) / counts[batch[1]] / (counts > 0).sum()


@trains("stack loop", precision="32-true")
class Upcast(Own):
    def losses(self, batch):
        return cross_entropy(self(batch[0]).float(), batch[1], reduction="none")


@trains("loop", precision="32-true")
class Autocast(Own):
    def losses(self, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self(batch[0])
        return cross_entropy(logits.float(), batch[1], reduction="none")


@trains("stack loop", precision="32-true")
class HalfPrecision(Own):
    def losses(self, batch):
        return cross_entropy(self(batch[0]).half().float(), batch[1], reduction="none")


@trains("stack loop", precision="32-true")
class FixedMatrix(Own):
    """Multiplies by a float32 matrix in an attribute."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.eye(64) * 1.5

    def forward(self, inputs):
        return self.fc(inputs.flatten(1) @ self.matrix)


@trains("stack loop")
class Constant(Own):
    def forward(self, inputs):
        return self.fc((inputs.flatten(1) - torch.tensor(0.3)) * torch.ones(64) / torch.tensor(0.4))


class Penalty(Own):
    """Adds the squared gradient of the inputs."""

    def losses(self, batch):
        inputs = batch[0].clone().requires_grad_()
        losses = cross_entropy(self(inputs), batch[1], reduction="none")
        (gradient,) = torch.autograd.grad(losses.sum(), inputs, create_graph=True)
        return losses + gradient.flatten(1).square().sum(1)


refused("scores are computed without gradients: take a gradient inside of `with torch.enable_grad")(Penalty)


@trains("loop")
class PenaltyEnabled(Penalty):
    def losses(self, batch):
        with torch.enable_grad():
            return super().losses(batch)


@trains("loop")
class Adversarial(Own):
    """Trains on examples that are changed by the sign of their gradient."""

    def losses(self, batch):
        if not self.training:
            return super().losses(batch)
        inputs = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(super().losses((inputs, batch[1])).sum(), inputs)
        return super().losses((batch[0] + 0.1 * gradient.sign(), batch[1]))


@trains("stack loop")
class EvaluatesInside(Own):
    """Puts itself into evaluation mode in its losses."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def losses(self, batch):
        self.eval()
        return cross_entropy(self.fc(self.drop(batch[0].flatten(1))), batch[1], reduction="none")


@trains("stack loop")
class CutOff(Own):
    """Cuts off losses where usual examples do not reach."""

    def losses(self, batch):
        return super().losses(batch).clamp(max=1000)


@only_by_trainer("has no gradient|does not require grad")
class DetachedLosses(Own):
    """Losses without a gradient, and a step with one."""

    def losses(self, batch):
        return super().losses(batch).detach()

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1])


@refused("training leaves the model unchanged")
class DetachedFeatures(Own):
    def losses(self, batch):
        return cross_entropy(self(batch[0]).detach() + 0 * self.fc.bias.sum(), batch[1], reduction="none")


@refused("training leaves the model unchanged")
class ZeroRate(Own):
    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.0)


# Layers


def attention(dropout: float) -> list[nn.Module]:
    return [nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True), nn.Flatten(), nn.Linear(64, 10)]


@trains("stack loop")
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.b.weight = self.a.weight

    def forward(self, inputs):
        return self.c(self.b(self.a(inputs.flatten(1)).relu()).relu())


@trains("loop")
class SpectralNorm(Linear):
    def __init__(self):
        super().__init__()
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 32))
        self.fc = nn.Sequential(first, nn.ReLU(), nn.Linear(32, 10))


@trains("stack loop")
class Spare(Linear):
    """Has a layer that no loss uses."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)


class DecayedSpare(Own):
    """Has a layer that no loss uses, which weight decay in a loop would change."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1, weight_decay=0.1)


only_by_trainer("its models differ")(DecayedSpare)


@refused("the parameter late.weight is trained in a fit, but is not part of the model")
class MakesALayer(Own):
    def forward(self, inputs):
        if not hasattr(self, "late"):
            self.late = nn.Linear(10, 10)
        return self.late(super().forward(inputs))


@refused("a copy of the module has the same fc.weight, but every client trains a copy")
class SharesItself(Own):
    def __deepcopy__(self, memo):
        return self


@trains("loop")
class SparseGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(16, 4, sparse=True), nn.Linear(256, 10)

    def forward(self, inputs):
        return self.fc(self.embedding((inputs.flatten(1) * 15).long()).flatten(1))


trains("stack loop")(
    lambda: Classification(nn.Sequential(nn.Flatten(1, 2), *attention(0.0)), PLAIN), "attention without dropout"
)
only_by_trainer("it draws random numbers")(
    lambda: Classification(nn.Sequential(nn.Flatten(1, 2), *attention(0.2)), PLAIN), "attention with dropout"
)
only_by_trainer("it draws random numbers")(lambda: of_layers(nn.Linear(64, 12), nn.RReLU(), nn.Linear(12, 10)), "RReLU")
trains("loop")(
    lambda: Classification(
        nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 10)), PLAIN
    ),
    "InstanceNorm",
)


class Reader(nn.Module):
    """Net that reads the rows of an image, or token ids from them, with a layer of PyTorch."""

    def __init__(self, layer: nn.Module, width: int, tokens: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.layer, self.fc, self.tokens, self.packed = layer, nn.Linear(width, 10), tokens, packed

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs[:, 0]
        if self.tokens:
            found = self.layer((rows.flatten(1) * 11.9).long())
            return self.fc(found.mean(1) if found.dim() == 3 else found)
        if self.packed:
            rows = nn.utils.rnn.pack_padded_sequence(rows, [8] * len(rows), batch_first=True)
            return self.fc(self.layer(rows)[1][-1])
        return self.fc(self.layer(rows)[0][:, -1])


class OwnGRU(nn.GRU):
    """User's subclass of GRU, whose forward may do anything."""

    def forward(self, *given: Any) -> Any:
        outputs, last = super().forward(*given)
        return outputs * 2, last


def hooked_gru() -> nn.Module:
    layer = nn.GRU(8, 3, batch_first=True)
    layer.register_forward_hook(lambda module, given, outputs: (outputs[0] * 2, outputs[1]))
    return layer


LAYERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "RNN": (partial(nn.RNN, 8, 3, batch_first=True), {"width": 3}, "loop"),
    "GRU": (partial(nn.GRU, 8, 3, batch_first=True), {"width": 3}, "stack loop"),
    "packed GRU": (partial(nn.GRU, 8, 3, batch_first=True), {"width": 3, "packed": True}, "loop"),
    "own GRU": (partial(OwnGRU, 8, 3, batch_first=True), {"width": 3}, "loop"),
    "GRU with a hook": (hooked_gru, {"width": 3}, "loop"),
    "GRU with dropout": (partial(nn.GRU, 8, 3, 2, batch_first=True, dropout=0.2), {"width": 3}, ""),
    "LSTM": (partial(nn.LSTM, 8, 3, 2, batch_first=True, bidirectional=True), {"width": 6}, "stack loop"),
    "projected LSTM": (partial(nn.LSTM, 8, 3, batch_first=True, proj_size=2), {"width": 2}, "loop"),
    "Embedding": (partial(nn.Embedding, 12, 3), {"width": 3, "tokens": True}, "stack loop"),
    "padding": (partial(nn.Embedding, 12, 3, padding_idx=1), {"width": 3, "tokens": True}, "stack loop"),
    "max_norm": (partial(nn.Embedding, 12, 3, max_norm=50.0), {"width": 3, "tokens": True}, "loop"),
    "by frequency": (partial(nn.Embedding, 12, 3, scale_grad_by_freq=True), {"width": 3, "tokens": True}, "loop"),
    "EmbeddingBag": (partial(nn.EmbeddingBag, 12, 3), {"width": 3, "tokens": True}, "stack loop"),
}
for name, (layer, given, ways) in LAYERS.items():
    make = partial(lambda layer, given: Classification(Reader(layer(), **given), PLAIN), layer, given)
    add(ways, "" if ways else "it draws random numbers")(make, name)


def with_hook(scale: float) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    for layer in (net[1], net[3]):
        layer.register_full_backward_hook(lambda m, into, out: tuple(None if g is None else g * scale for g in into))
    return net


trains("loop")(lambda: Classification(with_hook(0.1), PLAIN), "BackwardHook")


@trains("stack loop")
class Mask(Linear):
    """Causal self-attention over rows, with a mask of -inf, which is in no row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((8, 8), -inf), 1))

    def forward(self, inputs):
        rows = inputs.flatten(1, 2)
        return self.fc(((rows @ rows.mT + self.mask).softmax(-1) @ rows).flatten(1))


@trains()
class ByMethod(Linear):
    """Refers to its layers by a method, which copies bind to themselves, and by the arguments of a hook."""

    def __init__(self):
        super().__init__()
        self.head = self.apply_layer
        self.fc.register_forward_hook(lambda layer, given, outputs: outputs + 0 * layer.bias)

    def apply_layer(self, features):
        return self.fc(features)

    def forward(self, inputs):
        return self.head(inputs.flatten(1))


NOT_OWN = r"depend on a parameter of shape .* not part of the module, .* neither trained nor sent; .*nn.ModuleList"


class Hidden(nn.Module):
    """Net with a layer that is kept in a form that PyTorch does not register."""

    def __init__(self, form: Callable[[nn.Linear], Any], find: Callable[[Any], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.hidden, self.find, self.last = form(nn.Linear(64, 32)), find, nn.Linear(32, 10)

    def forward(self, inputs):
        return self.last(self.find(self.hidden)(inputs.flatten(1)).relu())


for name, form, find, why in (
    ("list", lambda layer: [layer], lambda held: held[0], NOT_OWN),
    ("nested tuples", lambda layer: ((nn.ReLU(),), (layer,)), lambda held: held[1][0], NOT_OWN),
    ("dictionary", lambda layer: {"one": layer}, lambda held: held["one"], NOT_OWN),
    ("weight in a list", lambda layer: [layer.weight], lambda held: lambda x: x @ held[0].T, NOT_OWN),
    ("closure", lambda layer: lambda x: layer(x), lambda held: held, NOT_OWN),
    ("ModuleList", lambda layer: nn.ModuleList([layer]), lambda held: held[0], ""),
):
    add(None if why else "chain stack loop", why)(
        partial(lambda form, find: Classification(Hidden(form, find), PLAIN), form, find), f"layer in a {name}"
    )
# a teacher that is hidden on purpose is not cast to float64
trains("stack loop", precision="32-true")(
    lambda: Classification(Hidden(lambda layer: [layer.requires_grad_(False)], lambda held: held[0]), PLAIN),
    "frozen layer in a list",
)


@refused("computed with other layers than the module's own")
class ByLambda(Linear):
    """A lambda that refers to the original module, so that a copy computes with the original's layer."""

    def __init__(self):
        super().__init__()
        self.head = lambda features: self.fc(features)

    def forward(self, inputs):
        return self.head(inputs.flatten(1))


@refused(NOT_OWN)
class ByHook(Linear):
    """A hook that scales by a parameter of the original module."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))
        self.fc.register_forward_hook(lambda layer, given, outputs: outputs * self.scale)


@refused("scores the same examples differently the second time: .*let the module change only in training")
class CountsScores(Linear):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) / (1 + self.calls)


# What a copy or a row cannot hold


def with_part(**parts: Callable[[nn.Module], Any]) -> LightningModule:
    net = Linear()
    for name, make in parts.items():
        setattr(net, name, make(net))
    return Classification(net, PLAIN)


def with_gradient_hook(name: str, hook: Callable[[Any], object]) -> LightningModule:
    net = Linear()
    getattr(net.fc.weight, name)(hook)
    return Classification(net, PLAIN)


@trains()
class HookOfAFrozenWeight(Linear):
    def __init__(self):
        super().__init__()
        self.fc.weight.register_hook(lambda gradient: None)
        self.fc.weight.requires_grad_(False)


@trains()
class WithoutForward(Classification):
    """A classification that does not use its forward."""

    def __init__(self):
        super().__init__(MCLR(SHAPE, 10), PLAIN)

    def losses(self, batch):
        return cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def outcomes(self, batch):
        return self.losses(batch), self.net(batch[0]).argmax(-1) == batch[1]

    def forward(self, inputs):
        return {"logits": self.net(inputs)}


def weight_normed() -> LightningModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about this setting
        return Classification(nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 10))), PLAIN)


def of_layers(*layers: nn.Module) -> LightningModule:
    return Classification(nn.Sequential(nn.Flatten(), *layers), PLAIN)


REFUSED: dict[str, tuple[Callable[[], LightningModule], str]] = {
    "hook on a gradient": (
        partial(with_gradient_hook, "register_hook", lambda gradient: gradient.clamp(-1, 1)),
        r"net.fc.weight has a hook on its gradient .*on_before_optimizer_step",
    ),
    "hook after accumulation": (
        partial(with_gradient_hook, "register_post_accumulate_grad_hook", lambda weight: weight.grad.zero_()),
        "net.fc.weight has a hook on its gradient",
    ),
    "complex parameter": (
        partial(with_part, turn=lambda net: nn.Parameter(torch.ones(2, dtype=torch.complex64))),
        r"net.turn is complex, .*view_as_real",
    ),
    "complex buffer": (
        partial(with_part, turn=lambda net: nn.Buffer(torch.ones(2, dtype=torch.complex64))),
        r"net.turn is complex, .*view_as_real",
    ),
    "sparse buffer": (
        partial(with_part, graph=lambda net: nn.Buffer(torch.eye(3).to_sparse())),
        r"net.graph is sparse, .*to_dense",
    ),
    "lazy layer": (partial(of_layers, nn.LazyLinear(10)), r"net.1 \(LazyLinear\) has no weights .*sizes"),
    "lazy buffers": (
        lambda: of_layers(nn.Linear(64, 10), nn.LazyBatchNorm1d()),
        r"net.2 \(LazyBatchNorm1d\) has no weights",
    ),
    "weight_norm": (weight_normed, r"net.1 \(Linear\) cannot be copied.*parametrizations.weight_norm"),
    "script": (
        lambda: Classification(torch.jit.script(nn.Linear(64, 10)), PLAIN),
        r"net \(RecursiveScriptModule\) is compiled .*before torch.jit.script",
    ),
    "trace": (
        lambda: of_layers(torch.jit.trace(nn.Linear(64, 10), torch.zeros(2, 64))),
        r"net.1 \(TopLevelTracedModule\) is compiled by torch.jit",
    ),
    "derived tensor": (
        partial(with_part, twice=lambda net: net.fc.weight * 2),
        r"net \(Linear\) cannot be copied.*in forward \(RuntimeError: Only Tensors",
    ),
}
for name, (make, why) in REFUSED.items():
    refused(why)(make, name)


# The tests


@only_by_trainer("hook clip_gradients")
class ClipsByItself(Own):
    def clip_gradients(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_norm_(self.parameters(), 5.0)


@refused("TrainReturnsNothing.train returns None; return self")
class TrainReturnsNothing(Own):
    def train(self, mode=True):
        super().train(mode)


@trains()
class OwnStateDict(Own):
    def state_dict(self):
        return super().state_dict()


@trains()
class PenaltyOfOthers(Own):
    """Its method `penalty` is not that of our tasks, which takes no arguments."""

    def penalty(self, outputs):
        return outputs.square().sum()


@trains()
class InADictionary(Own):
    def configure_optimizers(self):
        return {"optimizer": SGD(self.parameters(), lr=0.1)}


@refused("ListOfLosses has no `losses")
class ListOfLosses(Own):
    losses = ()


@refused(r"ScoresAsAMethod.scores is <bound method")
class ScoresAsAMethod(Own):
    def scores(self, batch):
        return self.losses(batch)


@trains("stack loop")
class MergesInEval(Own):
    """Adds a second weight to the first one when it leaves training, as libraries of adapters do."""

    def __init__(self):
        super().__init__()
        self.up, self.merged = nn.Parameter(torch.zeros(10, 64)), None

    def train(self, mode=True):
        super().train(mode)
        self.merged = None if mode else (self.fc.weight + self.up).detach()
        return self

    def forward(self, inputs):
        weight = self.fc.weight + self.up if self.merged is None else self.merged
        return nn.functional.linear(inputs.flatten(1), weight, self.fc.bias)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return sorted_clients()


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ROWS)
def test_a_module_is_trained_as_by_a_trainer_or_refused_in_one_line(name: str, data: FederatedData):
    row, state = ROWS[name], torch.get_rng_state()
    found = judge(row.make, data, LOCAL)
    if row.ways is None:
        assert found.refused is not None
        with pytest.raises(ValueError, match=row.why):
            raise ValueError(found.refused)
        assert "\n" not in found.refused
        return
    assert found.refused is None
    assert torch.equal(torch.get_rng_state(), state)
    against = {way: reason for way, reason in found.against.items() if not why_absent(way)}
    assert [way for way, reason in against.items() if reason is None] == [way for way in row.ways if way in against]
    if row.why:
        assert any(piece in str(against["loop"]) for piece in row.why.split("|")), against["loop"]
    assert not any("\n" in (reason or "") for reason in against.values())
    if not row.ways:
        return
    models, losses = fit_twice("trainer", row.make, data, LOCAL, row.precision)
    for way in (way for way in row.ways if way in against):
        own_models, own_losses = fit_twice(way, row.make, data, LOCAL, None if way == "chain" else row.precision)
        close = 1e-5 if way == "chain" else 1e-9 if row.precision == "64-true" else 1e-4
        assert_close(own_models.double(), models.double(), rtol=close, atol=close)
        if not losses.isnan().any():  # the Trainer reports a loss only if the step returns it
            assert_close(own_losses, losses, rtol=close, atol=close)
