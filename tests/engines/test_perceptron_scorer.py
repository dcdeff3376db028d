"""Perceptrons scored by our own C++ function: the module's losses and answers, whatever the examples look like."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from ragged import SHAPE, task
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.engines.base import Engine
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.scorer import Outcomes, Scorer
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR, MLP

FUSED = Plan("stacked", products="own", fused=True)
NETS: dict[str, Callable[[], nn.Module]] = {"linear": lambda: MCLR(SHAPE, 10), "mlp": lambda: MLP(33, SHAPE, 10)}
RNG = torch.Generator().manual_seed(1)
BYTES = torch.randint(0, 256, (50, *SHAPE), generator=RNG, dtype=torch.uint8)
NUMBERS = torch.randn(50, *SHAPE, generator=RNG)
LABELS = torch.randint(0, 10, (50,), generator=RNG)
EACH = torch.rand(SHAPE, generator=RNG) + 0.5
ROTATED = (View(), View(1), View(2), View(3, tuple(range(9, -1, -1))), View(0, tuple(range(9, -1, -1))))
EXAMPLES = {
    "bytes": Examples(BYTES, LABELS, 10, 1 / 255),
    "bytes, shifted and scaled": Examples(BYTES, LABELS, 10, 1 / 70, offset=33.3),
    "bytes, each pixel its own way, rotated": Examples(BYTES, LABELS, 10, EACH / 70, ROTATED, 100 * EACH),
    "numbers": Examples(NUMBERS, LABELS, 10),
    "numbers, rotated and scaled": Examples(NUMBERS, LABELS, 10, 0.3, ROTATED),
    "noisy, by the module": Examples(BYTES, LABELS, 10, 1 / 255, (View(), View(1, None, 0.5))),
}


def of(examples: Examples) -> FederatedData:
    none = ClientIndex.empty(1)
    return FederatedData(examples, none, none, none, torch.zeros(1, dtype=torch.int64))


def engines(net: str, precision: str = "32-true") -> tuple[Engine, Engine]:
    """The fused engine, and the one that asks the module."""
    plans = (replace(plan, precision=precision) for plan in (FUSED, Plan("trainer")))
    fused, plain = (build_engine(task(NETS[net]), plan, 5, LocalTraining(1, 10)) for plan in plans)
    return fused, plain


def models_of(engine: Engine, number: int) -> Tensor:
    """Models with biases, which a fresh one of PyTorch's has, too."""
    return torch.stack([engine.initial(k) for k in range(number)]) * 3


def assert_same(found: Outcomes, expected: Outcomes, tolerance: float) -> None:
    assert_close(found.losses, expected.losses, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.weights, expected.weights)


@pytest.mark.parametrize(("precision", "tolerance"), [("64-true", 1e-12), ("32-true", 2e-5)])
@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("net", NETS)
def test_outcomes_are_the_modules(net: str, kind: str, precision: str, tolerance: float):
    fused, plain = engines(net, precision)
    examples = EXAMPLES[kind]
    if examples.inputs.is_floating_point():
        examples = replace(examples, inputs=examples.inputs.to(fused.plan.dtype))
    models, rng = models_of(fused, 4), torch.Generator().manual_seed(2)
    index = torch.randint(0, len(examples) * len(examples.views), (333,), generator=rng)
    which = torch.randint(0, 4, (333,), generator=rng).sort().values
    which = which.where(which != 2, 1)  # nobody has this model
    assert_same(
        fused.outcomes_of_each(models, which, index, of(examples)),
        plain.outcomes_of_each(models, which, index, of(examples)),
        tolerance,
    )
    found, expected = (engine.losses_of_all(models, index, of(examples)) for engine in (fused, plain))
    assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert found.shape == (4, 333)
    assert found.dtype == torch.float64


