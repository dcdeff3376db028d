"""Tests integer inputs: token ids for a net with an embedding, numbers for other nets."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lit_cfl.algorithms import FedAvg
from lit_cfl.config.parser import parse_run
from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_module import mark_tokens, takes_tokens
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification, NextToken

X = np.random.default_rng(0).integers(1, 12, (60, 4))


def integers(**options: Any) -> ArrayData:
    return ArrayData(X, X[:, 0] % 3, np.arange(60) // 10, **options)


def embedding(labels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Embedding(12, 5), nn.Flatten(), nn.Linear(20, labels))


def prepared(net: Any, data: ArrayData) -> Any:
    task = lambda: Classification(net(), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    return Experiment(data, task, FedAvg(), rounds=1, cohort_size=2).prepare(0)


def inputs_of(run: Any) -> Tensor:
    return run.engine.examples(run.data).batch(torch.tensor([3]))[0]


def test_numbers_unless_the_net_has_an_embedding():
    numbers = prepared(lambda: MCLR([4], 3), integers())
    assert inputs_of(numbers).tolist() == X[3:4].astype(float).tolist()
    assert inputs_of(numbers).dtype == torch.float32
    tokens = prepared(embedding, integers())
    assert inputs_of(tokens).tolist() == X[3:4].tolist()
    assert not inputs_of(tokens).is_floating_point()
    assert tokens.data.examples.vocabulary == 12
    assert numbers.fingerprint["partition"] == tokens.fingerprint["partition"]
    for run in (numbers, tokens):
        assert [np.isfinite(r.info.loss) for r in run.rounds()] == [True]


def test_integers_train_as_floats_of_the_same_value():
    floats = ArrayData(X.astype(np.float32), X[:, 0] % 3, np.arange(60) // 10)
    models = [list(prepared(lambda: MCLR([4], 3), data).rounds())[-1].state.models for data in (integers(), floats)]
    assert torch.equal(*models)


class Table(nn.Module):
    """Net that looks up the logits of the next token by the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, 12))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


def test_task_may_say_that_it_takes_tokens():
    assert not takes_tokens(Classification(Table()))
    assert takes_tokens(NextToken(Table()))
    assert takes_tokens(nn.Sequential(nn.EmbeddingBag(12, 2)))


def test_asking_builds_a_module_only_for_integers_and_draws_nothing():
    def refuse() -> nn.Module:
        raise AssertionError("built")

    for data in (ArrayData(X / 2, X[:, 0]), ArrayData(X - 9, X[:, 0]), integers(vocabulary=12)):
        federated = data.federated(0)
        assert mark_tokens(federated, refuse) is federated
    before = torch.random.get_rng_state()
    mark_tokens(integers().federated(0), embedding)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_token_ids_for_a_net_without_an_embedding_say_what_to_choose():
    with pytest.raises(InputError, match="the inputs are token ids: choose a net with an embedding"):
        prepared(lambda: MCLR([4], 3), integers(vocabulary=12))


def test_label_that_an_embedding_net_cannot_predict_is_not_blamed_on_the_tokens():
    with pytest.raises(InputError) as error:
        prepared(lambda: embedding(2), integers())
    assert "token ids" not in str(error.value)


def test_defaults_of_0_are_filled_in_from_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "zero_defaults.py").write_text(
        "import numpy as np\nfrom torch import nn\nfrom lit_cfl.datamodules import ArrayData\n\n"
        "class Toks(ArrayData):\n    '''Token ids.'''\n    def __init__(self):\n"
        "        x = np.random.default_rng(0).integers(1, 12, (240, 10))\n"
        "        super().__init__(x, (x[:, 0] > 5).astype(int), client=np.arange(240) // 30)\n\n"
        "class Net(nn.Sequential):\n    '''Embeds all tokens.'''\n"
        "    def __init__(self, vocabulary: int = 0, num_labels: int = 0):\n"
        "        super().__init__(nn.Embedding(vocabulary, 8), nn.Flatten(), nn.Linear(80, num_labels))\n"
    )
    (tmp_path / "own.yaml").write_text(
        "rounds: 1\ncohort_size: 2\ndata: {class_path: zero_defaults.Toks}\nalgorithm: FedAvg\n"
        "task: {class_path: Classification, init_args: {net: {class_path: zero_defaults.Net}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    run = parse_run(["--config", "own.yaml"]).experiment.prepare(0)
    net = run.engine.template.net
    assert (net[0].num_embeddings, net[2].out_features) == (12, 2)
