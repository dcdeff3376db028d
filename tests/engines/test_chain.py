"""Tests that chains train as autograd and PyTorch's optimizers do, with the same bits in any cohort."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from cohorts import chosen, cohort, made, plain_fit
from lightning import LightningModule
from ragged import in_groups
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.data import Examples
from lit_cfl.engines.chain import way as chain_way
from lit_cfl.engines.chain.groups import pad
from lit_cfl.engines.chain.inputs import dual_pays
from lit_cfl.engines.chain.parts import Activation, ChainLayer
from lit_cfl.engines.chain.passes import Arithmetic, run_forward
from lit_cfl.engines.chain.scorer import ChainScorer
from lit_cfl.engines.chain.way import ChainWay
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.scorer import Scorer
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification, Regression

SHAPE = [1, 4, 4]
SIZES = (1, 3, 17, 36, 9, 20, 60, 2, 10)
SGD = partial(torch.optim.SGD, lr=0.1)
LOCAL = LocalTraining(3, 10)
FORMS = {"held": 0, "dual": 1}


class Binary(Classification):
    """User task with binary cross-entropy over two labels, both of which may apply."""

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        outputs = self(batch[0])
        return nn.functional.binary_cross_entropy_with_logits(outputs, batch[1], reduction="none").mean(1)


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 8, bias=False), nn.GELU(),
        nn.Linear(8, 7), nn.Sigmoid(), nn.Linear(7, 6), nn.GELU("tanh"),
        nn.Dropout(0.2), nn.Linear(6, 3),
    )  # fmt: skip


def frozen(*names: str) -> nn.Module:
    net = MLP(12, SHAPE, 3)
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


TASKS: dict[str, Callable[[], LightningModule]] = {
    "linear": lambda: Classification(MCLR(SHAPE, 3), SGD),
    "mlp": lambda: Classification(MLP(12, SHAPE, 3), SGD),
    "groups": lambda: Classification(MLP(12, SHAPE, 3), in_groups),
    "penalty": lambda: Classification(MLP(12, SHAPE, 3), SGD, kernel_l2=0.01),
    "penalty of the last layer": lambda: Classification(MLP(12, SHAPE, 3), in_groups, 0.01, "fc2"),
    "deep": lambda: Classification(deep(), SGD),
    "dropout first": lambda: Classification(nn.Sequential(nn.Dropout(0.3), nn.Flatten(), nn.Linear(16, 3)), SGD),
    "regression": lambda: Regression(MLP(12, SHAPE, 1), SGD),
    "linear regression": lambda: Regression(MCLR(SHAPE, 1), SGD),
    "two binary labels": lambda: Binary(MLP(12, SHAPE, 2), SGD),
    "frozen first weight": lambda: Classification(frozen("fc1.weight"), SGD),
    "frozen biases": lambda: Classification(frozen("fc1.bias", "fc2.bias"), SGD),
    "frozen last layer": lambda: Classification(frozen("fc2.weight", "fc2.bias"), in_groups),
}
LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "regression": lambda classes: classes.double() + 0.1,
    "linear regression": lambda classes: classes.double() + 0.1,
    "two binary labels": lambda classes: torch.stack([classes > 0, classes == 1], 1).double(),
}


def nobody(ended: int) -> None:
    """Progress callback that does nothing."""


def fit(
    name: str, work: CohortFit, local: LocalTraining = LOCAL, plan: Plan = Plan(precision="64-true")
) -> tuple[Tensor, Tensor]:
    module, layout = made(TASKS[name])
    return ChainWay(module, layout, plan, local).fit(work, nobody)


def work_of(name: str, sizes: tuple[int, ...] = SIZES, local: LocalTraining = LOCAL, **options: object) -> CohortFit:
    _, layout = made(TASKS[name])
    return cohort(layout, sizes, local, labels=LABELS.get(name), **options)  # type: ignore[arg-type]


def require_same_as_plain(name: str, work: CohortFit, local: LocalTraining = LOCAL) -> None:
    module, layout = made(TASKS[name])
    expected, losses = plain_fit(module, layout, work, local.gradient_clip)
    found, mine = fit(name, work, local)
    assert_close(found, expected, rtol=0, atol=1e-12)
    assert_close(mine, losses, rtol=0, atol=1e-12)
    assert (expected - work.models[work.start]).abs().max() > 1e-3


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces the dual form of the first layer wherever it is possible, or nowhere."""
    chosen_form = FORMS[request.param]
    monkeypatch.setattr(chain_way, "dual_pays", lambda size, *rest: torch.full_like(size, chosen_form).bool())


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "prox"), list(product(TASKS, [0.0, 0.3])))
@pytest.mark.usefixtures("form")
def test_every_chain_trains_as_autograd_does(name: str, prox: float):
    require_same_as_plain(name, work_of(name, prox=prox))


