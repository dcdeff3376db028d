"""Which ways may train a user's module: those that give the result of lightning.Trainer, or a line why none does.

Each module is a row of one table: `@trains` names the ways that may train it, `@only_by_trainer` a piece of the reason
against the faster ones, `@refused` a piece of the error. A row that may train is trained for two rounds, and compared
with the Trainer. Every module is linear, and changes one thing; its expected row follows from that change. A row is a
class, or a function that replaces one method of the module `Own`.
"""

import itertools
import random
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from inside_training import fit_twice, judge, why_absent
from lightning import LightningModule
from ragged import SHAPE, Linear, clients_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.testing import assert_close
from torchmetrics.classification import MulticlassAccuracy

from lit_cfl.data import Examples, FederatedData
from lit_cfl.experiment import LocalTraining
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

Batch = tuple[Tensor, Tensor]
SIZES, LOCAL = (5, 23, 12), LocalTraining(2, 10)
PLAIN = partial(SGD, lr=0.1)


def sorted_clients() -> FederatedData:
    """Makes clients whose examples are sorted by label, as files of a folder per class are."""
    rng, total = torch.Generator().manual_seed(0), sum(SIZES)
    inputs = torch.rand(total, *SHAPE, generator=rng)
    labels = torch.cat([torch.randint(10, (size,), generator=rng).sort().values for size in SIZES])
    return clients_of(Examples(inputs, labels, 10), SIZES)


class Row(NamedTuple):
    make: Callable[[], LightningModule]
    ways: tuple[str, ...] | None  # ways that may train it, besides `trainer`; None = it is refused
    why: str = ""  # piece of the reason against `loop`, or of the error
    precision: str = "64-true"  # in which it is compared


ROWS: dict[str, Row] = {}


class Own(LightningModule):
    """Linear module with the two methods that a module needs; each row changes one thing."""

    parts: Mapping[str, Callable[[], Any]] = MappingProxyType({})

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.seen: Any = None
        for name, make in self.parts.items():
            setattr(self, name, make())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(inputs.flatten(1))

    def losses(self, batch: Batch) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1], reduction="none") * self.factor(batch)

    def factor(self, batch: Batch) -> Any:
        return 1.0

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


def add(
    ways: str | None, why: str = "", method: str = "", precision: str = "64-true", **parts: Callable[[], Any]
) -> Callable[..., Any]:
    """Returns a function that adds a row: a module, a net of a classification, or a method of `Own`.

    Args:
        ways, why, precision: See `Row`.
        method: Name of the method of `Own` that is replaced; "" = a module or a function that makes one.
        parts: Further attributes of an `Own`, by functions that make them.
    """

    def register(made: Any, name: str = "") -> Any:
        name = name or made.__name__
        assert name not in ROWS, name
        if method:
            make: Any = type("Own", (Own,), {method: made, "parts": parts})
        elif isinstance(made, type) and not issubclass(made, LightningModule):
            make = partial(lambda net: Classification(net(), PLAIN), made)
        else:
            make = made
        ROWS[name] = Row(make, None if ways is None else tuple(ways.split()), why, precision)
        return made

    return register


def trains(ways: str = "chain stack loop", method: str = "", **options: Any) -> Callable[..., Any]:
    return add(ways, "", method, **options)


only_by_trainer, refused = partial(add, ""), partial(add, None)


def classification(*layers: nn.Module) -> LightningModule:
    return Classification(nn.Sequential(*layers), PLAIN)


def of_layers(*layers: nn.Module) -> LightningModule:
    return classification(nn.Flatten(), *layers)


DIFFERS = "its models differ"
DRAWS = "it draws random numbers"
TWICE = "scores the same examples differently the second time"
UNCHANGED = "training leaves the model unchanged"


# Nothing unusual. `test_ways.py` has nets, optimizers and options.
trains()(Own)
trains()(lambda: Classification(MLP(12, SHAPE, 10), partial(SGD, lr=3.0)), "a large rate")
trains()(lambda: Classification(MLP(12, SHAPE, 10), partial(SGD, lr=0.1, fused=True)), "a fused optimizer")
only_by_trainer("optimizer LBFGS")(lambda: Classification(MCLR(SHAPE, 10), partial(torch.optim.LBFGS, lr=0.1)), "LBFGS")


@trains(method="factor")
def remembers_its_last_batch_and_makes_a_constant_at_first_use(self, batch):
    self.seen = batch[0].detach()
    if not hasattr(self, "ones"):
        self.ones = torch.ones(10, dtype=batch[0].dtype)
    return self.ones[0]


