"""Tests what `work.map` refuses, and that what clients send holds no other memory.

Order, answers and bytes are stated by `test_local_work.py`, random numbers by `test_ways.py`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from quadratic import ids
from ragged import SHAPE, ragged_data, task
from torch import Tensor

from lit_cfl.cli.main import main
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork
from lit_cfl.nets import MCLR
from lit_cfl.storage.csv_log import read_table


def work_of(round: int = 0) -> LocalWork:
    return build_engine(task(lambda: MCLR(SHAPE, 10)), Plan("loop"), 5, LocalTraining()).at(round, ragged_data())


def test_what_a_client_sends_holds_no_other_memory_and_draws_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    (first,) = work_of().map(lambda inputs, labels: inputs[0, 0].T[1] + torch.rand(8), ids(3))
    assert torch.equal(torch.random.get_rng_state(), before)
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
def test_anything_but_tensors_is_refused_with_the_client(answer: Callable, named: str):
    with pytest.raises(InputError, match=f"client 3: .*{named}"):
        work_of().map(answer, ids(0, 3, 2))


def test_error_of_the_function_names_the_client():
    def fails(inputs: Tensor, labels: Tensor) -> Tensor:
        return 1 // (len(labels) - 17) * inputs

    with pytest.raises(ZeroDivisionError) as caught:
        work_of(4).map(fails, ids(1, 2, 3))
    assert caught.value.__notes__ == ["It was raised in round 5, by the function of work.map on client 2."]


OWN = """
from lit_cfl.algorithms import FedAvg

class Asks(FedAvg):
    def round(self, state, cohort, work, rng):
        work.map(lambda inputs, labels: labels.bincount(minlength=10), cohort)
        return super().round(state, cohort, work, rng)
"""


def test_a_run_counts_what_clients_sent_across_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("asks_for_labels.py").write_text(OWN)
    config = {
        "name": "asks",
        "rounds": 1,
        "cohort_size": 3,
        "data": {"class_path": "Digits", "init_args": {"num_clients": 6}},
        "task": {"class_path": "Classification", "init_args": {"net": {"class_path": "MCLR"}}},
        "algorithm": {"class_path": "asks_for_labels.Asks"},
        "tracking": {"wandb": "disabled"},
    }
    Path("asks.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "asks.yaml", "--run_dir", "parts"]) == 0
    assert main(["run", "--resume", "parts", "--rounds", "3"]) == 0
    model, answers = 650 * 4, 10 * 8
    rows = read_table(Path("parts", "metrics.csv"))
    assert [row["traffic/mib"] for row in rows] == [n * 3 * (2 * model + answers) / 2**20 for n in (1, 2, 3)]
    assert rows[-1]["traffic/round_mib"] == 3 * (2 * model + answers) / 2**20