BUDGETS = {
    "steps": Budget(7, "steps"),
    "full batches": Budget(2, "epochs", "full"),
    "another batch size": Budget(4, "steps", 7),
    "a number each": Budget(torch.tensor([1, 2, 1, 3, 1, 2, 4, 1, 2])),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.usefixtures("form")
def test_every_budget_trains_as_autograd_does(budget: str):
    require_same_as_plain("groups", work_of("groups", budget=BUDGETS[budget], prox=0.1))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "dtype"),
    list(product(["linear", "groups", "deep", "regression", "linear regression"], [torch.float32, torch.float64])),
)
@pytest.mark.usefixtures("form")
def test_company_and_order_change_no_bit(name: str, dtype: torch.dtype):
    plan = Plan(precision="64-true" if dtype == torch.float64 else "32-true")
    work = work_of(name, prox=0.3, dtype=dtype)
    rows, losses = fit(name, work, plan=plan)
    for cohort_of in ([4], [0], [7, 0], [6, 2], [8, 7, 6, 5, 4, 3, 2, 1, 0], [5, 5, 3]):
        alone, own = fit(name, chosen(work, cohort_of), plan=plan)
        assert torch.equal(alone, rows[cohort_of])
        assert torch.equal(own, losses[cohort_of])


def test_a_single_output_has_the_same_bits_alone():
    """PyTorch uses a different kernel for products with a single row, from about 400 multiply-adds on."""
    module, layout = made(lambda: Regression(MCLR([1, 28, 28], 1), SGD))
    work = cohort(layout, (60, 20, 33), labels=LABELS["regression"], shape=(1, 28, 28))
    loop = ChainWay(module, layout, Plan(precision="64-true"), LOCAL)
    rows, _ = loop.fit(work, nobody)
    for client in range(3):
        assert torch.equal(loop.fit(chosen(work, [client]), nobody)[0][0], rows[client])


def test_one_step_of_a_linear_client_is_the_closed_form():
    """For the squared error and a full batch, the step is w - lr 2/n X^T (X w + b - y)."""
    module, layout = made(TASKS["linear regression"])
    work = cohort(layout, (5, 40), labels=LABELS["regression"], budget=Budget(1, "steps", "full"))
    rows, losses = ChainWay(module, layout, Plan(precision="64-true"), LOCAL).fit(work, nobody)
    for k, own in enumerate((slice(0, 5), slice(5, 45))):
        x, y, start = work.inputs[own].flatten(1), work.labels[own], work.models[work.start[k]]
        errors = x @ start[:16] + start[16] - y
        step = torch.cat([x.T @ errors, errors.sum()[None]]) * 2 / len(y)
        assert_close(rows[k], start - 0.1 * step, rtol=0, atol=1e-13)
        assert_close(losses[k], errors.square().mean(), rtol=0, atol=1e-13)