@only_by_trainer(DIFFERS, "factor")
def is_pulled_towards_its_first_weights(self, batch):
    if self.seen is None:
        self.seen = self.fc.weight.detach().clone()
    return 1 + (self.fc.weight - self.seen).square().sum()


@trains(method="training_step", accuracy=lambda: MulticlassAccuracy(10))
def logs_a_metric(self, batch, batch_idx):
    self.accuracy(self(batch[0]), batch[1])
    self.log("accuracy", self.accuracy)
    return {"loss": self.losses(batch).mean()}


trains(method="training_step")(lambda self, batch: self.losses(batch).mean(), "a step without an index")
trains(method="configure_optimizers")(lambda self: {"optimizer": SGD(self.parameters(), lr=0.1)}, "in a dictionary")


# Progress of a Trainer
only_by_trainer("it reads self.current_epoch", "factor")(lambda self, batch: 1 / (1 + self.current_epoch), "by epoch")


@only_by_trainer("it reads self.trainer", "factor")
def reads_trainer_if_there_is_one(self, batch):
    try:
        return 1 / (1 + self.trainer.max_epochs)
    except RuntimeError:
        return 1.0


class Inner(LightningModule):
    def forward(self, inputs):
        return inputs / (1 + self.global_step)


only_by_trainer("it reads self.global_step", "forward", inner=Inner)(
    lambda self, inputs: self.inner(self.fc(inputs.flatten(1))), "reads global_step in a part"
)


def step_times(factor: Callable[[Own, int], float]) -> Callable[..., Tensor]:
    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean() * factor(self, batch_idx)

    return training_step


refused("use the Trainer only in training_step", "factor")(
    lambda self, batch: 1 / self.trainer.num_training_batches, "scores by its trainer"
)
for name, factor, why in (  # factors of the loss in a step
    ("a late epoch", lambda self, index: 2 if self.current_epoch >= 5 else 1, "it reads self.current_epoch"),
    ("index or 1", lambda self, index: 1 / (index or 1), DIFFERS),
    ("index 10", lambda self, index: 2 if index == 10 else 1, DIFFERS),
    ("index 7,000", lambda self, index: 2 if index == 7_000 else 1, ""),  # after the tenth mini-batch: as documented
):
    add("" if why else "chain stack loop", why, method="training_step")(step_times(factor), name)
only_by_trainer("it reads self.trainer|is not attached to a `Trainer`", "configure_optimizers")(
    lambda self: SGD(self.parameters(), lr=1 / self.trainer.max_epochs), "asks in its optimizer"
)


# What earlier steps have left
@refused(TWICE, "factor")
def counts(self, batch):
    self.seen = (self.seen or 0) + 1
    return 1 / self.seen


@only_by_trainer(DIFFERS, "factor")
def compares_with_the_batch_before_the_last(self, batch):
    self.seen = [*(self.seen or []), batch[0].mean().detach()][-3:]
    return 1 + (self.seen[0] - self.seen[-1]).square() * (len(self.seen) == 3)


@only_by_trainer(DIFFERS, "factor")
def compares_with_the_weights_before(self, batch):
    """These differ between clients that follow each other."""
    now = self.fc.weight.detach().square().sum()
    last, self.seen = now if self.seen is None or not self.training else self.seen, now
    return 1 + (last - now).square()


@trains("chain loop", "factor")
def keeps_the_best(self, batch):
    mean = float(batch[0].mean())
    self.seen = mean if self.seen is None else min(self.seen, mean)
    return 1.0


def counts_in_a_buffer(self, batch):
    self.steps = self.steps + 1
    return 1.0


for name, ways, buffer in (
    ("hidden buffer", "chain stack loop", lambda: nn.Buffer(torch.zeros(()), persistent=False)),
    ("hidden buffer of integers", "chain stack loop", lambda: nn.Buffer(torch.tensor(0), persistent=False)),
    ("buffer in the row", "loop", lambda: nn.Buffer(torch.zeros(()))),
):
    trains(ways, "factor", steps=buffer)(counts_in_a_buffer, name)


