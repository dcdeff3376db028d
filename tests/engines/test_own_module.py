"""Tests user modules: which are refused and why, and that the others train as with a Trainer."""

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning import LightningModule
from ragged import PLANS, SGD, fitted, ragged_data, reasons_against, rows_of, task
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.testing import assert_close

from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_module import require_module
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.fingerprint import digest_of_constants
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
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


def obstacles_of(make: Callable[[], nn.Module]) -> list[str]:
    return reasons_against(task(make))


class Masked(Linear):
    """Net with causal self-attention over the rows of an image."""

    def __init__(self, fill: float = -inf, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((8, 8), fill), 1), persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1, 2)
        return self.fc(((rows @ rows.mT + self.mask).softmax(-1) @ rows).flatten(1))


@pytest.mark.parametrize("plan", ["trainer", *STACKS])
def test_a_constant_that_is_not_finite_is_not_a_divergence_and_not_in_a_row(plan: str):
    kept, _ = fitted(task(Masked), PLANS[plan])
    left, engine = fitted(task(partial(Masked, persistent=False)), PLANS[plan])
    assert engine.layout.num_columns == 650
    assert torch.equal(rows_of(kept), rows_of(left))
    assert kept.trained.sum() == 5  # all clients with data have trained


class Observer(Linear):
    """Net that stores the lowest input seen in training."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor(start))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.lowest = torch.minimum(self.lowest, inputs.min())
        return super().forward(inputs)


@pytest.mark.parametrize("plan", ["trainer", "plain loop"])
def test_buffer_that_is_unset_until_training_sets_it_is_refused(plan: str):
    engine = build_engine(task(partial(Observer, inf)), PLANS[plan], 0, LocalTraining())
    with pytest.raises(InputError, match=r"the buffer net.lowest starts with a value that is not finite"):
        require_trainable(engine, ragged_data())
    for net in (partial(Observer, 1.0), Masked):
        require_trainable(build_engine(task(net), PLANS[plan], 0, LocalTraining()), ragged_data())


@pytest.mark.parametrize("fill", [-inf, inf, nan])
def test_buffer_that_is_not_finite_has_no_column(fill: float):
    layout = ParameterLayout.of(Masked(fill))
    assert [slot.name for slot in layout.slots] == ["fc.weight", "fc.bias"]
    assert [slot.name for slot in ParameterLayout.of(Masked(-1e9)).slots] == ["fc.weight", "fc.bias", "mask"]


class Tempered(Linear):
    """Net that divides by a learnt temperature, and adds a constant."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full(shape, 1.5))
        self.register_buffer("shift", torch.full(shape, 0.25))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) / self.temperature + self.shift * inputs.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        partial(torch.optim.Adam, lr=0.01),
    ],
    ids=["momentum", "adam"],
)
@pytest.mark.parametrize("plan", STACKS)
def test_tensors_without_axes_are_stacked_like_others(plan: str, optimizer: Callable[..., torch.optim.Optimizer]):
    assert obstacles_of(Tempered) == []
    local = LocalTraining(2, 10, gradient_clip=1.0)
    double = Plan(PLANS[plan].engine, precision="64-true", lanes=PLANS[plan].lanes)
    with_axis, without, by_trainer = (
        rows_of(fitted(task(make, optimizer), engine, local=local, prox=0.1)[0])
        for make, engine in (
            (partial(Tempered, 1), double),
            (Tempered, double),
            (Tempered, Plan("trainer", precision="64-true")),
        )
    )
    assert torch.equal(without, with_axis)
    assert_close(without, by_trainer, rtol=0, atol=1e-12)


def test_gradients_at_tensors_without_axes_are_the_trainers():
    found = []
    for plan in (Plan("trainer", precision="64-true"), Plan("stack", precision="64-true", lanes=4)):
        engine = build_engine(task(Tempered), plan, 5, LocalTraining())
        found.append(engine.at(0, ragged_data()).gradients(engine.initial(0), torch.tensor([1, 2, 4])))
    assert_close(found[1], found[0], rtol=0, atol=1e-12)
    assert (found[0][:, 0] != 0).all()