def test_single_precision_stays_close():
    work = work_of("mlp", prox=0.3)
    exact, losses = fit("mlp", work)
    single = replace(work, models=work.models.float(), centers=work.models[3:].float(), inputs=work.inputs.float())
    single = replace(single, centers=None if work.centers is None else work.centers.float())
    found, mine = fit("mlp", single, plan=Plan())
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, rtol=0, atol=1e-6)
    assert_close(mine, losses, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sizes", [(7,), (23,), SIZES])
@pytest.mark.parametrize("prox", [0.0, 0.3])
@pytest.mark.parametrize("name", ["linear", "mlp"])
@pytest.mark.usefixtures("form")
def test_models_and_centres_that_clients_share_stay_unchanged(name: str, prox: float, sizes: tuple[int, ...]):
    """Without a copy, a single client that starts from the only model would overwrite it."""
    work = work_of(name, sizes, prox=prox)
    centers = None if work.centers is None else work.centers[:1]
    zeros = torch.zeros_like(work.start)
    work = replace(work, models=work.models[:1], start=zeros, centers=centers, center=zeros)
    before = copy.deepcopy(work)
    require_same_as_plain(name, work)
    assert torch.equal(work.models, before.models)
    assert torch.equal(work.inputs, before.inputs)
    assert prox == 0 or torch.equal(work.centers, before.centers)


@pytest.mark.usefixtures("form")
def test_bytes_train_as_the_floats_they_stand_for():
    work = work_of("mlp", dtype=torch.float32)
    stored = (work.inputs * 255).byte()
    decode = Examples(stored, work.labels, 3, 1 / 255).decoding(torch.float32)
    found, losses = fit("mlp", replace(work, inputs=stored, decode=decode), plan=Plan())
    expected, wanted = fit("mlp", replace(work, inputs=decode(stored)), plan=Plan())
    assert torch.equal(found, expected)
    assert torch.equal(losses, wanted)
    assert not found.is_inference()


def test_clients_are_counted_as_they_end():
    module, layout = made(TASKS["mlp"])
    ended: list[int] = []
    ChainWay(module, layout, Plan(precision="64-true"), LOCAL).fit(work_of("mlp"), ended.append)
    assert ended == sorted(ended)
    assert ended[-1] == len(SIZES)


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_those_of_autograd_in_any_company(name: str):
    module, layout = made(TASKS[name])
    work = work_of(name, (1, 3, 1100, 36, 9, 2))
    keys = torch.arange(6)  # one key per client
    keyed = replace(work, keys=keys)
    plan = Plan(precision="64-true")
    expected = super(ChainWay, ChainWay(module, layout, plan, LOCAL)).gradients(work.models[0], keyed, nobody)
    loop = ChainWay(module, layout, plan, LOCAL)
    found = loop.gradients(work.models[0], keyed, nobody)
    assert_close(found, expected, rtol=0, atol=1e-13)
    assert (found.norm(dim=1) > 0).all()
    for clients in ([0], [3], [5, 4, 3, 2, 1, 0]):
        own = replace(chosen(work, clients), keys=keys[clients])
        assert torch.equal(loop.gradients(work.models[0], own, nobody), found[clients])


class Lenient(Classification):
    """User task that counts a prediction as right if the label has one of the two largest outputs."""

    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = self(batch[0])
        right = (outputs.topk(2).indices == batch[1][:, None]).any(1)
        return nn.functional.cross_entropy(outputs, batch[1], reduction="none"), right


SCORED = {name: TASKS[name] for name in ("linear", "mlp", "penalty", "deep", "regression", "frozen first weight")}
SCORED |= {"lenient": lambda: Lenient(MLP(12, SHAPE, 3), SGD)}


@pytest.mark.parametrize("name", SCORED)
def test_scores_are_those_of_the_module(name: str):
    module, layout = made(SCORED[name])
    classes = torch.randint(3, (1500,), generator=torch.Generator().manual_seed(1))
    numbers = name == "regression"
    inputs = torch.randint(0, 256, (1500, 1, 4, 4), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    examples = Examples(inputs, classes.float() if numbers else classes, 0 if numbers else 3, 1 / 255)
    models = torch.randn(3, layout.num_columns, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    exact = copy.deepcopy(module).double().eval()
    scorers = (ChainScorer(module, exact, layout, torch.float64), Scorer(copy.deepcopy(exact), layout, torch.float64))
    index, which = torch.arange(1499, -1, -1), torch.arange(1500) // 500
    found, expected = (scorer.score_each(models, which, index, examples) for scorer in scorers)
    for part in ("losses", "values", "weights"):
        assert_close(getattr(found, part), getattr(expected, part), rtol=0, atol=1e-12)
    found, expected = (scorer.losses_of_all(models, index, examples) for scorer in scorers)
    assert_close(found, expected, rtol=0, atol=1e-12)


def _by_kind(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    found = list(parameters)
    kernels, biases = [p for p in found if p.dim() > 1], [p for p in found if p.dim() == 1]
    return torch.optim.AdamW([{"params": kernels, "weight_decay": 0.1}, {"params": biases, "lr": 0.02}], lr=0.01)


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, weight_decay=0.02),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "dampening": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "adamw by kind": _by_kind,
}


@pytest.mark.nightly
@pytest.mark.parametrize(("optimizer", "clip"), list(product(OPTIMIZERS, [None, 0.5])))
def test_every_optimizer_trains_as_pytorchs(optimizer: str, clip: float | None):
    local = replace(LOCAL, gradient_clip=clip)

    def make() -> LightningModule:
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))
        return Classification(net, OPTIMIZERS[optimizer], kernel_l2=0.01)

    module, layout = made(make)
    work = cohort(layout, SIZES, local, prox=0.3)
    expected, losses = plain_fit(module, layout, work, clip)
    module, _ = made(make)
    loop = ChainWay(module, layout, Plan(precision="64-true"), local)
    found, mine = loop.fit(work, nobody)
    assert_close(found, expected, rtol=0, atol=1e-12)
    assert_close(mine, losses, rtol=0, atol=1e-12)
    for clients in ([4], [7, 0], [8, 7, 6, 5, 4, 3, 2, 1, 0]):
        assert torch.equal(loop.fit(chosen(work, clients), nobody)[0], found[clients])