@add("chain", "changes the frozen parameter teacher.weight")  # in a loop, evaluation would share the changed teacher
class Teacher(Own):
    """Module with a moving average of its own weights, like a mean teacher."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(64, 10).requires_grad_(False)
        self.teacher.load_state_dict(self.fc.state_dict())

    def factor(self, batch):
        for mine, own in zip(self.teacher.parameters(), self.fc.parameters(), strict=True):
            if self.training:
                mine.mul_(0.9).add_(own.detach(), alpha=0.1)
        return 1.0


refused(TWICE, "factor", held=lambda: itertools.count(1))(lambda self, batch: 1 / next(self.held), "an iterator")
refused(TWICE, "factor", rng=lambda: torch.Generator().manual_seed(0))(
    lambda self, batch: 1 + torch.rand((), generator=self.rng), "a generator in scores"
)
only_by_trainer("it has a random generator of its own", "factor", rng=lambda: random.Random(0))(
    lambda self, batch: 5.0 if self.training and self.rng.random() < 0.02 else 1.0, "a generator in training"
)


# BatchNorm whose statistics are means over all steps, which it counts in a tensor outside of the row
only_by_trainer(DIFFERS)(
    lambda: of_layers(nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 10)), "momentum None"
)


@trains("stack loop", "train", fc=lambda: nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10)))
def keeps_its_batch_norm_in_evaluation_mode(self, mode=True):
    nn.Module.train(self, mode)
    self.fc[0].eval()
    return self


@refused("the same fit gives other models the second time")
class InTheClass(Own):
    calls = 0

    def factor(self, batch):
        type(self).calls += self.training
        return min(1.0, type(self).calls / 100)


DRAWN: dict[str, Callable[[], Any]] = {
    "PyTorch": lambda: torch.rand(()),
    "Python": random.random,
    "NumPy": lambda: np.random.rand(),
}
for name, draw in DRAWN.items():  # seldom: one mini-batch in fifty would count five times
    only_by_trainer(DRAWS, "factor")(
        lambda self, batch, draw=draw: 5.0 if self.training and draw() < 0.02 else 1.0, f"draws by {name}"
    )


only_by_trainer(DRAWS, "forward")(lambda self, inputs: self.fc(dropout(inputs.flatten(1), 0.5, True)), "dropout always")
refused(
    "another model, or scores differently, when it is built again from the same seed.*default_rng",
    "forward",
    shift=lambda: nn.Buffer(torch.from_numpy(np.random.default_rng().normal(size=10)).float()),
)(lambda self, inputs: self.fc(inputs.flatten(1)), "a generator without a seed")


def before_losses(change: Callable[[Own, Batch], object]) -> Callable[[], LightningModule]:
    """Makes a module that changes something before each of its losses."""

    def losses(self, batch):
        with torch.no_grad():
            change(self, batch)
        return Own.losses(self, batch)

    return type("Own", (Own,), {"losses": losses})


trains("loop")(before_losses(lambda self, batch: self.fc.weight.clamp_(-0.05, 0.05)), "clips weights")
# where these few steps do not take them
trains("loop")(before_losses(lambda self, batch: self.fc.weight.clamp_(-2, 2)), "clips weights far away")
trains("loop")(before_losses(lambda self, batch: batch[0].clamp_(max=0.7)), "clips inputs")
trains("loop")(before_losses(lambda self, batch: batch[1].clamp_(max=8)), "clips labels")
refused(TWICE)(before_losses(lambda self, batch: batch[0].mul_(2)), "scales inputs")
only_by_trainer("does not require grad")(
    before_losses(lambda self, batch: self.fc.bias.requires_grad_(False)), "freezes in its losses"
)


# Optimizers with something attached
@only_by_trainer("something is attached to the optimizer", "configure_optimizers")
def attaches_a_hook_that_acts_after_more_steps_than_these(self):
    optimizer, count = SGD(self.parameters(), lr=0.1), itertools.count()
    optimizer.register_step_post_hook(lambda *given: self.fc.weight.data.zero_() if next(count) > 100 else None)
    return optimizer


class Decaying(SGD):
    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.5
        return result


def scheduled(self):
    optimizer = SGD(self.parameters(), lr=0.1)
    return [optimizer], [StepLR(optimizer, 1)]


for name, configure, why in (
    ("a subclass of SGD", lambda self: Decaying(self.parameters(), lr=0.1), "optimizer Decaying"),
    ("a scheduler", scheduled, "the scheduler StepLR"),
    ("a bias alone", lambda self: SGD([self.fc.bias], lr=0.1), "does not train all parameters"),
):
    only_by_trainer(why, "configure_optimizers")(configure, name)
refused(UNCHANGED, "configure_optimizers")(lambda self: SGD(self.parameters(), lr=0.0), "a rate of 0")


class Manual(Own):
    """Module that optimizes by itself, by `times` steps for each batch."""

    times = 1

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers] * self.times:
            optimizer.zero_grad()
            loss = self.losses(batch).mean()
            self.manual_backward(loss)
            optimizer.step()
        return loss


def two_optimizers(self):
    return SGD([self.fc.weight], lr=0.1), SGD([self.fc.bias], lr=0.2)


trains()(Manual)
only_by_trainer(DIFFERS)(type("ManualTwice", (Manual,), {"times": 2}))
only_by_trainer("does not return one plain optimizer")(
    type("TwoOptimizers", (Manual,), {"configure_optimizers": two_optimizers})
)


STEPS: dict[str, Callable[..., Any]] = {
    "no loss without the labels 0 and 1": lambda self, batch, batch_idx: (
        self.losses(batch).mean() if (batch[1] < 2).any() else None
    ),
    "smoothed labels": lambda self, batch, batch_idx: cross_entropy(self(batch[0]), batch[1], label_smoothing=0.1),
    "a penalty": lambda self, batch, batch_idx: self.losses(batch).mean() + 0.1 * self.fc.weight.square().sum(),
}
for name, step in STEPS.items():
    only_by_trainer(DIFFERS, "training_step")(step, f"step of {name}")


# Hooks, in the class, assigned to the object, or by callbacks
only_by_trainer("hook on_train_epoch_end", "on_train_epoch_end")(lambda self: None, "a hook")
only_by_trainer("hook clip_gradients", "clip_gradients")(
    lambda self, optimizer, *rest, **named: nn.utils.clip_grad_norm_(self.parameters(), 5.0), "clips by itself"
)


only_by_trainer("hook on_train_batch_end", "factor", on_train_batch_end=lambda: lambda *given, **named: None)(
    lambda self, batch: 1.0, "an assigned hook"
)
only_by_trainer("hook configure_callbacks", "configure_callbacks")(lambda self: [], "callbacks of its own")


for name in ("setup", "configure_model", "prepare_data"):
    refused(f"has the hook {name}, ", name)(lambda self, stage=None: setattr(self, "scale", 10.0), f"hook {name}")


# Losses that depend on each other, have a fixed type, or take gradients
trains("loop", "factor")(lambda self, batch: 1 + batch[0].mean(), "a factor of the batch")


@trains("loop", precision="32-true", method="losses")
def computes_in_bfloat16(self, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = self(batch[0])
    return cross_entropy(logits.float(), batch[1], reduction="none")


trains("stack loop", precision="32-true", method="losses")(
    lambda self, batch: cross_entropy(self(batch[0]).half().float(), batch[1], reduction="none"),
    "losses in half precision",
)


trains("stack loop", "forward", precision="32-true", matrix=lambda: torch.eye(64) * 1.5)(
    lambda self, inputs: self.fc(inputs.flatten(1) @ self.matrix), "a float32 matrix in an attribute"
)


def penalty(self, batch):
    """Adds the squared gradient of the inputs."""
    inputs = batch[0].clone().requires_grad_()
    losses = cross_entropy(self(inputs), batch[1], reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), inputs, create_graph=True)
    return losses + gradient.flatten(1).square().sum(1)


trains("loop", "losses")(torch.enable_grad()(penalty), "a gradient that is enabled")
refused("scores are computed without gradients", "losses")(penalty, "a gradient")


@only_by_trainer("has no gradient|does not require grad")
class DetachedLosses(Own):
    def losses(self, batch):
        return super().losses(batch).detach()

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1])


refused(UNCHANGED, "losses")(
    lambda self, batch: cross_entropy(self(batch[0]).detach() + 0 * self.fc.bias.sum(), batch[1], reduction="none"),
    "detached features",
)


# a layer that no loss uses, which weight decay in a loop would change
only_by_trainer(DIFFERS, "configure_optimizers", spare=lambda: nn.Linear(3, 3))(
    lambda self: SGD(self.parameters(), lr=0.1, weight_decay=0.1), "a spare layer that decays"
)


@refused("late.weight is trained in a fit, but is not part of the model", "forward")
def makes_a_layer(self, inputs):
    if not hasattr(self, "late"):
        self.late = nn.Linear(10, 10)
    return self.late(self.fc(inputs.flatten(1)))


refused("a copy of the module has the same fc.weight", "__deepcopy__")(lambda self, memo: self, "shares itself")


trains("loop", "forward", embedding=lambda: nn.Embedding(16, 4, sparse=True), fc=lambda: nn.Linear(256, 10))(
    lambda self, inputs: self.fc(self.embedding((inputs.flatten(1) * 15).long()).flatten(1)), "sparse gradients"
)


def attention(dropout: float) -> LightningModule:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
    return classification(nn.Flatten(1, 2), encoder, nn.Flatten(), nn.Linear(64, 10))


trains("stack loop")(lambda: attention(0.0), "attention without dropout")
only_by_trainer(DRAWS)(lambda: attention(0.2), "attention with dropout")
only_by_trainer(DRAWS)(lambda: of_layers(nn.Linear(64, 12), nn.RReLU(), nn.Linear(12, 10)), "RReLU")
trains("loop")(
    lambda: classification(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 10)),
    "InstanceNorm",
)
trains("loop")(
    lambda: of_layers(nn.utils.parametrizations.spectral_norm(nn.Linear(64, 32)), nn.ReLU(), nn.Linear(32, 10)),
    "spectral norm",
)


class Reader(nn.Module):
    """Net that reads the rows of an image, or token ids from them, with a layer of PyTorch."""

    def __init__(self, layer: nn.Module, width: int, tokens: bool = False) -> None:
        super().__init__()
        self.layer, self.fc, self.tokens = layer, nn.Linear(width, 10), tokens

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs[:, 0]
        if self.tokens:
            found = self.layer((rows.flatten(1) * 11.9).long())
            return self.fc(found.mean(1) if found.dim() == 3 else found)
        return self.fc(self.layer(input=rows, hx=None)[0][:, -1])  # the names of PyTorch's arguments


class OwnGRU(nn.GRU):
    """User's subclass of GRU, whose forward may do anything."""

    def forward(self, *given: Any, **named: Any) -> Any:
        outputs, last = super().forward(*given, **named)
        return outputs * 2, last


