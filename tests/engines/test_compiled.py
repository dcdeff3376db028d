"""The compiled stack: few graphs, the same result, the same bits in any company."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from ragged import LOCAL, SHAPE, fitted, ragged_data, rows_of, task
from test_kernel_l2 import mlp
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.nets import MCLR, MLP

ADAM = partial(torch.optim.Adam, lr=0.01)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
DECAY = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
pytestmark = pytest.mark.slow  # compiling takes ten seconds and more


def test_compiled_stack_gives_the_trainers_result_with_at_most_four_graphs():
    make, data = mlp(kernel_l2=0.1), ragged_data()
    plan = Plan("stacked", precision="64-true", lanes=4, narrow=1, compile=True, products="own")
    engine = build_engine(make, plan, 5, LocalTraining(3, 10))
    models = torch.stack([engine.initial(number) for number in range(3)])

    def fit(clients: torch.Tensor, prox: float) -> torch.Tensor:
        return engine.at(2, data).fit(models, clients, clients % 2, prox=prox, centers=models, center=2).rows

    whole = {prox: fit(torch.arange(6), prox) for prox in (0.0, 0.3)}
    for prox, rows in whole.items():
        expected, _ = fitted(make, Plan("trainer", precision="64-true"), prox=prox)
        assert_close(rows, expected.rows, rtol=0, atol=1e-12)
    compiled = engine._stack(plan.lanes, 10)._advance
    graphs = compiled.graphs
    assert 1 <= graphs <= 4
    for cohort in ([1], [5, 3], [3, 0, 5, 1, 4, 2], [2, 4, 1]):
        clients = torch.tensor(cohort)
        for prox, rows in whole.items():
            assert torch.equal(fit(clients, prox), rows[clients])
    assert compiled.graphs == graphs  # no cohort compiles anything


class OnRows(nn.Module):
    """A fully connected layer on each row of the image: its gradient is no product of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(8, 4), nn.Dropout(0.4), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc2(self.drop(self.fc1(inputs.squeeze(1)).relu().flatten(1)))


@pytest.mark.parametrize(
    ("make", "plan", "local", "tolerance"),
    [
        (task(lambda: MCLR(SHAPE, 10)), {"narrow": 1, "steps_per_call": 5}, LocalTraining(3, 10), 1e-6),
        (task(OnRows, ADAM), {"narrow": 4}, LocalTraining(3, 10, gradient_clip=0.5), 1e-4),
        (task(OnRows, MOMENTUM), {"narrow": 4}, LocalTraining(3, 10), 1e-6),
        (task(lambda: MLP(16, SHAPE, 10), DECAY), {"narrow": 4}, LocalTraining(3, 10, gradient_clip=0.5), 1e-6),
    ],
    ids=["as long runs have it", "dropout, Adam, clipped", "momentum", "momentum, decay and clipping of an MLP"],
)
def test_compiled_steps_in_single_precision_give_the_trainers_result(
    make: Callable[[], LightningModule], plan: dict[str, int], local: LocalTraining, tolerance: float
):
    found, engine = fitted(make, Plan("stacked", lanes=4, compile=True, products="own", **plan), local=local)
    assert engine.plan.compile  # the compiler did not give up
    assert_close(rows_of(found), rows_of(fitted(make, Plan("trainer"), local=local)[0]), rtol=0, atol=tolerance)
    cohort = torch.tensor([5, 3])
    start = torch.stack([engine.initial(number) for number in range(3)])
    alone = engine.at(2, ragged_data()).fit(start, cohort, cohort % 2).rows
    assert torch.equal(alone, rows_of(found)[cohort])


class Shifted(MCLR):
    """A net with tensors that are no parameters."""

    def __init__(self, shift: float) -> None:
        super().__init__(SHAPE, 10)
        self.shift = [torch.full((10,), shift), torch.full((10,), 2 * shift).bfloat16()]

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.shift[0] * torch.arange(10) + self.shift[1].float()


def test_compiled_steps_are_kept_for_the_same_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path))
    plan = Plan("stacked", lanes=2, narrow=2, compile=True)

    def after(shift: float, plan: Plan = plan, **options: float) -> Tensor:
        optimizer = partial(torch.optim.SGD, **{"lr": 0.05} | options)
        return rows_of(fitted(task(lambda: Shifted(shift), optimizer), plan)[0])

    def files() -> set[Path]:
        return set((tmp_path / "kernels").iterdir())

    first = after(0.5)
    (made,) = files()
    assert torch.equal(after(0.5), first)
    assert files() == {made}
    assert not torch.equal(after(0.25), first)  # the same steps with another constant
    assert files() == {made}
    assert_close(after(0.5, lr=0.01), after(0.5, Plan("trainer"), lr=0.01), rtol=0, atol=1e-6)
    assert files() == {made}  # a learning rate is an input
    assert not torch.equal(after(0.5, momentum=0.5), first)
    assert len(files()) == 2
    content = bytearray(made.read_bytes())
    content[len(content) // 2] ^= 1
    made.write_bytes(bytes(content))
    assert torch.equal(after(0.5), first)
    whole = [file for file in files() if file.stem.endswith(hashlib.sha256(file.read_bytes()).hexdigest()[:16])]
    assert len(whole) == 2  # the damaged one was made anew


def convolutions() -> nn.Module:
    """`MNISTCNN` with one fully connected layer more, which is wide enough for two threads."""
    parts = (nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    parts += (nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5))
    return nn.Sequential(*parts, nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_convolutions_and_wide_layers_keep_their_bits_in_any_company_with_two_threads():
    make = task(convolutions)
    plan = Plan("stacked", lanes=4, narrow=2, compile=True, products="own", threads=2)
    engine, data = build_engine(make, plan, 5, LOCAL), ragged_data()
    start = engine.initial(0)[None]
    whole = engine.at(2, data).fit(start, torch.arange(6)).rows
    for cohort in ([1], [5, 3], [3, 0, 5, 1, 4, 2]):
        assert torch.equal(engine.at(2, data).fit(start, torch.tensor(cohort)).rows, whole[cohort])
    assert engine.plan.compile  # the compiler did not give up
    eager = build_engine(make, replace(plan, compile=False), 5, LOCAL)
    expected = eager.at(2, data).fit(start, torch.arange(6)).rows
    assert_close(expected, whole, rtol=0, atol=1e-3)  # ties in ReLU and pooling amplify rounding
