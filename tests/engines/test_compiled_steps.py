"""Tests that the compiled steps of small chains train as autograd does, with the same bits in any cohort."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cohorts import chosen, cohort, made, plain_fit
from compiled_steps import steps_of
from lightning import LightningModule
from ragged import in_groups
from torch import Tensor, nn
from torch.testing import assert_close

import hatch_build
from lit_cfl.data import Examples
from lit_cfl.engines import permutations
from lit_cfl.engines.chain import compiled
from lit_cfl.engines.chain import way as chain_way
from lit_cfl.engines.chain.way import ChainWay
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.engines.library import FOLDER, SOURCE, describe_steps, load_library
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification, Regression

SHAPE = [1, 9, 11]  # 99 inputs: a tile of four vectors, single inputs, and zeros at the end
SIZES = (1, 3, 17, 36, 9, 20, 60, 2, 10)
SGD = partial(torch.optim.SGD, lr=0.1)
LOCAL = LocalTraining(3, 10)
KINDS = ["DEFAULT", "AVX2", "AVX512"]  # each processor also executes the code for earlier ones
# skipped without a compiler: a package without compiled steps is supported, and other tests check PyTorch's steps
has_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(99, 70), nn.ReLU(), nn.Linear(70, 13, bias=False), nn.ReLU(), nn.Linear(13, 3)
    )  # fmt: skip


def frozen(*names: str) -> nn.Module:
    net = MLP(21, SHAPE, 3)
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


TASKS: dict[str, Callable[[], LightningModule]] = {
    "linear": lambda: Classification(MCLR(SHAPE, 3), SGD),
    "linear, groups": lambda: Classification(MCLR(SHAPE, 3), in_groups),
    "two hidden layers": lambda: Classification(deep(), in_groups),
    "no ReLU": lambda: Classification(nn.Sequential(nn.Flatten(), nn.Linear(99, 5), nn.Linear(5, 3)), SGD),
    "ReLU at the end": lambda: Classification(nn.Sequential(nn.Flatten(), nn.Linear(99, 3), nn.ReLU()), SGD),
    "groups": lambda: Classification(MLP(21, SHAPE, 3), in_groups),
    "penalty": lambda: Classification(MLP(21, SHAPE, 3), SGD, kernel_l2=0.01),
    "penalty of the last layer": lambda: Classification(MLP(21, SHAPE, 3), in_groups, 0.01, "fc2"),
    "frozen first weight": lambda: Classification(frozen("fc1.weight"), SGD),
    "frozen biases": lambda: Classification(frozen("fc1.bias", "fc2.bias"), SGD),
    "frozen last layer": lambda: Classification(frozen("fc2.weight", "fc2.bias"), in_groups),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder of steps compiled from the current source: the checkout's if it is current, else a new one."""
    if describe_steps().startswith("compiled for "):
        return FOLDER
    folder = tmp_path_factory.mktemp("steps")
    assert hatch_build.compile_steps(SOURCE, folder)
    return folder


@pytest.fixture
def built(folder: Path) -> Iterator[None]:
    with steps_of(folder):
        assert describe_steps().startswith("compiled for ")
        yield


