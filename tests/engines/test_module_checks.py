"""Tests errors and notes on users' modules beside the table of `test_modules.py`, and what fits keep."""

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf, nan
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from lightning import LightningModule
from ragged import PLANS, fitted, ragged_data, task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.checkpoint import checkpoint

from lit_cfl.datamodules import ArrayData
from lit_cfl.engines import agreement
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.fingerprint import digest_of_constants
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.errors import DivergedError, InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

STACKS = ("plain loop", "4 lanes")


class Linear(nn.Module):
    """Linear net, of which each subclass changes one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(inputs.flatten(1))


class Masked(Linear):
    """Net with causal self-attention over the rows of an image."""

    def __init__(self, fill: float = -inf, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((8, 8), fill), 1), persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1, 2)
        return self.fc(((rows @ rows.mT + self.mask).softmax(-1) @ rows).flatten(1))


@pytest.mark.parametrize("fill", [-inf, inf, nan])
def test_buffer_that_is_not_finite_has_no_column(fill: float):
    layout = ParameterLayout.of(Masked(fill))
    assert [slot.name for slot in layout.slots] == ["fc.weight", "fc.bias"]
    assert [slot.name for slot in ParameterLayout.of(Masked(-1e9)).slots] == ["fc.weight", "fc.bias", "mask"]


class SeedsItself(Linear):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()


class Zeros(Linear):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@pytest.mark.parametrize("net", [SeedsItself, Zeros])
def test_equal_initial_models_are_noted_once(net: Callable[[], nn.Module]):
    engine = build_engine(task(net), Plan(), 0, LocalTraining())
    engine.initial(0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in (0, 1, 2, 1):
            engine.initial(number)
    assert [line.category for line in said] == [Notice]
    assert "initial models 0 and 1 are equal" in str(said[0].message)


def test_initial_models_that_differ_are_not_noted():
    engine = build_engine(task(Linear), Plan(), 0, LocalTraining())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = [engine.initial(number) for number in (0, 1, 2, 0)]
    assert torch.equal(models[0], models[3])
    assert all(not torch.equal(one, other) for one, other in pairwise(models))


class MonteCarlo(Linear):
    """Net that applies dropout to its inputs in evaluation, too."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(dropout(inputs.flatten(1), 0.5, True))


def test_what_a_module_draws_in_evaluation_follows_from_the_seed_alone():
    data, index = ragged_data(), torch.arange(80)
    found = []
    for seed, before in ((5, 0), (5, 7), (6, 0)):
        engine = build_engine(task(MonteCarlo), Plan(), seed, LocalTraining())
        models = torch.stack([torch.linspace(-1, 1, 650), torch.linspace(1, -1, 650)])
        torch.rand(before)
        state = torch.get_rng_state()
        losses = engine.losses_of_all(models, index, data)
        found.append((losses, engine.outcomes(models[0], index, data).losses))
        assert torch.equal(torch.get_rng_state(), state)  # the global generator is unchanged
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][0][0], found[0][1])  # all models are evaluated with the same draws
    assert not torch.equal(found[0][0], found[2][0])