def hooked(name: str) -> nn.Module:
    net = Linear()
    getattr(net.fc.weight, name)(lambda *given: None)
    return net


def complex_net() -> nn.Module:
    net = Linear()
    net.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    return net


def complex_constant() -> nn.Module:
    net = Linear()
    net.register_buffer("turn", torch.ones(2, dtype=torch.complex64))
    return net


def sparse_net() -> nn.Module:
    net = Linear()
    net.register_buffer("graph", torch.eye(3).to_sparse())
    return net


def derived() -> nn.Module:
    net = Linear()
    net.twice = net.fc.weight * 2
    return net


def weight_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about this setting
        return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 10)))


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("plan", [Plan("trainer"), Plan("loop")], ids=["trainer", "loop"])
@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: hooked("register_hook"), r"net.fc.weight has a hook on its gradient .*on_before_optimizer_step"),
        (lambda: hooked("register_post_accumulate_grad_hook"), r"net.fc.weight has a hook on its gradient"),
        (complex_net, r"net.turn is complex, .*view_as_real"),
        (complex_constant, r"net.turn is complex, .*view_as_real"),
        (sparse_net, r"net.graph is sparse, .*to_dense"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), r"net.1 \(LazyLinear\) has no weights .*sizes"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.LazyBatchNorm1d()),
            r"net.2 \(LazyBatchNorm1d\) has no weights",
        ),
        (weight_normed, r"net.1 \(Linear\) cannot be copied.*parametrizations.weight_norm"),
        (lambda: torch.jit.script(Linear()), r"net \(RecursiveScriptModule\) is compiled .*before torch.jit.script"),
        (
            lambda: nn.Sequential(nn.Flatten(), torch.jit.trace(nn.Linear(64, 10), torch.zeros(2, 64))),
            r"net.1 \(TopLevelTracedModule\) is compiled by torch.jit",
        ),
        (derived, r"net \(Linear\) cannot be copied.*in forward \(RuntimeError: Only Tensors"),
    ],
)
def test_what_a_copy_or_a_row_cannot_hold_is_refused_by_name(net: Callable[[], nn.Module], message: str, plan: Plan):
    with pytest.raises(InputError, match=message) as caught:
        build_engine(task(net), plan, 0, LocalTraining())
    assert "\n" not in str(caught.value)


def test_hook_on_a_frozen_parameter_is_accepted():
    net = hooked("register_hook")
    net.fc.weight.requires_grad_(False)
    require_module(Classification(net, SGD))


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