@pytest.fixture(params=[False, True], ids=["held", "dual"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces the dual form of the first layer wherever it is possible, or nowhere."""
    monkeypatch.setattr(compiled, "dual_pays", lambda size, *rest: torch.full_like(size, request.param).bool())


def fit(name: str, work: CohortFit, plan: Plan = Plan()) -> tuple[Tensor, Tensor]:
    module, layout = made(TASKS[name])
    return ChainWay(module, layout, plan, LOCAL).fit(work, lambda ended: None)


def work_of(name: str, sizes: tuple[int, ...] = SIZES, **options: Any) -> CohortFit:
    _, layout = made(TASKS[name])
    return cohort(layout, sizes, LOCAL, shape=SHAPE, dtype=torch.float32, **options)


def require_same_as_plain(name: str, work: CohortFit) -> None:
    """Checks that a fit agrees with training by PyTorch's own optimizers in float64."""
    module, layout = made(TASKS[name])
    centers = None if work.centers is None else work.centers.double()
    exact = replace(work, models=work.models.double(), inputs=work.inputs.double(), centers=centers)
    expected, losses = plain_fit(module, layout, exact)
    found, mine = fit(name, work)
    assert found.dtype == torch.float32
    assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert_close(mine, losses, rtol=0, atol=1e-5)
    assert (expected - exact.models[work.start]).abs().max() > 1e-2


@has_compiler
@pytest.mark.parametrize("prox", [0.0, 0.3])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.usefixtures("built", "form")
def test_compiled_steps_train_as_autograd_does(name: str, prox: float):
    require_same_as_plain(name, work_of(name, prox=prox))


@has_compiler
@pytest.mark.usefixtures("built", "form")
def test_a_client_of_many_examples_trains_next_to_one_of_few():
    """Uses a net without ReLU, because in 300 steps rounding could switch a ReLU unit whose input is close to 0."""
    require_same_as_plain("linear, groups", work_of("linear, groups", (3, 1000, 1), prox=0.1))


@has_compiler
@pytest.mark.usefixtures("built")
def test_the_compiled_code_draws_the_permutations_of_pytorch():
    seeds, counts = torch.tensor([0, 5, 2**62 + 5, 2**63 - 1]), torch.tensor([3, 0, 2, 70])
    given = (
        seeds,
        torch.tensor([1, 8, 700, 11]),
        counts,
    )  # 70 times 10 numbers need more than one block of the generator
    assert torch.equal(permutations._draw(load_library()[0], *given), permutations._draw_each(*given))


@has_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("built", "form")
def test_the_code_for_each_kind_of_processor_trains_alike(kind: str, monkeypatch: pytest.MonkeyPatch):
    own = torch.backends.cpu.get_cpu_capability()
    kind = KINDS[min(KINDS.index(kind), KINDS.index(own) if own in KINDS else 0)]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
    load_library.cache_clear()
    assert describe_steps() == f"compiled for {kind}"
    require_same_as_plain("two hidden layers", work_of("two hidden layers", (5, 60, 33), prox=0.1))


@has_compiler
@pytest.mark.parametrize("budget", [Budget(7, "steps"), Budget(2, "epochs", "full"), Budget(4, "steps", 7)])
@pytest.mark.usefixtures("built", "form")
def test_compiled_steps_take_every_budget(budget: Budget):
    require_same_as_plain("groups", work_of("groups", SIZES, budget=budget, prox=0.1))


@has_compiler
@pytest.mark.parametrize("name", ["linear", "two hidden layers", "penalty"])
@pytest.mark.usefixtures("built")
def test_company_order_calls_and_threads_change_no_bit_of_compiled_steps(name: str, monkeypatch: pytest.MonkeyPatch):
    work = work_of(name, (*SIZES, 1000), prox=0.3)
    rows, losses = fit(name, work)
    for cohort_of in ([4], [0], [9, 0], [6, 2], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [5, 5, 3]):
        alone, own = fit(name, chosen(work, cohort_of))
        assert torch.equal(alone, rows[cohort_of])
        assert torch.equal(own, losses[cohort_of])
    assert torch.equal(fit(name, work, Plan(threads=2))[0], rows)
    monkeypatch.setattr(compiled, "_AT_ONCE", 1)
    assert torch.equal(fit(name, work)[0], rows)


@has_compiler
@pytest.mark.usefixtures("built")
def test_clients_of_compiled_steps_are_counted_and_their_models_stay():
    module, layout = made(TASKS["linear"])
    work, ended = work_of("linear", prox=0.3), list[int]()
    models, centers = work.models.clone(), work.centers.clone() if work.centers is not None else None
    ChainWay(module, layout, Plan(threads=3), LOCAL).fit(work, ended.append)
    assert len(ended) > 1
    assert ended == sorted(ended)
    assert ended[-1] == len(SIZES)
    assert torch.equal(work.models, models)
    assert torch.equal(work.centers, centers)


@has_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("uniform", [True, False])
def test_compiled_steps_read_bytes_as_the_floats_they_stand_for(uniform):
    work = work_of("linear")
    images = (work.inputs * 255).byte()
    scale = 1 / 255 if uniform else torch.linspace(0.001, 0.01, images[0].numel()).view(images.shape[1:])
    examples = Examples(images, work.labels, 3, scale, offset=7.0)
    decode = examples.decoding(torch.float32)
    found, _ = fit("linear", replace(work, inputs=images, decode=decode))
    assert torch.equal(found, fit("linear", replace(work, inputs=decode(images)))[0])


@has_compiler
@pytest.mark.usefixtures("built", "form")
def test_a_number_that_is_not_finite_stays_with_its_client():
    work = work_of("groups")
    rows, losses = fit("groups", work)
    models = work.models.clone()
    models[1] = torch.nan
    found, mine = fit("groups", replace(work, models=models))
    others = work.start != 1
    assert found[~others].isnan().all()
    assert mine[~others].isnan().all()
    assert torch.equal(found[others], rows[others])
    assert torch.equal(mine[others], losses[others])


@has_compiler
@pytest.mark.usefixtures("built")
def test_a_label_that_the_net_does_not_have_is_refused_before_compiled_steps():
    work = work_of("linear")
    labels = work.labels.clone()
    labels[-1] = 5  # a later example, since the first ones only check that the net is a chain
    with pytest.raises(InputError, match="an example has the label 5, but the net has 3 outputs"):
        fit("linear", replace(work, labels=labels))


class UsedError(Exception):
    """Raised if the compiled steps are used."""


def used(*_: object) -> None:
    raise UsedError


OTHERS: dict[str, tuple[Callable[[], LightningModule], Plan, LocalTraining]] = {
    "momentum": (lambda: Classification(MCLR(SHAPE, 3), partial(SGD, momentum=0.9)), Plan(), LOCAL),
    "double precision": (TASKS["linear"], Plan(precision="64-true"), LOCAL),
    "bfloat16": (TASKS["linear"], Plan(precision="bf16-mixed"), LOCAL),
    "clipping": (TASKS["linear"], Plan(), LocalTraining(3, 10, gradient_clip=1.0)),
    "another loss": (lambda: Regression(MCLR(SHAPE, 1), SGD), Plan(), LOCAL),
    "another activation": (
        lambda: Classification(nn.Sequential(nn.Flatten(), nn.Linear(99, 3), nn.Tanh()), SGD), Plan(), LOCAL,
    ),
    "dropout": (
        lambda: Classification(nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(99, 3)), SGD), Plan(), LOCAL,
    ),
    "ReLU in front": (
        lambda: Classification(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(99, 3)), SGD), Plan(), LOCAL,
    ),
    "a large net": (lambda: Classification(MLP(10_500, SHAPE, 3), SGD), Plan(), LOCAL),
}  # fmt: skip


