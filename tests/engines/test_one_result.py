"""One result for each net and for each algorithm: the stack computes what a Trainer a client does."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from lanes import thinned
from ragged import SGD, SHAPE, ragged_data, task
from torch.testing import assert_close

import lit_cfl.algorithms
from lit_cfl import nets
from lit_cfl.algorithms import CFL, FLHC, IFCA, AdaCFL, Algorithm, FedGroup, FeSEM, FlexCFL, LayerCFL
from lit_cfl.config import catalogue
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.nets import MLP
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.storage.checkpoint import state_to_dict

TRAINER = Plan("trainer", precision="64-true")
ALL = [getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")]
STACK = Plan("stack", precision="64-true", lanes=4)
SPLITS = {"eps1": 10.0, "eps2": 1e-6, "warmup_rounds": 1}  # in every round that may
SETTINGS: dict[type[Algorithm], Algorithm] = {
    CFL: CFL(**SPLITS),
    LayerCFL: LayerCFL(layers=["fc*"], **SPLITS),
    AdaCFL: AdaCFL(**SPLITS),
    FLHC: FLHC(1, num_clusters=2),
    IFCA: IFCA(2),
    FeSEM: FeSEM(2),
    FedGroup: FedGroup(2),
    FlexCFL: FlexCFL(2),
}


def images(side: int, sizes: tuple[int, ...]) -> FederatedData:
    rng, total = torch.Generator().manual_seed(0), sum(sizes)
    pixels = torch.randint(0, 255, (total, 1, side, side), generator=rng, dtype=torch.uint8)
    none, train = ClientIndex.empty(len(sizes)), ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    examples = Examples(pixels, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    return FederatedData(examples, train, none, none, torch.zeros(len(sizes), dtype=torch.int64))


@pytest.mark.long
@pytest.mark.parametrize("name", thinned(["FEMNISTCNN", "FashionCNN", "LeNet", "StoCFLCNN", "SattlerCNN"]))
def test_every_convolutional_net_gives_one_result(name: str):
    data, make = images(28, (3, 0, 5)), task(partial(getattr(nets, name), [1, 28, 28], 10), SGD)
    rows = []
    for plan in (TRAINER, STACK):
        engine = build_engine(make, plan, 5, LocalTraining(1, 2))
        rows.append(engine.at(2, data).fit(engine.initial(0)[None], torch.arange(3)).rows)
    assert_close(rows[1], rows[0], rtol=0, atol=1e-12)
    assert (rows[0][0] - rows[0][1]).norm() > 1e-3  # the first has trained, the second has nothing


@pytest.mark.long
@pytest.mark.parametrize("kind", thinned(ALL, ids=[kind.__name__ for kind in ALL]))
def test_every_algorithm_gives_one_result(kind: type[Algorithm]):
    data, algorithm, ends = ragged_data((8, 3, 17, 36, 9, 20)), SETTINGS.get(kind) or kind(), []
    data = replace(data, test=data.train)
    for plan in (TRAINER, STACK):
        engine = build_engine(task(lambda: MLP(12, SHAPE, 10)), plan, 5, LocalTraining(2, 10))
        *_, last = rounds(algorithm, engine, data, Cohorts(4), seed=5, num_rounds=3)
        ends.append(state_to_dict(last.state))
    assert ends[0]
    require_alike(ends[1], ends[0])


def require_alike(found: Any, expected: Any, name: str = "state") -> None:
    """States agree to 1e-11 after three rounds of sums and norms, also in models that dictionaries and lists hold."""
    assert type(found) is type(expected), name
    if isinstance(expected, dict):
        assert list(found) == list(expected), name
        for key, value in expected.items():
            require_alike(found[key], value, f"{name}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), name
        for number, (mine, value) in enumerate(zip(found, expected, strict=True)):
            require_alike(mine, value, f"{name}.{number}")
    elif isinstance(expected, float | torch.Tensor):
        assert_close(found, expected, rtol=0, atol=1e-11, equal_nan=True, msg=lambda why: f"{name}: {why}")
    else:
        assert found == expected, name