class CountsScores(Linear):
    """Net whose outputs depend on how often it has been called, also in evaluation."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.calls, self.weight = 0, weight

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs) / (1 + self.weight * self.calls)


@pytest.mark.parametrize("plan", ["trainer", "plain loop"])
def test_scores_that_depend_on_what_was_scored_before_are_refused(plan: str):
    engine = build_engine(task(CountsScores), PLANS[plan], 0, LocalTraining())
    with pytest.raises(
        InputError, match=r"Classification scores .* differently .*, because net.calls changes: .*training"
    ):
        require_trainable(engine, ragged_data())
    require_trainable(build_engine(task(partial(CountsScores, 0.0)), PLANS[plan], 0, LocalTraining()), ragged_data())


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
        (lambda out: SimpleNamespace(loss=None, logits=out), "returned a SimpleNamespace; .*, such as output.logits"),
        (lambda out: ModelOutput(hidden=out, logits=out), "returned a ModelOutput; .*, such as output.logits"),
        (lambda out: {"scores": out}, r"returned a dict; .*, such as output\['scores'\]"),
        (lambda out: (out, out), r"returned a tuple; .*, such as output\[0\]"),
        (lambda out: [out], r"returned a list; .*, such as output\[0\]"),
        (lambda out: Pair(out, out), r"returned a Pair; .*, such as output\[0\]"),
        (lambda out: out @ torch.ones(8, 10), r"; a linear layer gets 10 numbers from each example, but takes 8$"),
        (lambda out: out.mean(1), r"; the net returned the shape \(10,\) for 10 inputs: give it an output for each la"),
        (lambda out: None, "returned None; return a tensor$"),
        (lambda out: 3.5, "returned a float; return a tensor$"),
        (fail(KeyError("x")), r"cannot take the data: .*\(KeyError: 'x' \(in .*test_own_module.py, line \d+\)\)"),
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


class Unregistered(nn.Module):
    def __init__(self, form: Callable[[nn.Linear], object]) -> None:
        super().__init__()
        layer = nn.Linear(64, 32)
        self.hidden, self.last = form(layer), nn.Linear(32, 10)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            lambda layer: [layer, nn.ReLU()],
            "net.hidden is a plain list, .* neither trained nor sent; make it an nn.ModuleL",
        ),
        (lambda layer: (layer,), "net.hidden is a plain tuple, .*; make it an nn.ModuleList$"),
        (lambda layer: [[nn.ReLU()], [layer]], "net.hidden is a plain list, .*; make it an nn.ModuleList$"),
        (lambda layer: {"one": layer}, "net.hidden is a plain dict, .*; make it an nn.ModuleDict$"),
        (lambda layer: [layer.weight], "net.hidden is a plain list, .*; make it an nn.ParameterList$"),
    ],
)
def test_trainable_layers_that_pytorch_does_not_register_are_refused(form: Callable[[nn.Linear], object], message: str):
    with pytest.raises(InputError, match=message):
        require_module(Classification(Unregistered(form), SGD))


@pytest.mark.parametrize(
    "form",
    [
        lambda layer: nn.ModuleList([layer]),
        lambda layer: [layer.requires_grad_(False)],  # such as a teacher that is hidden on purpose
        lambda layer: [nn.ReLU(), 3, "relu"],
    ],
)
def test_registered_frozen_and_stateless_layers_in_lists_are_accepted(form: Callable[[nn.Linear], object]):
    require_module(Classification(Unregistered(form), SGD))


def test_a_list_of_registered_layers_is_accepted():
    net = Unregistered(lambda layer: layer)
    net.order = [net.hidden, net.last]
    require_module(Classification(net, SGD))


def test_dropout_of_a_trained_part_in_evaluation_mode_is_noted():
    def net(p: float) -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 10), nn.Dropout(p)).eval())

    def engine_of(make: Callable[[], nn.Module]) -> Engine:
        return build_engine(task(make), PLANS["plain loop"], 0, LocalTraining())

    def frozen() -> nn.Sequential:
        return nn.Sequential(net(0.5).requires_grad_(False), nn.Linear(10, 10))

    with pytest.warns(Notice, match=r"^net\.1 \(Sequential\) is in evaluation mode, .* its dropout drops nothing"):
        require_trainable(engine_of(lambda: net(0.5)), ragged_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        require_trainable(engine_of(lambda: net(0.0)), ragged_data())
        require_trainable(engine_of(frozen), ragged_data())


def test_a_dropout_that_is_called_twice_is_noted():
    class Twice(Linear):
        def __init__(self, dropouts: int, p: float = 0.5) -> None:
            super().__init__()
            self.drop = nn.ModuleList([nn.Dropout(p) for _ in range(dropouts)])

        def forward(self, inputs: Tensor) -> Tensor:
            return self.drop[-1](self.fc(self.drop[0](input=inputs.flatten(1))))

    def engine_of(make: Callable[[], nn.Module]) -> Engine:
        return build_engine(task(make), PLANS["plain loop"], 0, LocalTraining())

    with pytest.warns(
        Notice, match=r"^net\.drop\.0 \(nn\.Dropout\) is called 2 times in a forward pass, and drops the same"
    ):
        require_trainable(engine_of(lambda: Twice(1)), ragged_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        require_trainable(engine_of(lambda: Twice(2)), ragged_data())
        require_trainable(engine_of(lambda: Twice(1, p=0.0)), ragged_data())


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


def test_random_outputs_in_evaluation_mode_are_noted():
    class Always(nn.Module):
        def __init__(self, training: bool) -> None:
            super().__init__()
            self.last, self.mode = nn.Linear(64, 10), training

        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.dropout(self.last(inputs.flatten(1)), 0.5, self.mode or self.training)

    def of(training: bool) -> Engine:
        return build_engine(task(lambda: Always(training)), Plan(engine="trainer"), 0, LocalTraining())

    with pytest.warns(Notice, match=r"differ from call to call .*training=self\.training"):
        require_trainable(of(True), ragged_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        require_trainable(of(False), ragged_data())


def test_outputs_that_depend_on_the_rest_of_the_batch_are_noted():
    def returns(last: Callable[[], nn.Module]) -> Engine:
        make = task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), last()))
        return build_engine(make, PLANS["plain loop"], 0, LocalTraining())

    for last in (partial(nn.BatchNorm1d, 10, track_running_stats=False), partial(nn.LogSoftmax, 0)):
        with pytest.warns(Notice, match="depends on the other examples of its batch in evaluation mode, too"):
            require_trainable(returns(last), ragged_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        for last in (partial(nn.BatchNorm1d, 10), partial(nn.LayerNorm, 10), partial(nn.LogSoftmax, -1)):
            require_trainable(returns(last), ragged_data())


def test_a_classification_that_trains_without_its_forward_is_accepted():
    class Own(Classification):
        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

        def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            return self.losses(batch), self.net(batch[0]).argmax(-1) == batch[1]

        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(inputs)}

    def make() -> Classification:
        return Own(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), SGD)

    require_trainable(build_engine(make, PLANS["plain loop"], 0, LocalTraining()), ragged_data())


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
    assert reasons_against(make) == ["the scheduler StepLR"]
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


def test_optimizer_that_asks_for_a_trainer_needs_one():
    class Asks(Classification):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.max_epochs)

    make = lambda: Asks(Linear())  # noqa: E731
    assert reasons_against(make) == ["configure_optimizers raises RuntimeError without a Trainer"]


class ByLambda(Linear):
    """Net whose lambda refers to the original module, so that a copy still uses the original's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = lambda features: self.fc(features)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs.flatten(1))


