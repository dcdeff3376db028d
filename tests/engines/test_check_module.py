"""Tests `check_module.py`: when BatchNorm has no variance, and whether integers are token ids or numbers.

That each client has statistics of its own, and when an example may be alone, is stated by `test_ways.py`.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ragged import PLANS, ragged_data, task
from torch import nn

from lit_cfl.algorithms import FedAvg
from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_module import require_no_single_batch, takes_tokens
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification, NextToken


def units() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))


@pytest.mark.parametrize("plan", ["trainer", "plain loop", "4 lanes"])
def test_every_engine_refuses_a_batch_of_one_example_before_it_trains(plan: str):
    engine = build_engine(task(units), PLANS[plan], 5, LocalTraining(2, 4))
    model, part = engine.initial(0), engine._fit_part
    engine._fit_part = None  # must not be called
    for sizes, budget, client in (
        ((8, 9, 6), None, 1),
        ((8, 10, 6), Budget(1, "epochs", 9), 1),
        ((8, 3, 1), Budget(1, "epochs", "full"), 2),
    ):
        size = budget.batch_size if budget is not None else 4
        with pytest.raises(InputError, match=f"client {client} .* batch size {size}, .* GroupNorm"):
            engine.at(0, ragged_data(sizes)).fit(model[None], torch.arange(3), budget=budget)
    with pytest.raises(InputError, match=r"client 2 .* only example"):
        engine.at(0, ragged_data((8, 9, 1))).gradients(model, torch.arange(3))
    engine._fit_part = part
    with pytest.raises(InputError, match=r"client 1 .* one of its 9 examples"):
        require_trainable(engine, ragged_data((8, 9, 16)))


@pytest.mark.parametrize(
    ("size", "batch_size", "last", "remedy"),
    [
        (31, 10, "keep", "local.last_batch to join,"),
        (1, 10, "join", "partition.min_examples"),
        (31, 10, "join", None),
        (31, 10, "drop", None),
    ],
)
def test_a_remedy_is_named_where_an_example_is_alone(size: int, batch_size: int, last: Any, remedy: str | None):
    counts = torch.tensor([size, 40])
    with pytest.raises(InputError, match=remedy) if remedy else nullcontext():
        require_no_single_batch(torch.arange(2), counts, counts, batch_size, last)


# Integer inputs: token ids for a net with an embedding, numbers for other nets


X = np.random.default_rng(0).integers(1, 12, (60, 4))
LINEAR = partial(MCLR, [4], 3)


def data_of(inputs: Any = X, **options: Any) -> ArrayData:
    return ArrayData(inputs, X[:, 0] % 3, np.arange(60) // 10, **options)


def embedding(labels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Embedding(12, 5), nn.Flatten(), nn.Linear(20, labels))


def prepared(net: Any, data: ArrayData) -> Any:
    def task() -> Classification:
        return Classification(net(), partial(torch.optim.SGD, lr=0.1))

    return Experiment(data, task, FedAvg(), rounds=1, cohort_size=2).prepare(0)


def test_integers_are_numbers_unless_the_net_has_an_embedding():
    numbers, tokens = prepared(LINEAR, data_of()), prepared(embedding, data_of())
    of_numbers, of_tokens = (run.engine.examples(run.data).batch(torch.tensor([3]))[0] for run in (numbers, tokens))
    assert of_numbers.tolist() == X[3:4].astype(float).tolist()
    assert of_tokens.tolist() == X[3:4].tolist()
    assert (of_numbers.dtype, of_tokens.dtype) == (torch.float32, torch.int64)
    assert tokens.data.examples.vocabulary == 12
    assert numbers.fingerprint["partition"] == tokens.fingerprint["partition"]
    assert [np.isfinite(done.info.loss) for done in tokens.rounds()] == [True]
    kinds = Classification(nn.Linear(2, 2)), NextToken(nn.Linear(2, 2)), nn.Sequential(nn.EmbeddingBag(12, 2))
    assert list(map(takes_tokens, kinds)) == [False, True, True]  # a task may say that it takes tokens
    floats = prepared(LINEAR, data_of(X.astype(np.float32)))
    assert torch.equal(*(list(run.rounds())[-1].state.models for run in (numbers, floats)))


def test_token_ids_are_blamed_only_if_the_net_has_no_embedding():
    with pytest.raises(InputError, match="token ids: choose a net with an embedding"):
        prepared(LINEAR, data_of(vocabulary=12))
    with pytest.raises(InputError) as error:
        prepared(partial(embedding, 2), data_of())  # a label that the net does not have
    assert "token ids" not in str(error.value)
