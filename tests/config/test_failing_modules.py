"""Tests that an error of a user's module in training or scoring names the client, the round and the data."""

from pathlib import Path

import pytest

from lit_cfl.cli.main import main
from lit_cfl.datamodules import Digits
from lit_cfl.rounds import Cohorts

PICKY = """
from lit_cfl.tasks import Classification

class Picky(Classification):
    def losses(self, batch):
        if self.training and abs(float(batch[0].sum()) - {total}) < 1e-2:
            raise LookupError("no such thing")
        return super().losses(batch)
"""
SCORED = """
from lit_cfl.tasks import Classification

class Scored(Classification):
    def outcomes(self, batch):
        if len(batch[1]) > 10:  # the check before the rounds has one example of each label
            raise LookupError("no such thing")
        return super().outcomes(batch)
"""
RUN = "run --config quickstart --baseline null --task.net MCLR --seed 0"
FEW = "--rounds 1 --data.num_clients 4 --cohort_size 4 --local.epochs 1 --data.validation 0"


def notes_of(folder: Path, name: str, text: str, options: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    Path(f"{name}.py").write_text(text)
    with pytest.raises(LookupError, match="no such thing") as raised:
        main(f"{RUN} {options}".split())
    return raised.value.__notes__


@pytest.mark.parametrize("engine", ["trainer", "loop"])
def test_an_error_in_training_names_the_client_and_the_round(engine: str, tmp_path: Path, monkeypatch):
    data, cohorts = Digits(validation=0.1).federated(0), Cohorts(10, "round_robin_first")
    first, second = (set(cohorts.at(round, data.population, 0).tolist()) for round in (0, 1))
    client = min(second - first)
    images, _ = data.examples.batch(data.train[client])
    options = f"--task own_{engine}.Picky --engine {engine} --local.batch_size full --plan.lanes 1 --rounds 2"
    options += " --algorithm FedAvg --cohort_size 10"
    notes = notes_of(tmp_path, f"own_{engine}", PICKY.format(total=float(images.sum())), options, monkeypatch)
    assert notes == [f"It was raised in round 2, while client {client} was trained."]


WHERE = {
    "FedAvg": ["while model 0 of the clients 0, 1, 2, 3 on test data was scored", "in the evaluation of round 1"],
    "IFCA": ["in round 1, in losses on the clients 0, 1, 2, 3"],
}


@pytest.mark.parametrize("algorithm", WHERE)
def test_an_error_in_scoring_names_the_round_the_split_and_whose_model_it_was(algorithm: str, tmp_path, monkeypatch):
    module = f"own_scored_{algorithm}"
    options = f"{FEW} --task {module}.Scored --algorithm {algorithm}"
    notes = notes_of(tmp_path, module, SCORED, options, monkeypatch)
    assert notes == [f"It was raised {note}." for note in WHERE[algorithm]]