def test_a_score_is_what_arithmetic_says():
    engine = build_engine(task(lambda: MCLR([3], 2)), FUSED, 0, LocalTraining(1, 2))
    examples = Examples(torch.tensor([[2.0, 0.0, 4.0], [0.0, 6.0, 0.0]]), torch.tensor([0, 0]), 2, 0.5)
    model = torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, -0.5, 0.25]])  # outputs x1 + x3 - 1/2, x2 + 1/4
    found = engine.outcomes(model[0], torch.tensor([1, 0]), of(examples))
    expected = [math.log(1 + math.exp(3.25 + 0.5)), math.log(1 + math.exp(0.25 - 2.5))]
    assert found.losses.tolist() == pytest.approx(expected, rel=1e-6)
    assert found.values.tolist() == [[0.0, 1.0]]
    undecided = engine.outcomes(
        torch.zeros(8), torch.tensor([1, 0]), of(replace(examples, labels=torch.tensor([0, 1])))
    )
    assert undecided.values.tolist() == [[0.0, 1.0]]  # of equal outputs the first counts


def test_an_example_has_the_same_bits_in_any_company():
    fused, _ = engines("mlp")
    models, examples = models_of(fused, 2), of(EXAMPLES["bytes, each pixel its own way, rotated"])
    index = torch.arange(250)
    whole = fused.losses_of_all(models, index, examples)
    for part in (index[:1], index[31:97].flip(0), index[::7]):
        assert torch.equal(fused.losses_of_all(models, part, examples), whole[:, part])
        assert torch.equal(fused.outcomes(models[1], part, examples).losses, whole[1, part])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_models_that_diverged_are_scored_as_the_module_scores_them(wrong: float):
    fused, plain = engines("linear")
    models = models_of(fused, 3)
    models[0, 5], models[1], models[2, -3] = wrong, wrong, wrong  # a weight, all, the bias of label 7
    index, which = torch.arange(50).repeat(3), torch.arange(3).repeat_interleave(50)
    data = of(EXAMPLES["numbers"])
    found = fused.outcomes_of_each(models, which, index, data)
    assert_same(found, plain.outcomes_of_each(models, which, index, data), 1e-5)
    assert int((~found.losses.isfinite()).sum()) > 100


def test_nothing_is_scored_where_nobody_has_examples():
    fused, _ = engines("linear")
    none = torch.zeros(0, dtype=torch.int64)
    assert fused.outcomes_of_each(models_of(fused, 1), none, none, of(EXAMPLES["bytes"])).losses.shape == (0,)
    assert fused.losses_of_all(models_of(fused, 2), none, of(EXAMPLES["bytes"])).shape == (2, 0)


def test_other_pools_are_read_anew():
    fused, plain = engines("linear")
    model, index = models_of(fused, 1)[0], torch.arange(50)
    for kind in ("bytes", "numbers", "bytes"):
        found, expected = (engine.outcomes(model, index, of(EXAMPLES[kind])) for engine in (fused, plain))
        assert_same(found, expected, 1e-5)


def test_the_module_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    """Its passes over the images are what the C++ function saves."""
    fused, _ = engines("linear")
    monkeypatch.setattr(Scorer, "of_each", lambda *_: pytest.fail("the module was asked"))
    monkeypatch.setattr(Scorer, "losses_of_all", lambda *_: pytest.fail("the module was asked"))
    models, index = models_of(fused, 1), torch.arange(50)
    assert len(fused.outcomes(models[0], index, of(EXAMPLES["bytes"])).losses) == 50
    assert fused.losses_of_all(models, index, of(EXAMPLES["bytes"])).shape == (1, 50)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (Examples(BYTES[:, :, :-1], LABELS, 10), "examples have 56 numbers each, but the net takes 64"),
        (Examples(BYTES, LABELS + 5, 15), "an example has the label 14, but the net has 10 outputs"),
    ],
)
def test_examples_that_the_net_cannot_take_are_refused(examples: Examples, message: str):
    fused, _ = engines("linear")
    with pytest.raises(InputError, match=message):
        fused.outcomes(models_of(fused, 1)[0], torch.arange(50), of(examples))
