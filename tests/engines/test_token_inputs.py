"""Tests integer inputs: token ids for a net with an embedding, numbers for other nets."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lit_cfl.algorithms import FedAvg
from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_module import takes_tokens
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification, NextToken

X = np.random.default_rng(0).integers(1, 12, (60, 4))
LINEAR = partial(MCLR, [4], 3)


def data_of(inputs: Any = X, **options: Any) -> ArrayData:
    return ArrayData(inputs, X[:, 0] % 3, np.arange(60) // 10, **options)


def embedding(labels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Embedding(12, 5), nn.Flatten(), nn.Linear(20, labels))


def prepared(net: Any, data: ArrayData) -> Any:
    task = lambda: Classification(net(), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
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
    floats = prepared(LINEAR, data_of(X.astype(np.float32)))
    assert torch.equal(*(list(run.rounds())[-1].state.models for run in (numbers, floats)))


def test_task_may_say_that_it_takes_tokens():
    assert not takes_tokens(Classification(nn.Linear(2, 2)))
    assert takes_tokens(NextToken(nn.Linear(2, 2)))
    assert takes_tokens(nn.Sequential(nn.EmbeddingBag(12, 2)))


def test_token_ids_are_blamed_only_if_the_net_has_no_embedding():
    with pytest.raises(InputError, match="token ids: choose a net with an embedding"):
        prepared(LINEAR, data_of(vocabulary=12))
    with pytest.raises(InputError) as error:
        prepared(partial(embedding, 2), data_of())  # a label that the net does not have
    assert "token ids" not in str(error.value)