class ByHook(Linear):
    """Net whose hook scales by a parameter of the original module, also in copies."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))
        self.fc.register_forward_hook(lambda layer, given, outputs: outputs * self.scale)


class ByMethod(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))
        self.head = self.scaled
        self.fc.register_forward_hook(lambda layer, given, outputs: outputs + layer.bias)

    def scaled(self, features: Tensor) -> Tensor:
        return self.fc(features) * self.scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs.flatten(1))


@pytest.mark.parametrize("plan", ["trainer", "plain loop"])
@pytest.mark.parametrize("net", [ByLambda, ByHook])
def test_copy_that_computes_with_the_originals_layers_is_refused(net: Callable[[], nn.Module], plan: str):
    engine = build_engine(task(net), PLANS[plan], 0, LocalTraining())
    with pytest.raises(InputError, match=r"a copy of Classification computes different values .* \(a lambda, a hook\)"):
        require_trainable(engine, ragged_data())
    require_trainable(build_engine(task(ByMethod), PLANS[plan], 0, LocalTraining()), ragged_data())


class Unseeded(Linear):
    """Net with a constant drawn without a seed, which cannot be reproduced."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.from_numpy(np.random.default_rng().normal(size=10)).float())


def test_module_that_cannot_be_made_again_is_refused():
    engine = build_engine(task(Unseeded), Plan(), 0, LocalTraining())
    with pytest.raises(InputError, match=r"net.shift of Classification differs .*default_rng"):
        require_trainable(engine, ragged_data())


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
    in_row = Holder(mean=torch.tensor([5.0, 6.0]))
    nn.init.ones_(in_row.fc.weight)
    assert digest(in_row) == digest(Holder())  # values in a row are recorded with the model, not in this digest
