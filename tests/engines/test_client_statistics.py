"""Tests `work.map`, which applies a user's function to each client's training examples, in every engine."""

from pathlib import Path

import pytest
import torch
import yaml
from quadratic import ids
from ragged import PLANS, ragged_data, task
from test_engines import NETS
from torch import Tensor

from lit_cfl.cli.main import main
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.storage.csv_log import read_table

DATA = ragged_data()


def engine_of(plan: Plan, net: str = "mlp with dropout") -> Engine:
    return build_engine(task(NETS[net]), plan, 5, LocalTraining())


def noisy_moments(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"mean": inputs.mean(0), "classes": labels.bincount(minlength=10), "noise": torch.rand(2)}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_clients_send_what_the_function_returns_of_their_own_examples(plan: Plan):
    work = engine_of(plan).at(2, DATA)
    nobody, one, two = work.map(lambda inputs, labels: (inputs.mean(0), labels), ids(0, 4, 2))
    assert nobody is None
    for client, (mean, labels) in ((4, one), (2, two)):
        inputs, expected = DATA.examples.batch(DATA.train[client], plan.dtype)
        assert torch.equal(labels, expected)
        assert torch.equal(mean, inputs.mean(0))
    assert work.bytes_up == 2 * 64 * 4 + (9 + 17) * 8
    assert work.map(lambda inputs, labels: labels, ids()) == []


def test_random_numbers_of_a_function_belong_to_the_client_and_the_round():
    engine = engine_of(Plan("loop"))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b = engine.at(2, DATA).map(noisy_moments, ids(2, 3))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    c, d = engine.at(2, DATA).map(noisy_moments, ids(3, 2))
    assert torch.equal(a["noise"], d["noise"])
    assert torch.equal(b["noise"], c["noise"])
    assert not torch.equal(a["noise"], b["noise"])
    assert not torch.equal(engine.at(3, DATA).map(noisy_moments, ids(2))[0]["noise"], a["noise"])


def test_a_model_that_is_sent_along_is_a_module_without_dropout_and_gradients():
    engine = engine_of(Plan("loop"))
    row = engine.initial(3)
    features = lambda inputs, labels, module: module(inputs)  # noqa: E731
    (found,) = engine.at(0, DATA).map(features, ids(2), row)
    module = engine.module(row).eval()
    assert torch.equal(found, module(DATA.examples.batch(DATA.train[2])[0]).detach())
    assert not found.requires_grad


def test_what_a_client_sends_holds_no_other_memory():
    (first,) = engine_of(Plan("loop")).at(0, DATA).map(lambda inputs, labels: inputs[0, 0].T[1], ids(3))
    assert first.untyped_storage().nbytes() == first.nbytes
    assert first.is_contiguous()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda inputs, labels: 3.0, "a float"),
        (lambda inputs, labels: [inputs], "a list of Tensor"),
        (lambda inputs, labels: (inputs, 2), "a tuple of Tensor, int"),
        (lambda inputs, labels: {1: inputs}, "a dict of Tensor"),
    ],
)
def test_anything_but_tensors_is_refused_with_the_client(answer, named: str):
    expected = f"client 3: the function of work.map returns {named}; return a tensor, or a tuple or dict"
    with pytest.raises(InputError, match=expected):
        engine_of(Plan("loop")).at(0, DATA).map(answer, ids(0, 3, 2))


def test_error_of_the_function_names_the_client():
    def fails(inputs: Tensor, labels: Tensor) -> Tensor:
        return 1 // (len(labels) - 17) * inputs

    with pytest.raises(ZeroDivisionError) as caught:
        engine_of(Plan("loop")).at(4, DATA).map(fails, ids(1, 2, 3))
    assert caught.value.__notes__ == ["It was raised in round 5, by the function of work.map on client 2."]


OWN = """
import torch
from lit_cfl.algorithms import FedAvg

class Asks(FedAvg):
    def round(self, state, cohort, work, rng):
        counts = work.map(lambda inputs, labels: labels.bincount(minlength=10), cohort)
        assert torch.equal(torch.stack(counts), work.label_counts[cohort])
        return super().round(state, cohort, work, rng)
"""


def test_a_run_counts_what_clients_sent_across_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("asks_for_labels.py").write_text(OWN)
    config = {
        "name": "asks",
        "rounds": 4,
        "cohort_size": 3,
        "data": {"class_path": "Digits", "init_args": {"num_clients": 6}},
        "task": {"class_path": "Classification", "init_args": {"net": {"class_path": "MCLR"}}},
        "algorithm": {"class_path": "asks_for_labels.Asks"},
        "tracking": {"wandb": "disabled"},
    }
    Path("asks.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "asks.yaml", "--run_dir", "whole"]) == 0
    assert main(["run", "--config", "asks.yaml", "--run_dir", "parts", "--rounds", "2"]) == 0
    assert main(["run", "--resume", "parts", "--rounds", "4"]) == 0
    whole, parts = (read_table(Path(name, "metrics.csv")) for name in ("whole", "parts"))
    model, answers = 650 * 4, 10 * 8
    assert [row["traffic/mib"] for row in whole] == [n * 3 * (2 * model + answers) / 2**20 for n in (1, 2, 3, 4)]
    assert [row["traffic/mib"] for row in parts] == [row["traffic/mib"] for row in whole]
    assert whole[-1]["traffic/round_mib"] == 3 * (2 * model + answers) / 2**20