class Normed(Linear):
    """Net that divides each input by its norm: 0/0 for a black image."""

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return self.fc(flat / flat.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("plan", ["trainer", *STACKS])
def test_loss_that_is_no_number_before_training_is_not_blamed_on_the_learning_rate(plan: str):
    data = ragged_data()
    data.examples.inputs[data.train[2][5]] = 0  # one example of client 2's 17
    example = int(data.train[2][5])
    with pytest.raises(DivergedError) as caught:
        fitted(task(Normed), PLANS[plan], data=data)
    said = f"client 2 diverged in round 3 before it trained: the loss of its example {example} is nan (1 of its 17"
    assert str(caught.value).startswith(said)
    assert "lower" not in str(caught.value)


class Returns(Linear):
    def __init__(self, form: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.form = form

    def forward(self, inputs: Tensor) -> object:
        return self.form(super().forward(inputs))


Pair = namedtuple("Pair", ["outputs", "hidden"])


class ModelOutput(OrderedDict):
    """Dictionary whose values are also attributes, like outputs of Hugging Face's nets."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


def fail(error: Exception) -> Callable[[Tensor], object]:
    def form(outputs: Tensor) -> object:
        raise error

    return form


@pytest.mark.parametrize("plan", ["trainer", "plain loop"])
@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda out: SimpleNamespace(logits=out), "returned a SimpleNamespace; return a tensor$"),
        (lambda out: (out, out), "returned a tuple; return a tensor$"),
        (lambda out: out @ torch.ones(8, 10), r"; a linear layer gets 10 numbers from each example, but takes 8$"),
        (lambda out: out.mean(1), r"; the net returned the shape \(10,\) for 10 inputs: give it an output for each la"),
        (lambda out: None, "returned None; return a tensor$"),
        (lambda out: 3.5, "returned a float; return a tensor$"),
        (fail(KeyError("x")), r"cannot take the data: .*\(KeyError: 'x' \(in .*test_module_checks.py, line \d+\)\)"),
        (fail(AttributeError("no head")), r"cannot take the data: .*\(AttributeError: no head \(in "),
        (fail(ZeroDivisionError()), r"cannot take the data: .*\(ZeroDivisionError \(in "),
        (fail(AssertionError("odd")), r"cannot take the data: .*\(AssertionError: odd \(in "),
        (fail(NotImplementedError()), r"cannot take the data: .*\(NotImplementedError \(in "),
        (fail(NameError("y")), r"cannot take the data: .*\(NameError: y \(in "),
    ],
)
def test_what_a_net_returns_or_raises_is_named_in_one_line(form: Callable, message: str, plan: str):
    engine = build_engine(task(partial(Returns, form)), PLANS[plan], 0, LocalTraining())
    with pytest.raises(InputError, match=message) as caught:
        require_trainable(engine, ragged_data())
    assert "\n" not in str(caught.value)


def test_a_convolution_over_the_columns_of_a_table_is_told_to_add_the_channel():
    table = ArrayData(np.arange(80.0).reshape(20, 4) / 80, np.arange(20) % 2, client=np.arange(20) // 10)
    engine = build_engine(
        task(lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2))),
        PLANS["plain loop"],
        0,
        LocalTraining(),
    )
    with pytest.raises(InputError, match=r"inputs is \[n, 4\], and Conv1d takes \[n, 1, 4\]: inputs.unsqueeze\(1\)$"):
        require_trainable(engine, table.federated(0))


def test_a_net_whose_forward_takes_no_inputs_is_refused_in_one_line():
    class Bare(nn.Linear):
        def forward(self) -> None: ...  # type: ignore[override]  # no inputs: the mistake

    engine = build_engine(task(lambda: Bare(64, 10)), PLANS["plain loop"], 0, LocalTraining())
    with pytest.raises(InputError, match=r"the net cannot take the data: .* \(TypeError: .*forward\(\) takes 1 pos"):
        require_trainable(engine, ragged_data())


def test_a_net_that_joins_or_divides_examples_is_told_how_many_outputs_it_returned():
    class Reshapes(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.reshape(-1, 16))

    engine = build_engine(task(lambda: Reshapes(16, 10)), PLANS["plain loop"], 0, LocalTraining())
    with pytest.raises(InputError, match=r"the net returned 40 outputs for 10 inputs, so one of its reshapes joins or"):
        require_trainable(engine, ragged_data())


def test_probabilities_instead_of_logits_are_noted():
    def returns(*last: nn.Module) -> Engine:
        make = task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *last))
        return build_engine(make, PLANS["plain loop"], 0, LocalTraining())

    with pytest.warns(Notice, match="the net returns probabilities .*: leave out the net's last softmax"):
        require_trainable(returns(nn.Softmax(-1)), ragged_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for last in ((), (nn.LogSoftmax(-1),), (nn.Sigmoid(),), (nn.ReLU(),)):
            require_trainable(returns(*last), ragged_data())


def test_a_net_with_fewer_outputs_than_labels_is_told_how_many_it_needs():
    engine = build_engine(
        task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2))), PLANS["plain loop"], 0, LocalTraining()
    )
    with pytest.raises(InputError, match="fewer outputs than there are labels: give its last layer num_labels outputs"):
        require_trainable(engine, ragged_data())


def test_own_module_whose_forward_returns_no_tensor_is_refused():
    class Own(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 10)

        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            return {"logits": self.fc(inputs.flatten(1))}

        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0])["logits"], batch[1], reduction="none")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(InputError, match=r"Own returned type dict; let forward return a tensor.*outcomes"):
        require_trainable(build_engine(Own, Plan(), 0, LocalTraining()), ragged_data())


class Scheduled(Classification):
    """Task that halves its learning rate after each epoch."""

    def __init__(self, form: Callable[..., object]) -> None:
        super().__init__(Linear())
        self.form = form

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return self.form(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))


@pytest.mark.parametrize(
    "form",
    [
        lambda optimizer, scheduler: ([optimizer], [scheduler]),
        lambda optimizer, scheduler: {"optimizer": optimizer, "lr_scheduler": scheduler},
        lambda optimizer, scheduler: {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}},
    ],
)
def test_restart_of_a_scheduler_in_every_fit_is_noted(form: Callable[..., object]):
    local = LocalTraining(3, 10)
    make = partial(Scheduled, form)
    engine = build_engine(make, Plan(), 0, local)
    said = "the scheduler StepLR starts again in every fit of a client, which has 3 epoch"
    with pytest.warns(Notice, match=said):
        require_trainable(engine, ragged_data())


def test_scheduler_starts_again_in_every_fit():
    local, data = LocalTraining(2, 10), ragged_data()
    scheduled, constant = (
        Engine(make, Plan(precision="64-true"), 0, local)
        for make in (
            lambda: Scheduled(lambda optimizer, scheduler: ([optimizer], [scheduler])),
            lambda: Scheduled(lambda optimizer, scheduler: optimizer),
        )
    )
    start, client = scheduled.initial(0)[None], torch.tensor([3])
    once = Budget(1, "epochs")
    rows = [engine.at(0, data).fit(start, client, budget=once).rows for engine in (scheduled, constant, scheduled)]
    assert torch.equal(rows[0], rows[1])  # each fit starts again with the rate of the first epoch
    assert torch.equal(rows[0], rows[2])  # also in the next fit
    both = [engine.at(0, data).fit(start, client).rows for engine in (scheduled, constant)]
    assert not torch.allclose(*both)


def test_what_is_in_no_row_is_in_the_digest_of_constants():
    class Holder(Linear):
        def __init__(self, **changes: object) -> None:
            super().__init__()
            self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
            self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
            self.register_buffer("hidden", torch.zeros(2), persistent=False)
            self.register_buffer("mask", torch.tensor([0.0, -inf]))
            self.register_buffer("mean", torch.zeros(2))
            self.table, self.kept, self.numbers = torch.zeros(2), {"a": [torch.zeros(2)]}, np.zeros(2)
            self.brief = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16), requires_grad=False)
            with torch.no_grad():
                self.fc.weight.zero_()
                self.fc.bias.zero_()
            for name, value in changes.items():
                setattr(self, name, value)

    def digest(net: nn.Module) -> str:
        return digest_of_constants(net, ParameterLayout.of(net))

    changes = {
        "frozen": nn.Parameter(torch.tensor([0.0, 1.0]), requires_grad=False),
        "count": torch.tensor([0, 1]),
        "hidden": torch.tensor([0.0, 1.0]),
        "mask": torch.tensor([-inf, 0.0]),
        "table": torch.tensor([0.0, 1.0]),
        "kept": {"a": [torch.tensor([0.0, 1.0])]},
        "numbers": np.array([0.0, 1.0]),
        "brief": nn.Parameter(torch.tensor([0, 1], dtype=torch.bfloat16), requires_grad=False),
    }
    digests = {digest(Holder(**{name: value})) for name, value in changes.items()}
    assert len(digests | {digest(Holder())}) == len(changes) + 1
    of_names = (digest(Holder(numbers=np.array([f"{n} of 2" for n in (1, 2)], dtype=object))) for _ in range(2))
    assert len({*of_names} | digests) == len(changes) + 1  # by their values, not by where they lie
    in_row = Holder(mean=torch.tensor([5.0, 6.0]))
    nn.init.ones_(in_row.fc.weight)
    assert digest(in_row) == digest(Holder())  # values in a row are recorded with the model, not in this digest


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


class Merging(Classification):
    """Linear module that adds a second weight to the first one when it leaves training, as adapters do."""

    def __init__(self) -> None:
        super().__init__(Linear(), torch.optim.SGD)
        self.up, self.merged = nn.Parameter(torch.zeros(10, 64)), None

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        self.merged = None if mode else (self.net.fc.weight + self.up).detach()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.net.fc.weight + self.up if self.merged is None else self.merged
        return nn.functional.linear(inputs.flatten(1), weight, self.net.fc.bias)

    def losses(self, batch: Batch) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1], reduction="none")

    def outcomes(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.losses(batch), self(batch[0]).argmax(1) == batch[1]


def test_each_model_is_scored_with_its_own_merged_weights():
    engine, data, index = build_engine(Merging, Plan("loop"), 5, LocalTraining()), ragged_data(), torch.arange(6)
    models = torch.stack([engine.initial(0), 2 * engine.initial(1) + 0.1])
    found = engine.outcomes_of_each(models, index // 3, index, data).losses
    batch = data.examples.batch(index)
    of_each = [engine.module(model).losses(batch) for model in models]
    expected = torch.cat([of_each[0][:3], of_each[1][3:]]).detach().double()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(engine.losses_of_all(models, index, data)[0, :3], found[:3])


def test_gradients_arrive_behind_a_checkpoint():
    class Checkpointed(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(64, 64)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = inputs.flatten(1).requires_grad_()
            return super().forward(checkpoint(self.before, hidden, use_reentrant=True))

    class Plain(Checkpointed):
        def forward(self, inputs: Tensor) -> Tensor:
            return Linear.forward(self, self.before(inputs.flatten(1)))

    found, expected = (
        build_engine(task(net), Plan("trainer"), 5, LocalTraining()).at(0, ragged_data())
        for net in (Checkpointed, Plain)
    )
    of_one = torch.tensor([1])
    gradient = found.gradients(found.initial(0), of_one)
    assert gradient.abs().sum() > 0.1
    assert torch.equal(gradient, expected.gradients(expected.initial(0), of_one))
