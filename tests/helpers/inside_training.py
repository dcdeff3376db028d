"""Trains the clients of a table's rows in each way of training: what these tables need from inside the package."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import FederatedData
from lit_cfl.engines import chain
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import Workload, build_engine, choose_plan
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.steps import load_library
from lit_cfl.engines.ways import get_way
from lit_cfl.errors import InputError
from lit_cfl.experiment import LocalTraining
from lit_cfl.local_work import Fitted, LocalWork

_PLANS = {
    "trainer": Plan("trainer"),
    "loop": Plan("loop"),
    "stack": Plan("stack", lanes=4),
    "stack of 1": Plan("stack", lanes=1),
    "chain": Plan("chain"),
    "dual": Plan("chain"),
    "ray": Plan("loop", workers=2),
    "gpu": Plan("stack", lanes=4, device="cuda:0"),
}
START = torch.tensor([1, 0, 3, 2, 0, 1, 2])  # the model from which each client of a row starts
CENTER = torch.tensor([2, 0, 1, 0, 2, 1, 3])  # the model to which its proximal term pulls it
ROUND = 2
# weights of the four models in three mixtures
MIXING = torch.tensor([[0.125, 0.25, 0.25, 0.375], [0.0, 0.625, 0.125, 0.25], [0.25, 0.5, 0.25, 0.0]]).double()


@dataclass(frozen=True, eq=False)
class Case:
    task: Callable[[], LightningModule]
    data: Callable[[], FederatedData]
    local: LocalTraining
    options: Mapping[str, Any]  # more arguments of `LocalWork.fit`; functions of ids `[n]` if they differ by client

    def options_of(self, clients: Tensor) -> dict[str, Any]:
        return {name: value(clients) if callable(value) else value for name, value in self.options.items()}


def _plan_of(way: str, precision: Any = None, **options: Any) -> Plan:
    plan = _PLANS[way]
    return replace(plan, precision=precision or ("32-true" if plan.engine == "chain" else "64-true"), **options)


class Clients:
    """The clients of a row, trained in one way. They start from four models, and are pulled to the same four."""

    def __init__(self, way: str, case: Case, precision: Any = None) -> None:
        self.case, self.data = case, case.data()
        self._engine = build_engine(case.task, _plan_of(way, precision), 5, case.local)
        self.models = torch.stack([self._engine.initial(number) for number in range(4)])
        self.work: LocalWork = self.at(ROUND)

    def at(self, round: int) -> LocalWork:
        return self._engine.at(round, self.data)

    def fit(self, clients: Tensor, round: int = ROUND) -> Fitted:
        options = self.case.options_of(clients)
        pull = {"centers": self.models, "center": CENTER[clients]}
        return self.at(round).fit(self.models, clients, START[clients], **pull, **options)

    def score(self, which: Tensor, index: Tensor) -> dict[str, Tensor]:
        """Scores examples, each under the model assigned to it, and under mixtures of all models."""
        engine, weights = self._engine, MIXING[: which.max() + 1]
        found = {"of a model": engine.outcomes_of_each(self.models, which, index, self.data)}
        if hasattr(engine.template, "mix_outputs"):
            found["of a mixture"] = engine.outcomes_of_mixtures(self.models, weights, which, index, self.data)
        return {
            f"{what} {of}": getattr(outcomes, what)
            for of, outcomes in found.items()
            for what in ("losses", "values", "weights", "outputs")
            if getattr(outcomes, what) is not None
        }

    def module(self, row: Tensor) -> LightningModule:
        return self._engine.module(row)

    def close(self) -> None:
        self._engine.close()


def judge(
    make: Callable[[], LightningModule], data: FederatedData, local: LocalTraining
) -> tuple[str | None, dict[str, str | None]]:
    """Returns why a module is refused, or None, and the reason against each way but `trainer`, or None."""
    try:
        work = Workload.of(make, 5, local, data, len(data.population))
        engine = build_engine(make, choose_plan("auto", "cpu", "32-true", work), 5, local)
        require_trainable(engine, data)
    except InputError as error:
        return str(error), {}
    ways = {"chain": ("cpu", "32-true"), "stack": ("cuda:0", "64-true"), "loop": ("cpu", "64-true")}
    return None, {way: work.trial.reason_against(get_way(way), *on) for way, on in ways.items()}


def fit_twice(
    way: str, make: Callable[[], LightningModule], data: FederatedData, local: LocalTraining, precision: Any = None
) -> tuple[Tensor, Tensor]:
    """Trains all clients for two rounds, the second from the models of the first. Returns `[2, n, d]` and losses."""
    engine = build_engine(make, _plan_of(way, precision, lanes=2), 5, local)
    everyone = torch.arange(data.num_clients)
    first = engine.at(0, data).fit(torch.stack([engine.initial(0), engine.initial(1)]), everyone, everyone % 2)
    second = engine.at(1, data).fit(first.rows, everyone, everyone)
    return torch.stack([first.rows, second.rows]), torch.stack([first.losses, second.losses])


def why_absent(way: str) -> str | None:
    if way == "gpu" and not torch.cuda.is_available():
        return "there is no GPU"
    if _PLANS[way].engine == "chain" and load_library()[0] is None:
        return "there are no compiled steps"
    return None


def set_form(way: str, patch: pytest.MonkeyPatch) -> None:
    """Forces a chain to hold the weights of its first layer or, as `dual`, their products, not what seems faster."""
    if _PLANS[way].engine == "chain":
        patch.setattr(chain, "dual_pays", lambda size, *rest: torch.full_like(size, way == "dual").bool())


def find_refusal(way: str, case: Case) -> str | None:
    plan = _plan_of(way)
    if plan.engine == "trainer":
        return None
    # on a CPU a stack is refused as slow, but it computes the same
    device = "cuda:0" if plan.engine == "stack" else plan.device
    return _trial_of(case).reason_against(get_way(plan.engine), device, plan.precision)


@cache
def _trial_of(case: Case) -> Trial:
    return Trial.of(Clients("trainer", case)._engine.template, case.data(), case.local)


def make_work(
    way: str, task: Callable[[], LightningModule], data: FederatedData, local: LocalTraining, rows_mib: int = 1024
) -> Any:
    """Returns an engine of one way, which reads local models that take more than `rows_mib` in chunks."""
    return build_engine(task, _plan_of(way, rows_mib=rows_mib), 5, local)
