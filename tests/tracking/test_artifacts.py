"""The models that W&B gets: a state dict for each cluster that somebody uses, and no copy of what all of them share."""

from dataclasses import dataclass
from pathlib import Path

import torch
from quadratic import ids
from ragged import SGD
from torch import Tensor, nn

from lit_cfl.algorithms import Assignment
from lit_cfl.engines.base import Engine
from lit_cfl.engines.plan import Plan
from lit_cfl.tasks import Classification
from lit_cfl.tracking.artifacts import cluster_models


class Tied(nn.Module):
    """A frozen layer, and a trained one that has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 100).requires_grad_(False)
        self.head = nn.Linear(100, 10)
        self.same = self.head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.same(self.base(inputs.flatten(1)).relu())


@dataclass(frozen=True)
class Served:
    assignment: Assignment

    def serve(self, state, clients):
        return self.assignment


def test_each_used_cluster_has_its_weights_and_all_share_what_is_frozen(tmp_path: Path):
    engine = Engine(lambda: Classification(Tied(), SGD), Plan("loop", "cpu"), 0)
    rows = torch.stack([engine.initial(number) for number in range(4)])
    served = Served(Assignment(rows[:3], ids(2, -1, 0, 2), {"global": rows[3]}))
    models = cluster_models(served, None, engine, ids(0, 1, 2, 3))
    assert list(models) == ["0", "2", "global"]
    for name, row in (("0", rows[0]), ("2", rows[2]), ("global", rows[3])):
        state = models[name]
        weight, bias = row[:1000].view(10, 100), row[1000:]
        for layer in ("net.head", "net.same"):
            assert torch.equal(state[f"{layer}.weight"], weight)
            assert torch.equal(state[f"{layer}.bias"], bias)
        assert torch.equal(state["net.base.weight"], engine.template.state_dict()["net.base.weight"])
    assert len({state["net.base.weight"].data_ptr() for state in models.values()}) == 1
    torch.save(models, tmp_path / "models.pt")
    assert (tmp_path / "models.pt").stat().st_size < 2 * 6500 * 4  # one frozen layer, three heads


def test_where_nobody_has_a_model_there_is_nothing_to_keep():
    engine = Engine(lambda: Classification(Tied(), SGD), Plan("loop", "cpu"), 0)
    nobody = Served(Assignment(engine.initial(0)[None], ids(-1, -1)))
    assert cluster_models(nobody, None, engine, ids(0, 1)) == {}
