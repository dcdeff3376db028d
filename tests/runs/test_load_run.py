"""Tests opening runs: tables, models, scores, and newcomers, whose labels are matched to those of the run by name."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from digits_experiment import digits
from lightning import Trainer
from processes import replace_everywhere
from quadratic import ids
from torch.utils.data import DataLoader, TensorDataset

from lit_cfl import load_run, run
from lit_cfl.algorithms import IFCA, Ditto, FedAvg, FedProx, StoCFL
from lit_cfl.algorithms.base import Algorithm
from lit_cfl.cli.main import main
from lit_cfl.clustering.cluster_scores import agreement
from lit_cfl.data import Examples, View
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.errors import InputError, Notice
from lit_cfl.runs.load_run import SavedRun
from lit_cfl.runs.newcomers import match_examples, renumber_labels
from lit_cfl.storage.csv_log import read_table


def after_a_round(algorithm: Algorithm, folder: Path, data: Digits | None = None, clients: int = 3) -> SavedRun:
    experiment = digits(data=data or Digits(8), algorithm=algorithm, rounds=1, cohort_size=clients)
    run(experiment, folder / "run")
    return load_run(folder / "run", experiment)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    words = ["--rounds", "4", "--data.num_clients", "16", "--cohort_size", "8"]
    assert main(["run", "--config", "quickstart", "--run_dir", str(path), *words]) == 0
    return path


def test_a_saved_run_holds_configuration_metrics_and_memberships(path: Path, monkeypatch: pytest.MonkeyPatch):
    saved, rows = load_run(path), read_table(path / "metrics.csv")
    assert saved.config["algorithm"]["class_path"].endswith("FedGroup")
    assert saved.memberships["cluster"][-1].tolist() == saved.served().index.tolist()
    assert saved.clients["cluster"].tolist() == saved.served().index.tolist()
    monkeypatch.chdir(path.parent)
    assert repr(load_run(path.name)).startswith(f"<SavedRun {path.name}: FedGroup, round 4 of 4; ")
    assert list(saved.metrics) == list(rows[0])
    assert saved.metrics["round"].tolist() == [1, 2, 3, 4]
    for name in ("test/weighted_accuracy", "train/loss", "clusters/churn"):
        expected = [math.nan if row[name] is None else row[name] for row in rows]
        assert saved.metrics[name].tolist() == pytest.approx(expected, abs=0, nan_ok=True)


def test_metrics_end_at_the_round_that_was_saved(path: Path, tmp_path: Path):
    shutil.copytree(path, tmp_path / "run")
    (tmp_path / "run" / "SHA256SUMS").unlink()
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("5,0.8")  # as if the process had been killed while writing this row
    assert load_run(tmp_path / "run").metrics["round"].tolist() == [1, 2, 3, 4]


def test_modules_predict_what_the_run_scored(path: Path):
    saved = load_run(path)
    data, served = saved.prepared.data, saved.served()
    for client in (0, 1, 7):
        inputs, labels = data.examples.batch(data.test[client])
        module = saved.module(int(served.index[client]))
        trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        found = torch.cat(trainer.predict(module, DataLoader(TensorDataset(inputs, labels), batch_size=4)))
        assert (found == labels).double().mean().item() == pytest.approx(saved.clients["accuracy"][client])


def test_the_plan_of_another_machine_does_not_stop_a_prediction(path: Path, tmp_path: Path):
    shutil.copytree(path, tmp_path / "run")
    replace_everywhere(tmp_path / "run", "device: cpu", "device: cuda:31")
    assert load_run(tmp_path / "run").prepared.engine.plan.device == "cpu"


def test_a_given_experiment_is_that_of_the_run(tmp_path: Path):
    experiment = digits(data=Digits(8), rounds=2, seeds=[4, 5], baseline=FedProx())
    run(experiment, tmp_path / "run")
    assert load_run(tmp_path / "run" / "seed-5", experiment).prepared.seed == 5
    assert load_run(tmp_path / "run" / "seed-5" / "baseline", experiment.for_baseline()).prepared.seed == 5
    for below, given, named in (
        ("seed-5/baseline", experiment, r"algorithm.*for_baseline\(\)"),
        ("", experiment, "seed-4, seed-5"),
        ("seed-4", replace(experiment, cohort_size=4), "cohort_size: 5 -> 4"),
    ):
        with pytest.raises(InputError, match=named):
            load_run(tmp_path / "run" / below, given)
    saved, (*_, last) = load_run(tmp_path / "run" / "seed-4", experiment), experiment.for_seed(4)
    assert torch.equal(last.state.models, saved.state.models)
    assert saved.round == last.number == 2
    with pytest.raises(InputError, match=r"Digits.*federated\(seed=0\)"):
        saved.assign(Digits(4))  # a data module in place of its clients: the mistake


def test_newcomers_join_the_cluster_of_their_rotation(path: Path):
    saved, data = load_run(path), Digits(8, partition_seed=99).federated(0)
    placed = saved.assign(data)
    truth_of = dict(zip(saved.clients["cluster"], saved.clients["true_cluster"], strict=True))
    assert [truth_of[cluster] for cluster in placed.assignment.index.tolist()] == data.true_clusters.tolist()
    assert torch.equal(placed.closeness.argmax(1), placed.assignment.index)
    assert placed.test.count.tolist() == data.test.sizes.tolist()


def test_newcomers_of_ditto_have_models_that_the_run_does_not_have(tmp_path: Path):
    saved = after_a_round(Ditto(), tmp_path)
    placed = saved.assign(Digits(4, partition_seed=9).federated(0))
    assert placed.assignment.index.tolist() == [3, 4, 5, 6]  # after the three clusters of the cohort
    assert placed.new.tolist() == [True] * 4
    module = placed.module(1)
    rows = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    assert torch.equal(rows, placed.assignment.models[4])
    with pytest.raises(InputError, match="no cluster 4 in"):
        saved.module(4)
    with pytest.raises(InputError, match=r"no newcomer 4.*0 to 3"):
        placed.module(4)


def test_newcomers_that_found_clusters_of_stocfl_are_new_also_under_a_number_that_was_free(tmp_path: Path):
    saved = after_a_round(StoCFL(tau=1.0), tmp_path)
    assert saved.state.counts.tolist() == [1, 1, 1]  # no clusters merge
    saved = replace(saved, state=replace(saved.state, counts=torch.tensor([1, 0, 1])))
    placed = saved.assign(Digits(2, partition_seed=9).federated(0))
    assert placed.assignment.index.tolist() == [1, 3]
    assert placed.new.tolist() == [True, True]
    assert placed.closeness.shape == (2, 3)


def test_newcomers_of_known_clusters_are_compared_with_them(tmp_path: Path):
    experiment = digits(data=Digits(8, rotations=[0, 180]), algorithm=IFCA(2), rounds=2, cohort_size=8)
    run(experiment, tmp_path / "run")
    data = Digits(6, rotations=[0, 180], partition_seed=9).federated(0)
    saved = load_run(tmp_path / "run", experiment)
    trained = set((saved.data.train.entries % 1797).tolist())
    number = sum(entry % 1797 in trained for entry in data.test.entries.tolist())
    assert number > 200
    with pytest.warns(
        Notice, match=f"^{number} of the 360 test examples of these clients are training data of the run"
    ):
        placed = saved.assign(data)
    found = placed.assignment.index
    assert placed.agreement == agreement(found, ids(0, 1, 0, 1, 0, 1))
    assert placed.names == data.names


class Watched(FedAvg):
    """Algorithm that records which labels it sees, and in which label space, when it places clients."""

    seen: ClassVar[list[tuple[int, set[int]]]] = []

    def place(self, state, clients, work, rng):
        shown = torch.cat(work.map(lambda inputs, labels: labels, clients))
        self.seen.append((work.label_counts.shape[1], set(shown.tolist())))
        return super().place(state, clients, work, rng)


def test_labels_of_newcomers_are_those_of_the_run_and_hidden_ones_are_shown_to_no_algorithm(tmp_path: Path):
    saved = after_a_round(Watched(), tmp_path)
    x = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    few = ArrayData(x=x, y=[0, 1, 2, 3] * 5, client=np.arange(20) % 2).federated(0)  # lacks some labels of the run
    plain, hidden = saved.assign(few), saved.assign(few, unlabelled=True)
    assert Watched.seen == [(10, {0, 1, 2, 3}), (0, {0})]
    assert hidden.assignment.index.tolist() == [0] * 2
    assert torch.equal(hidden.test.of_clients(), plain.test.of_clients())  # scored by their labels


def test_clients_that_the_models_cannot_take_are_refused(path: Path):
    saved = load_run(path)
    data, x = saved.prepared.data, np.ones((20, 1, 8, 8), np.float32)
    with pytest.raises(InputError, match="words"):
        saved.assign(replace(data, examples=replace(data.examples, words="another vocabulary")))
    with pytest.raises(InputError, match=r"10 labels.* 12 labels"):
        saved.assign(ArrayData(x=x, y=[0, 11] * 10, client=np.arange(20) % 2).federated(0))
    with pytest.raises(InputError, match="FedGroup cannot place clients without"):
        saved.assign(ArrayData(x=x, client=np.arange(20) // 10).federated(0))


def test_evaluate_and_assign_take_other_data(path: Path, capsys: pytest.CaptureFixture[str]):
    other = ["--data.num_clients", "8", "--data.partition_seed", "5"]
    assert main(["evaluate", str(path), *other]) == 0
    scored = capsys.readouterr().out
    assert "test, newcomers        8" in scored
    assert f"lit-cfl assign {path} --data.num_clients 8 --data.partition_seed 5\n" in scored
    assert main(["assign", str(path), *other]) == 0
    out = capsys.readouterr().out
    (ari,) = [line for line in out.splitlines() if line.startswith("ARI with their true clusters: ")]
    assert ari in scored
    assert "newcomer  cluster  closeness  next best" in out
    assert f"load_run('{path}').module(<cluster>)" in out
    assert main(["assign", str(path), "--data.num_clients", "4", "--unlabelled"]) == 2
    assert "FedGroup cannot place clients without labels" in capsys.readouterr().err


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("averaged") / "run"
    words = ["--algorithm", "FedAvg", "--baseline", "null", "--data.newcomers", "0.3", "--rounds", "1", "--quiet"]
    assert main(["run", "--config", "quickstart", *words, "--run_dir", str(path)]) == 0
    return path


def test_evaluate_prints_the_figures_without_newcomers(averaged: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(averaged)]) == 0
    lines, last = capsys.readouterr().out.splitlines(), read_table(averaged / "metrics.csv")[-1]
    for split in ("val", "test"):
        (line,) = [line.split() for line in lines if line.startswith(split)]
        assert line[1:3] == ["28", f"{last[f'{split}/weighted_accuracy']:.3f}"]
    # a share of 0.3 cannot be held out of one client, and need not be
    assert main(["assign", str(averaged), "--data.num_clients", "1", "--data.rotations", "null"]) == 0


def test_newcomers_without_labels_are_placed_and_not_scored(averaged: Path, tmp_path: Path, capsys):
    np.savez(tmp_path / "new.npz", x=np.ones((20, 1, 8, 8), np.float32), client=np.arange(20) // 10)
    words = ["assign", str(averaged), "--data", "ArrayData", "--data.source", str(tmp_path / "new.npz")]
    assert main([*words, "--unlabelled"]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()[1:3]] == [["0", "(0)", "0"], ["1", "(1)", "0"]]
    assert "weighted" not in out  # no scores are printed
    assert main(words) == 2
    assert "--unlabelled" in capsys.readouterr().err


def test_new_clients_may_be_tested_on_a_label_of_the_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"0.{n},{'cat' if n % 2 else 'dog'},{n % 4 // 2 + 5}\n" for n in range(40))
    Path("old.csv").write_text(f"x,y,client\n{rows}")
    words = "--data ArrayData --data.source old.csv --data.test 0.5 --algorithm FedAvg --baseline null --rounds 1"
    assert main(["run", "--config", "quickstart", *words.split(), "--cohort_size", "2", "--run_dir", "run"]) == 0
    Path("new.csv").write_text("x,y,client\n0.1,cat,9\n0.2,dog,9\n")  # one of them is the test example
    assert main(["assign", "run", "--data.source", "new.csv"]) == 0
    Path("new.csv").write_text("x,y,client\n0.1,cat,5\n0.2,dog,5\n0.3,dog,7\n0.4,dog,7\n")
    with pytest.warns(Notice, match=r"names of the run's clients \(5\)"):
        assert main(["assign", "run", "--data.source", "new.csv"]) == 0
    Path("old.csv").rename("moved.csv")
    assert main(["assign", "run", "--data.source", "new.csv"]) == 2
    assert "old.csv" in capsys.readouterr().err


def examples(labels: list[int], num_labels: int, *names: str, views: tuple[View, ...] = ()) -> Examples:
    inputs = torch.rand(len(labels), 2)
    options = {"views": views} if views else {}
    return Examples(inputs, torch.tensor(labels), num_labels, label_names=names, **options)


def test_labels_are_renumbered_by_their_names_as_a_run_numbers_them():
    run, new = examples([0], 4, "bike", "run", "sit", "walk"), examples([0, 1, 1, 0], 3, "sit", "walk", "swim")
    found = renumber_labels(new, run)  # no example has the label `swim`
    assert (found.labels.tolist(), found.num_labels, found.label_names) == ([2, 3, 3, 2], 4, run.label_names)
    assert found.inputs is new.inputs
    with pytest.raises(InputError, match=r"'swim'.* 'bike', 'run', 'sit', 'walk'"):
        renumber_labels(replace(new, labels=torch.tensor([0, 1, 2, 0])), run)
    with pytest.raises(InputError, match=r"'Walk '.* spell labels"):
        renumber_labels(replace(new, label_names=("sit", "Walk ", "run")), run)


def test_several_labels_of_each_example_must_have_names_that_the_run_knows():
    run = Examples(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), 0, label_names=("cat", "dog"))
    other = replace(run, label_names=("cat", "owl"))
    assert renumber_labels(other, run) is other
    match_examples(run, run)
    with pytest.raises(InputError, match=r"'owl'.* 'cat', 'dog'"):
        match_examples(other, run)


@pytest.mark.parametrize("views", [(View(),), (View(label_map=(1, 0)),)])
def test_a_word_is_not_a_number(views: tuple[View, ...]):
    words = examples([0, 1], 2, "no", "yes", views=views)
    plain = replace(words, label_names=())
    for new, old, named in ((words, plain, "'no', 'yes'.* '0', '1'"), (plain, words, "'0', '1'.* 'no', 'yes'")):
        with pytest.raises(InputError, match=named):
            match_examples(new, old)


def test_false_and_true_are_words(tmp_path: Path):
    def table(*labels: str) -> Examples:
        (tmp_path / "own.csv").write_text("x,y\n" + "".join(f"{k},{label}\n" for k, label in enumerate(labels)))
        return ArrayData(source=tmp_path / "own.csv").pool().examples

    run, new = table("true", "maybe", "false"), table("false", "true")
    assert match_examples(new, run).labels.tolist() == [0, 2]


def test_a_number_is_the_label_that_is_written_so():
    run, numbers = examples([0], 4, "1", "2", "10", "x"), examples([2, 1, 10], 11)
    assert renumber_labels(numbers, run).labels.tolist() == [1, 0, 2]
    with pytest.raises(InputError, match=r"'3'.* '1', '2', '10', 'x'"):
        renumber_labels(replace(numbers, labels=torch.tensor([3, 1, 2])), run)