@has_compiler
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.usefixtures("built")
def test_pytorch_trains_what_the_compiled_steps_do_not(name: str, monkeypatch: pytest.MonkeyPatch):
    make, plan, local = OTHERS[name]
    module, layout = made(make)
    monkeypatch.setattr(chain_way, "CompiledSteps", used)
    dtype = torch.float64 if plan.precision == "64-true" else torch.float32
    labels = (lambda classes: classes.to(dtype)) if name == "another loss" else None
    work = cohort(layout, (3,), local, shape=SHAPE, dtype=dtype, labels=labels, budget=Budget(1, "steps"))
    ChainWay(module, layout, plan, local).fit(work, lambda ended: None)


@has_compiler
@pytest.mark.usefixtures("built")
def test_weighted_examples_train_in_pytorch(monkeypatch: pytest.MonkeyPatch):
    work = work_of("linear", (3,))
    monkeypatch.setattr(chain_way, "CompiledSteps", used)
    with pytest.raises(UsedError):
        fit("linear", work)
    fit("linear", replace(work, weights=torch.ones(3)))


def test_without_compiled_steps_pytorch_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chain_way, "CompiledSteps", used)
    with steps_of(tmp_path):
        assert describe_steps() == "PyTorch alone"
        assert "no C++ compiler" in load_library()[1]
        require_same_as_plain("groups", work_of("groups", (5, 60)))


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert hatch_build.compile_steps(SOURCE, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@has_compiler
def test_steps_of_another_version_are_not_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = tmp_path / "steps.cpp"
    now.write_text(f"{SOURCE.read_text('utf-8')}\n")
    monkeypatch.setattr("lit_cfl.engines.library.SOURCE", now)
    with steps_of(folder):
        assert load_library()[0] is None
        assert "was compiled from another version" in load_library()[1]


def test_a_file_that_cannot_be_loaded_is_not_used(tmp_path: Path):
    (tmp_path / "steps-DEFAULT.lib").write_bytes(b"damaged")
    with steps_of(tmp_path):
        assert load_library()[0] is None
        assert "steps-DEFAULT.lib" in load_library()[1]


@has_compiler
def test_what_the_compiler_refuses_is_not_built(tmp_path: Path):
    wrong = tmp_path / "steps.cpp"
    wrong.write_text("not C++")
    assert hatch_build.compile_steps(wrong, tmp_path) == []