def test_mixed_precision_stays_close_to_single_in_any_company():
    work = work_of("mlp", prox=0.3, dtype=torch.float32)
    single, _ = fit("mlp", work, plan=Plan())
    mixed, _ = fit("mlp", work, plan=Plan(precision="bf16-mixed"))
    assert 1e-5 < (mixed - single).abs().max() < 2e-2  # bfloat16 has a precision of eight bits
    for clients in ([4], [7, 0]):
        assert torch.equal(fit("mlp", chosen(work, clients), plan=Plan(precision="bf16-mixed"))[0], mixed[clients])


def test_threads_change_no_bit():
    module, layout = made(TASKS["linear"])
    work, before = work_of("linear", (400, 3, 350)), torch.get_num_threads()
    one, _ = fit("linear", work)
    torch.set_num_threads(2)
    try:
        ended: list[int] = []
        two, _ = ChainWay(module, layout, Plan(precision="64-true", threads=2), LOCAL).fit(work, ended.append)
        assert torch.get_num_threads() == 2
        assert ended[-1] == 3
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_the_dual_form_pays_for_few_examples_and_many_steps():
    """For 64 examples, batches of 10 and 784 x 128 weights, a dual step needs 3 % of a plain step's multiply-adds."""
    sizes, steps = torch.tensor([64, 64, 64, 1024]), torch.tensor([60, 6, 1, 200])
    assert dual_pays(sizes, steps, torch.full((4,), 10), 784, 128).tolist() == [True, True, False, False]
    held, dual = 28 * 784 * 128, 10 * 64 * 136  # multiply-adds of a step
    at_once = 64 * 64 * 784 + 2 * 64 * 784 * 128
    assert (5 * held > at_once + 5 * dual) == bool(
        dual_pays(sizes[:1], torch.tensor([5]), torch.tensor([10]), 784, 128)
    )
    assert not dual_pays(sizes[:1], torch.tensor([6]), torch.tensor([10]), 784, 10)  # one epoch of a linear net


def test_shapes_are_rungs_of_a_fixed_ladder():
    assert pad(torch.tensor([1, 2, 3, 4, 5, 8, 9, 15, 17, 60, 65, 600]), 4).tolist() == [
        2, 2, 3, 4, 5, 8, 10, 16, 20, 64, 80, 640,
    ]  # fmt: skip
    assert pad(torch.tensor([3, 5, 7, 9, 13, 17]), 2).tolist() == [3, 6, 8, 12, 16, 24]


def test_an_activation_before_all_layers_leaves_the_examples_unchanged():
    examples, weight = torch.tensor([[[-1.0, 2.0]]]), torch.tensor([[[1.0, 3.0]]])
    outputs, _ = run_forward(
        (Activation("relu"), ChainLayer("w", None, 2, 1)), {"w": weight}, examples, None, Arithmetic()
    )
    assert outputs.tolist() == [[[6.0]]]
    assert examples.tolist() == [[[-1.0, 2.0]]]