def hooked_gru() -> nn.Module:
    layer = nn.GRU(8, 3, batch_first=True)
    layer.register_forward_hook(lambda module, given, outputs: (outputs[0] * 2, outputs[1]))
    return layer


LAYERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "RNN": (partial(nn.RNN, 8, 3, batch_first=True), {"width": 3}, "loop"),
    "GRU": (partial(nn.GRU, 8, 3, batch_first=True), {"width": 3}, "stack loop"),
    "own GRU": (partial(OwnGRU, 8, 3, batch_first=True), {"width": 3}, "loop"),
    "GRU with a hook": (hooked_gru, {"width": 3}, "loop"),
    "GRU with dropout": (partial(nn.GRU, 8, 3, 2, batch_first=True, dropout=0.2), {"width": 3}, ""),
    "projected LSTM": (partial(nn.LSTM, 8, 3, batch_first=True, proj_size=2), {"width": 2}, "loop"),
    "max_norm": (partial(nn.Embedding, 12, 3, max_norm=50.0), {"width": 3, "tokens": True}, "loop"),
    "by frequency": (partial(nn.Embedding, 12, 3, scale_grad_by_freq=True), {"width": 3, "tokens": True}, "loop"),
    "EmbeddingBag": (partial(nn.EmbeddingBag, 12, 3), {"width": 3, "tokens": True}, "stack loop"),
}
for name, (layer, given, ways) in LAYERS.items():
    make = partial(lambda layer, given: Classification(Reader(layer(), **given), PLAIN), layer, given)
    add(ways, "" if ways else DRAWS)(make, name)


