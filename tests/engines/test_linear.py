"""Fully connected layers of a compiled stack against PyTorch's own."""

from functools import partial

import pytest
import torch
from conftest import rng
from lightning import LightningModule
from ragged import PLANS, SGD, SHAPE, fitted, rows_of, task
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close

from lit_cfl.engines import products
from lit_cfl.engines.client_fit import finite_rows
from lit_cfl.engines.linear import OwnLinear, StackedLinear, with_linear
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import engine as stacked
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.nets import MLP
from lit_cfl.tasks import Classification

exactly = partial(assert_close, atol=1e-12, rtol=0)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    products.load()


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng(3), dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5), (5,)])
def test_outputs_and_gradients_of_a_stack_are_those_of_a_linear_layer(bias: bool, shape: tuple[int, ...]):
    layer = nn.Linear(5, 3, bias=bias).double()
    plain = StackedLinear(layer)
    assert list(plain.state_dict()) == list(layer.state_dict())

    def loss(tensors: dict[str, Tensor], inputs: Tensor, of: nn.Module) -> Tensor:
        return functional_call(of, tensors, (inputs,)).square().sum()

    clients = {name: normal(4, *tensor.shape) for name, tensor in layer.state_dict().items()}
    inputs = normal(4, *shape)
    found = [vmap(grad(partial(loss, of=of), (0, 1)))(clients, inputs) for of in (plain, layer)]
    exactly(found[0][0], found[1][0])
    exactly(found[0][1], found[1][1])
    exactly(plain(inputs[0]), layer(inputs[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5, 3), (80, 70, 90), (1, 5, 3), (0, 5, 3)])
def test_own_products_give_the_outputs_and_both_derivatives_of_a_linear_layer(
    shape: tuple[int, int, int], bias: bool, dtype: torch.dtype
):
    batch, width, outputs = shape
    layer = nn.Linear(width, outputs, bias=bias).to(dtype)
    inputs = normal(batch, width).to(dtype).requires_grad_()
    found = []
    for of in (OwnLinear(layer), layer):
        first = torch.autograd.grad(of(inputs).square().sum(), [inputs, *layer.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [inputs, layer.weight])
        found.append([of(inputs), *first, *second])
    for mine, its in zip(*found, strict=True):
        size = float(its.detach().abs().max()) if its.numel() else 0.0
        assert_close(mine, its, rtol=0, atol=20 * torch.finfo(dtype).eps * size)


def test_own_products_leave_other_inputs_to_pytorch():
    layer = nn.Linear(5, 3)
    own, inputs = OwnLinear(layer), normal(4, 7, 5).float()
    assert torch.equal(own(inputs), layer(inputs))
    assert torch.equal(vmap(own)(inputs), vmap(layer)(inputs))
    assert torch.equal(own.bfloat16()(inputs.bfloat16()), layer(inputs.bfloat16()))
    with torch.autocast("cpu", torch.bfloat16):
        assert own(inputs[0]).dtype == torch.bfloat16


def test_layers_keep_their_parameters_and_shared_ones_stay_one():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.again = nn.Linear(4, 4)
            self.own = type("Derived", (nn.Linear,), {})(4, 2)
            self.hooked = nn.Linear(4, 4)
            self.hooked.register_forward_hook(lambda *_: None)

    module = Classification(Twice(), SGD)
    before = dict(module.named_parameters())
    assert with_linear(module, StackedLinear) is module
    assert module.net.first is module.net.again
    assert [type(layer).__name__ for layer in (module.net.first, module.net.own, module.net.hooked)] == [
        "StackedLinear",
        "Derived",
        "Linear",
    ]
    after = dict(module.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def test_loop_and_evaluation_have_own_products_where_the_plan_says_so():
    make = task(lambda: MLP(12, SHAPE, 10))
    for whose, kind in (("own", OwnLinear), ("torch", nn.Linear)):
        _, engine = fitted(make, Plan("stacked", products=whose))
        modules = (engine._loop._module, engine._scorer._module)
        assert [type(module.net.fc1) for module in modules] == [kind, kind]
        assert type(engine.module(engine.initial(0)).net.fc1) is nn.Linear  # a user's own


def test_compiled_stack_has_them_and_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacked, "CompiledSteps", lambda steps, *_: steps)

    def kinds(module: LightningModule) -> set[str]:
        return {type(layer).__name__ for layer in module.modules() if isinstance(layer, nn.Linear)}

    make = task(lambda: MLP(12, SHAPE, 10))
    plan = Plan("stacked", precision="64-true", lanes=4, narrow=1, compile=True)
    found, engine = fitted(make, plan)
    assert isinstance(engine, StackedEngine)
    assert kinds(engine._steps._losses.module) == {"StackedLinear"}
    assert kinds(engine.template) == kinds(engine._loop._module) == {"Linear"}
    exactly(rows_of(found), rows_of(fitted(make, Plan("trainer", precision="64-true"))[0]))
    assert kinds(fitted(make, PLANS["4 lanes"])[1]._steps._losses.module) == {"Linear"}


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([1.0, -2.0], True),
        ([3e38, 3e38], True),  # their sum is infinite, they are not
        ([float("inf"), -float("inf")], False),
        ([1.0, float("nan")], False),
    ],
)
def test_row_is_finite_where_all_its_numbers_are(numbers: list[float], finite: bool):
    assert finite_rows(torch.tensor([[1.0, 2.0], numbers])) == [True, finite]


class InfiniteLoss(Classification):
    """Has losses that are infinite, and gradients that are not."""

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().losses(batch) + float("inf")


@pytest.mark.parametrize("plan", ["plain loop", "4 lanes"])
def test_client_has_diverged_where_its_loss_is_infinite(plan: str):
    local = LocalTraining(1, 10, on_divergence="skip")
    found, engine = fitted(lambda: InfiniteLoss(MLP(4, SHAPE, 10)), PLANS[plan], local=local)
    assert not found.trained.any()
    starts = torch.stack([engine.initial(k % 2) for k in range(6)])
    assert torch.equal(rows_of(found), starts)  # the models that they started from


def test_what_own_products_cannot_take_goes_to_pytorch():
    layer = OwnLinear(nn.Linear(5, 3).bfloat16())
    with pytest.raises(RuntimeError, match="dtype"):  # as of nn.Linear, not bytes read as other numbers
        layer(torch.zeros(7, 5))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        OwnLinear(nn.Linear(5, 3))(torch.zeros(7, 4))
    left = torch.zeros(2, 7, 5)
    for right in (torch.zeros(2, 5, 3, dtype=torch.float64), torch.zeros(2, 4, 3), torch.zeros(1, 5, 3)):
        with pytest.raises(RuntimeError, match="two batches of matrices of float32 or of float64"):
            torch.ops.lit_cfl.bmm(left, right)


def test_a_loss_may_differentiate_by_the_weights_itself():
    own, plain, inputs = OwnLinear(layer := nn.Linear(5, 3).double()), layer, normal(7, 5)

    def penalty(weights: dict[str, Tensor], of: nn.Module) -> Tensor:
        return functional_call(of, weights, (inputs,)).square().sum()

    found, expected = (grad(partial(penalty, of=of))(dict(of.named_parameters())) for of in (own, plain))
    exactly(found["weight"], expected["weight"])