# Layers that are not registered, or not copied
NOT_OWN = r"depend on a parameter of shape .* not part of the module, .* neither trained nor sent"


class Hidden(nn.Module):
    """Net with a layer that is kept in a form that PyTorch does not register."""

    def __init__(self, form: Callable[[nn.Linear], Any], find: Callable[[Any], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.hidden, self.find, self.last = form(nn.Linear(64, 32)), find, nn.Linear(32, 10)

    def forward(self, inputs):
        return self.last(self.find(self.hidden)(inputs.flatten(1)).relu())


for name, form, find, why in (
    ("list", lambda layer: [layer], lambda held: held[0], NOT_OWN),
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


@trains()
class ByMethod(Linear):
    """Refers to its layers by a method, which copies bind to themselves, and by the arguments of a hook."""

    def __init__(self):
        super().__init__()
        self.head = self.apply_layer
        self.fc1.register_forward_hook(lambda layer, given, outputs: outputs + 0 * layer.bias)

    def apply_layer(self, features):
        return self.fc1(features)

    def forward(self, inputs):
        return self.head(inputs.flatten(1))


@refused("computed with other layers than the module's own")
class ByLambda(ByMethod):
    """A lambda that refers to the original module, so that a copy computes with the original's layer."""

    def __init__(self):
        super().__init__()
        self.head = lambda features: self.fc1(features)


# What a net returns or raises
class Returns(Linear):
    def __init__(self, form: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.form = form

    def forward(self, inputs: Tensor) -> Any:
        return self.form(super().forward(inputs))


for name, form, why in (
    ("an object", lambda outputs: SimpleNamespace(logits=outputs), "a SimpleNamespace"),
    ("None", lambda outputs: None, "None"),
    ("another width", lambda outputs: outputs @ torch.ones(8, 10).to(outputs), "gets 10 numbers .* takes 8"),
    ("an error", lambda outputs: {}["x"], r"KeyError: 'x' \(in .*test_modules.py, line \d+"),
    ("joined examples", lambda outputs: outputs.reshape(-1, 5), "20 outputs for 10 inputs"),
    ("too few classes", lambda outputs: outputs[:, :2], "num_labels"),
):
    refused(why)(partial(lambda form: Classification(Returns(form), PLAIN), form), f"returns or raises {name}")


# What a copy or a row cannot hold, and methods of other forms
def with_part(make: Callable[[Any], Any]) -> LightningModule:
    net = Linear()
    net.part = make(net)
    return Classification(net, PLAIN)


def with_gradient_hook(name: str, hook: Callable[[Any], object], frozen: bool = False) -> LightningModule:
    net = Linear()
    getattr(net.fc1.weight, name)(hook)
    net.fc1.weight.requires_grad_(not frozen)
    return Classification(net, PLAIN)


def weight_normed() -> LightningModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about this setting
        return of_layers(nn.utils.weight_norm(nn.Linear(64, 10)))


trains()(lambda: with_gradient_hook("register_hook", lambda gradient: None, True), "hook of a frozen weight")
REFUSED: dict[str, tuple[Callable[[], LightningModule], str]] = {
    "hook on a gradient": (
        lambda: with_gradient_hook("register_hook", lambda gradient: gradient.clamp(-1, 1)),
        "net.fc1.weight has a hook on its gradient .*on_before_optimizer_step",
    ),
    "hook after accumulation": (
        lambda: with_gradient_hook("register_post_accumulate_grad_hook", lambda weight: weight.grad.zero_()),
        "net.fc1.weight has a hook on its gradient",
    ),
    "complex parameter": (
        lambda: with_part(lambda net: nn.Parameter(torch.ones(2, dtype=torch.complex64))),
        "net.part is complex, .*view_as_real",
    ),
    "sparse buffer": (
        lambda: with_part(lambda net: nn.Buffer(torch.eye(3).to_sparse())),
        "net.part is sparse, .*to_dense",
    ),
    "lazy layer": (lambda: of_layers(nn.LazyLinear(10)), r"net.1 \(LazyLinear\) has no weights .*sizes"),
    "weight_norm": (weight_normed, r"net.1 \(Linear\) cannot be copied.*parametrizations.weight_norm"),
    "script": (
        lambda: Classification(torch.jit.script(nn.Linear(64, 10)), PLAIN),
        r"net \(RecursiveScriptModule\) is compiled .*before torch.jit.script",
    ),
}
for name, (make, why) in REFUSED.items():
    refused(why)(make, name)

refused("has no `losses", "losses")((), "a list of losses")
trains(method="state_dict")(lambda self: LightningModule.state_dict(self), "a state_dict of its own")
# not the method of our tasks, which takes no arguments
trains(method="penalty")(lambda self, outputs: outputs.square().sum(), "a penalty of outputs")


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return sorted_clients()


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ROWS)
def test_a_module_is_trained_as_by_a_trainer_or_refused_in_one_line(name: str, data: FederatedData):
    row, state = ROWS[name], torch.get_rng_state()
    refusal, found = judge(row.make, data, LOCAL)
    if row.ways is None:
        assert re.search(row.why, str(refusal)), refusal
        assert "\n" not in str(refusal)
        return
    assert refusal is None
    assert torch.equal(torch.get_rng_state(), state)
    against = {way: reason for way, reason in found.items() if not why_absent(way)}
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
