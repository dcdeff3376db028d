"""Tests opening runs: tables, models, scores, newcomers."""

import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from lightning import Trainer
from processes import replace_everywhere
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import IFCA, Assignment, Ditto, FedAvg, FedGroup, FedProx, StoCFL
from lit_cfl.cli.main import main
from lit_cfl.data import FederatedData
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.progress.tables import assignment_table
from lit_cfl.runs.newcomers import PlacedNewcomers
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification

OPTIONS = ["--rounds", "4", "--data.num_clients", "16", "--cohort_size", "8"]


def small_task() -> Classification:
    return Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    assert main(["run", "--config", "quickstart", "--run_dir", str(path), *OPTIONS]) == 0
    return path


def test_saved_run_holds_configuration_metrics_and_memberships(path: Path):
    saved = load_run(path)
    assert saved.config["algorithm"]["class_path"].endswith("FedGroup")
    assert saved.metrics["round"].tolist() == [1, 2, 3, 4]
    assert saved.memberships["cluster"][-1].tolist() == saved.served().index.tolist()
    assert saved.clients["cluster"].tolist() == saved.served().index.tolist()


def test_saved_run_is_printed_in_one_short_line(path: Path):
    printed = repr(load_run(path))
    assert f"{path}: FedGroup, round 4 of 4; models [4, 650], " in printed
    assert "\n" not in printed
    assert len(printed) < len(str(path)) + 200


def test_metrics_are_a_frame_with_the_columns_of_the_file(path: Path):
    frame, rows = load_run(path).metrics, read_table(path / "metrics.csv")
    assert list(frame) == list(rows[0])
    for name in ("test/weighted_accuracy", "train/loss", "clusters/churn"):
        expected = [math.nan if row[name] is None else row[name] for row in rows]
        assert frame[name].tolist() == pytest.approx(expected, abs=0, nan_ok=True)


def test_modules_predict_what_the_run_scored(path: Path):
    saved = load_run(path)
    data, served = saved.prepared.data, saved.served()
    for client in (0, 1, 7):
        inputs, labels = data.examples.batch(data.test[client])
        module = saved.module(int(served.index[client]))
        trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        found = torch.cat(trainer.predict(module, DataLoader(TensorDataset(inputs, labels), batch_size=4)))
        assert (found == labels).double().mean().item() == pytest.approx(saved.clients["accuracy"][client])


def test_unknown_cluster_and_directory_are_refused(path: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no cluster 4 in .*; clusters are 0 to 3"):
        load_run(path).module(4)
    with pytest.raises(InputError, match="holds no run"):
        load_run(tmp_path)


def test_newcomers_join_the_cluster_of_their_rotation(path: Path):
    saved = load_run(path)
    data = Digits(8, partition_seed=99).federated(0)
    placed = saved.assign(data)
    truth_of = dict(zip(saved.clients["cluster"], saved.clients["true_cluster"], strict=True))
    assert [truth_of[cluster] for cluster in placed.assignment.index.tolist()] == data.true_clusters.tolist()
    assert torch.equal(placed.closeness.argmax(1), placed.assignment.index)
    assert placed.test is not None
    assert placed.test.count.tolist() == data.test.sizes.tolist()


def test_newcomer_of_ditto_has_a_model_that_the_run_does_not_have(tmp_path: Path):
    experiment = Experiment(Digits(8), small_task, Ditto(), rounds=1, cohort_size=3)
    run(experiment, tmp_path / "run")
    saved = load_run(tmp_path / "run", experiment)
    placed = saved.assign(Digits(4, partition_seed=9).federated(0))
    assert placed.assignment.index.tolist() == [3, 4, 5, 6]  # after the three clusters of the cohort
    assert placed.new.tolist() == [True] * 4
    with pytest.raises(InputError, match="there is no cluster 4 in"):
        saved.module(4)
    module = placed.module(1)
    rows = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    assert torch.equal(rows, placed.assignment.models[4])
    with pytest.raises(InputError, match=r"there is no newcomer 4; newcomers are 0 to 3"):
        placed.module(4)


def test_newcomers_that_found_clusters_of_stocfl_are_new_also_under_a_number_that_was_free(tmp_path: Path, capsys):
    experiment = Experiment(Digits(8), small_task, StoCFL(tau=1.0), rounds=1, cohort_size=3)
    run(experiment, tmp_path / "run")
    saved = load_run(tmp_path / "run", experiment)
    assert saved.state.counts.tolist() == [1, 1, 1]  # no clusters merge
    saved = replace(saved, state=replace(saved.state, counts=torch.tensor([1, 0, 1])))
    placed = saved.assign(Digits(2, partition_seed=9).federated(0))
    assert placed.assignment.index.tolist() == [1, 3]
    assert placed.new.tolist() == [True, True]
    assert placed.closeness.shape == (2, 3)
    assignment_table(Console(width=100), Path("run"), placed, StoCFL.closeness)
    assert capsys.readouterr().out.count("(new)") == 2


def test_new_clusters_are_marked_in_the_table_and_free_numbers_are_not_a_next_best(capsys):
    """The run has clusters 0 and 2; newcomers founded clusters 1 and 3, and the last newcomer has no data."""
    inf, nan = float("inf"), float("nan")
    placed = PlacedNewcomers(
        Assignment(torch.zeros(4, 1), torch.tensor([2, 3, 1, -1])),
        new=torch.tensor([False, True, True, False]),
        closeness=torch.tensor([[0.25, -inf, 0.75], [0.125, -inf, -0.5], [-0.5, -inf, 0.0625], [nan] * 3]),
        test=None,
        engine=None,
    )
    assignment_table(Console(width=100), Path("runs/mine"), placed, "cosine of two things")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        ["0", "2", "0.750", "0", "(0.250)"],
        ["1", "3", "(new)", "new", "0", "(0.125)"],
        ["2", "1", "(new)", "new", "2", "(0.062)"],
    ]
    assert " ".join(lines[4]) == "3 none: no training data"
    assert " ".join(lines[5]) == "(closeness: cosine of two things; larger is closer)"
    assert lines[6] == ["Models:", "lit_cfl.load_run('runs/mine').module(<cluster>)"]
    assert lines[7] == ["New", "ones:", "lit_cfl.load_run('runs/mine').assign(<data>).module(<newcomer>)"]
    with pytest.raises(InputError, match="newcomer 3 has no model: it could not be placed; give it training data"):
        placed.module(3)


def test_newcomers_are_shown_with_their_names_and_how_well_they_were_placed(capsys):
    placed = PlacedNewcomers(
        Assignment(torch.zeros(2, 1), torch.tensor([1, -1])),
        new=torch.tensor([False, False]),
        closeness=None,
        test=None,
        engine=None,
        agreement={"clusters/ari": 0.456},
        names=("site-a", "site-b"),
    )
    assignment_table(Console(width=100), Path("runs/mine"), placed, "")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == ["0 (site-a) 1", "1 (site-b) none: no training data"]
    assert lines[3] == "ARI with their true clusters: 0.46 (1 = equal)"


def test_newcomers_that_mix_models_are_sent_to_their_weights(capsys):
    mixed = Assignment(torch.zeros(2, 1), torch.tensor([1]), weights=torch.tensor([[0.2, 0.8]]))
    placed = PlacedNewcomers(mixed, torch.tensor([False]), None, None, engine=None)
    assignment_table(Console(width=100), Path("runs/mine"), placed, "")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Weights of their mixtures: lit_cfl.load_run('runs/mine').assign(<data>).assignment.weights"


def test_newcomers_of_known_clusters_are_compared_with_them(tmp_path: Path):
    experiment = Experiment(Digits(8, rotations=[0, 180]), small_task, IFCA(num_clusters=2), rounds=2, cohort_size=8)
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
    same = sum(int((found[a] == found[b]) == (a % 2 == b % 2)) for a in range(6) for b in range(a))
    assert (placed.agreement["clusters/ari"] == pytest.approx(1.0)) == (same == 15)  # all 15 pairs of clients
    assert placed.names == data.names


@pytest.mark.filterwarnings("error::lit_cfl.errors.Notice")
def test_test_examples_on_which_no_client_trained_need_no_note(tmp_path: Path):
    experiment = Experiment(Digits(8, newcomers=0.25), small_task, FedAvg(), rounds=1, cohort_size=2)
    run(experiment, tmp_path / "run")
    saved = load_run(tmp_path / "run", experiment)
    held_out = saved.data.newcomers
    assert held_out is not None
    assert saved.assign(saved.data.subset(held_out.nonzero().flatten())).test is not None
    other = saved.data.examples
    moved = replace(saved.data, examples=replace(other, inputs=other.inputs.flip(0)), newcomers=None)
    assert saved.assign(moved).test is not None


def test_evaluate_prints_the_figures_of_the_run(path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    last = read_table(path / "metrics.csv")[-1]
    for split in ("val", "test"):
        (line,) = [line.split() for line in lines if line.startswith(split)]
        assert line[1:3] == [str(last["clients/evaluated"]), f"{last[f'{split}/weighted_accuracy']:.3f}"]


def test_evaluate_leaves_newcomers_out_of_the_clients_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--algorithm", "FedAvg", "--baseline", "null", "--data.newcomers", "0.3", "--rounds", "1"]
    assert main(["run", "--config", "quickstart", *words, "--run_dir", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    (line,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("test")]
    last = read_table(tmp_path / "run" / "metrics.csv")[-1]
    assert line[1:3] == ["28", f"{last['test/weighted_accuracy']:.3f}"]
    # a share of 0.3 cannot be held out of one client, and need not be
    one = ["--data.num_clients", "1", "--data.rotations", "null"]
    assert main(["assign", str(tmp_path / "run"), *one]) == 0


def test_evaluate_and_assign_take_other_data(path: Path, capsys: pytest.CaptureFixture[str]):
    other = ["--data.num_clients", "8", "--data.partition_seed", "5"]
    assert main(["evaluate", str(path), *other]) == 0
    scored = capsys.readouterr().out
    assert "test, newcomers        8" in scored
    assert f"\nTheir clusters: lit-cfl assign {path} --data.num_clients 8 --data.partition_seed 5\n" in scored
    assert main(["assign", str(path), *other]) == 0
    out = capsys.readouterr().out
    (ari,) = [line for line in out.splitlines() if line.startswith("ARI with their true clusters: ")]
    assert ari in scored
    assert "newcomer  cluster  closeness  next best" in out
    assert f"load_run('{path}').module(<cluster>)" in out


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("averaged") / "run"
    words = ["--algorithm", "FedAvg", "--baseline", "null", "--rounds", "1", "--quiet"]
    assert main(["run", "--config", "quickstart", *words, "--run_dir", str(path)]) == 0
    return path


def test_newcomers_with_hidden_labels_are_scored_by_them(averaged: Path):
    saved, data = load_run(averaged), Digits(4, partition_seed=9).federated(0)
    hidden = saved.assign(data, unlabelled=True)
    assert hidden.assignment.index.tolist() == [0] * 4
    assert torch.equal(hidden.test.of_clients(), saved.assign(data).test.of_clients())


class NotesLabels(FedAvg):
    """Algorithm that records which labels it sees when it places clients without labels."""

    seen: ClassVar[list[tuple[int, set[int]]]] = []

    def place_unlabelled(self, state, clients, work, rng):
        shown = torch.cat(work.map(lambda inputs, labels: labels, clients))
        self.seen.append((work.label_counts.shape[1], set(shown.tolist())))
        return super().place_unlabelled(state, clients, work, rng)


def test_hidden_labels_are_shown_to_no_algorithm(tmp_path: Path):
    experiment = Experiment(Digits(8), small_task, NotesLabels(), rounds=1, cohort_size=3)
    run(experiment, tmp_path / "run")
    load_run(tmp_path / "run", experiment).assign(Digits(4).federated(9), unlabelled=True)
    assert NotesLabels.seen == [(0, {0})]


def test_newcomers_without_labels_are_placed_and_not_scored(averaged: Path, tmp_path: Path, capsys):
    np.savez(tmp_path / "new.npz", x=np.ones((20, 1, 8, 8), np.float32), client=np.arange(20) // 10)
    words = ["assign", str(averaged), "--data", "ArrayData", "--data.source", str(tmp_path / "new.npz")]
    assert main([*words, "--unlabelled"]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()[1:3]] == [["0", "(0)", "0"], ["1", "(1)", "0"]]
    assert "weighted" not in out  # no scores are printed
    assert main(words) == 2
    assert "these clients have no labels; give labels, or place them by their inputs with --unlabelled" in (
        capsys.readouterr().err
    )


class NotesLabelSpace(FedAvg):
    """Algorithm that records the size of the label space in which clients are placed."""

    seen: ClassVar[list[int]] = []

    def place(self, state, clients, work, rng):
        self.seen.append(work.label_counts.shape[1])
        return super().place(state, clients, work, rng)


def newcomers(labels: list[int]) -> FederatedData:
    """Makes two clients that receive examples with these labels in turn."""
    x = np.random.default_rng(0).random((len(labels), 1, 8, 8), dtype=np.float32)
    return ArrayData(x=x, y=labels, client=np.arange(len(labels)) % 2).federated(0)


def test_newcomers_without_some_labels_are_described_in_the_label_space_of_the_run(tmp_path: Path):
    experiment = Experiment(Digits(8), small_task, NotesLabelSpace(), rounds=1, cohort_size=3)
    run(experiment, tmp_path / "run")
    load_run(tmp_path / "run", experiment).assign(newcomers([0, 1, 2, 3] * 5))
    assert NotesLabelSpace.seen == [10]


def test_newcomers_with_labels_that_the_run_does_not_know_are_refused(averaged: Path, tmp_path: Path):
    with pytest.raises(
        InputError,
        match=r"and 10 labels, but these data have \(1, 8, 8\) and 12 labels: the run's models cannot take them",
    ):
        load_run(averaged).assign(newcomers([0, 11] * 10))
    source = ArrayData(x=np.zeros((20, 2), np.float32), y=["cat", "dog"] * 10, client=np.arange(20) % 2)
    experiment = Experiment(source, lambda: Classification(MCLR([2], 2)), FedAvg(), rounds=1, cohort_size=2)
    run(experiment, tmp_path / "run")
    other = ArrayData(x=np.zeros((20, 2), np.float32), y=["bird", "cat"] * 10, client=np.arange(20) % 2)
    with pytest.raises(
        InputError, match="these data have the label 'bird', but the run has only 'cat', 'dog', and its models"
    ):
        load_run(tmp_path / "run", experiment).assign(other.federated(0))


def test_new_clients_may_be_tested_on_a_label_that_the_run_alone_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"0.{n},{'cat' if n % 2 else 'dog'},{n % 4 // 2 + 5}\n" for n in range(40))
    Path("old.csv").write_text(f"x,y,client\n{rows}")
    experiment = {
        "data": {"class_path": "ArrayData", "init_args": {"source": "old.csv", "test": 0.5}},
        "task": {
            "class_path": "Classification",
            "init_args": {"net": "MCLR", "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}},
        },
        "algorithm": "FedAvg",
        "rounds": 1,
        "cohort_size": 2,
    }
    Path("old.yaml").write_text(yaml.safe_dump(experiment))
    assert main(["run", "--config", "old.yaml", "--run_dir", "run"]) == 0
    for label, expected in (("dog", 0), ("bird", 2)):
        Path("new.csv").write_text(f"x,y,client\n0.1,cat,9\n0.2,{label},9\n")  # one of them is the test example
        assert main(["assign", "run", "--data.source", "new.csv"]) == expected
    assert "these data have the label 'bird', but the run has only 'cat', 'dog'" in capsys.readouterr().err
    Path("new.csv").write_text("x,y,client\n0.1,cat,5\n0.2,dog,5\n0.3,dog,7\n0.4,dog,7\n")
    with pytest.warns(Notice, match=r"among these clients are names of the run's clients \(5\); if they are the same"):
        assert main(["assign", "run", "--data.source", "new.csv"]) == 0
    for words, remedy in (
        (["evaluate", "--run_dir", "run"], "--run_dir is not an option here; give RUN_DIR, --data"),
        (["evaluate", "run", "other"], "lit-cfl evaluate takes one run, but run and other are two; call it for each"),
    ):
        assert main(words) == 2
        assert remedy in capsys.readouterr().err
    Path("old.csv").rename("moved.csv")
    assert main(["assign", "run", "--data.source", "new.csv"]) == 2
    assert "opening run needs the run's own data, where they were: there is no file" in capsys.readouterr().err


def test_algorithm_whose_rule_needs_labels_refuses_clients_without(path: Path, capsys):
    assert main(["assign", str(path), "--data.num_clients", "4", "--unlabelled"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(
        "lit-cfl: error: FedGroup cannot place clients without labels: its rule for newcomers needs more"
    )


def test_clients_without_labels_are_not_sent_to_an_option_that_their_algorithm_refuses(path: Path):
    other = ArrayData(x=np.ones((20, 1, 8, 8), np.float32), client=np.arange(20) // 10).federated(0)
    with pytest.raises(InputError, match=r"no labels; give labels, since FedGroup cannot place clients without them$"):
        load_run(path).assign(other)


def test_texts_of_another_vocabulary_are_refused(path: Path):
    saved = load_run(path)
    data = saved.prepared.data
    with pytest.raises(InputError, match="token ids stand for other words than those of these data"):
        saved.assign(replace(data, examples=replace(data.examples, words="another vocabulary")))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("assign", "RUN"),
            "say which clients are new: --data NAME, or options of the run's own data, such as --data.source",
        ),
        (("assign", "--data.num_clients", "8", "RUN"), "give the run first: lit-cfl assign RUN_DIR --data.num_clients"),
        (("assign", "RUN", "--rounds", "3"), "--rounds is not an option here"),
        (
            ("evaluate", "RUN", "--num_clients", "3"),
            "--num_clients is not an option here; give RUN_DIR, --data and --data.<option>",
        ),
        (
            ("assign", "RUN", "--unlabeled"),
            "--unlabeled is not an option here; give RUN_DIR, --unlabelled, --data and --data.<option>",
        ),
        (("evaluate", "nowhere"), "nowhere holds no run"),
        (("evaluate", "RUN", "--data.num_client", "3"), "did you mean num_clients?"),
    ],
)
def test_bad_input_of_evaluate_and_assign(path: Path, capsys, arguments: tuple[str, ...], expected: str):
    assert main([str(path) if word == "RUN" else word for word in arguments]) == 2
    assert expected in capsys.readouterr().err


def test_experiment_made_in_python_runs_and_is_opened_with_itself(tmp_path: Path):
    experiment = Experiment(
        Digits(8),
        lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)),
        FedGroup(num_clusters=2, pretrain_scale=3, pretrain=Budget(2)),
        rounds=2,
        cohort_size=3,
    )
    finished = run(experiment, tmp_path / "run")
    saved = load_run(tmp_path / "run", experiment)
    assert saved.round == 2
    assert saved.metrics["test/loss"].iloc[-1] == finished.summary["test/loss"]
    steps = list(experiment)
    assert torch.equal(steps[-1].state.models, saved.state.models)
    assert steps[-1].number == 2
    assert steps[-1].data.num_clients == 8


def test_given_experiment_is_that_of_the_run(tmp_path: Path):
    experiment = Experiment(Digits(8), small_task, FedAvg(), rounds=1, cohort_size=3, seeds=[4, 5], baseline=FedProx())
    run(experiment, tmp_path / "run")
    assert load_run(tmp_path / "run" / "seed-5", experiment).prepared.seed == 5
    assert load_run(tmp_path / "run" / "seed-5" / "baseline", experiment.for_baseline()).prepared.seed == 5
    with pytest.raises(InputError, match=r"belongs to another experiment: algorithm.*for_baseline\(\)"):
        load_run(tmp_path / "run" / "seed-5" / "baseline", experiment)
    with pytest.raises(InputError, match="holds several runs; give one of its seeds: seed-4, seed-5"):
        load_run(tmp_path / "run", experiment)
    with pytest.raises(InputError, match=r"belongs to another experiment: cohort_size: 3 -> 4"):
        load_run(tmp_path / "run" / "seed-4", replace(experiment, cohort_size=4))


def test_metrics_end_at_the_round_that_was_saved(path: Path, tmp_path: Path):
    shutil.copytree(path, tmp_path / "run")
    (tmp_path / "run" / "SHA256SUMS").unlink()
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("5,0.8")  # as if the process had been killed while writing this row
    assert load_run(tmp_path / "run").metrics["round"].tolist() == [1, 2, 3, 4]


def test_run_of_several_seeds_names_them(tmp_path: Path):
    assert (
        main(
            [
                "run",
                "--config",
                "fedavg/digits",
                "--run_dir",
                str(tmp_path / "run"),
                "--rounds",
                "1",
                "--seeds",
                "[4, 5]",
            ]
        )
        == 0
    )
    with pytest.raises(InputError, match="give one of its seeds: seed-4, seed-5"):
        load_run(tmp_path / "run")
    saved = load_run(tmp_path / "run" / "seed-5")
    assert saved.round == 1
    with pytest.raises(InputError, match="client is 'anna'; give its number, 0 to 39"):
        saved.client_module("anna")  # type: ignore[arg-type]  # a name in place of a number: the mistake
    with pytest.raises(
        InputError, match=r"data has the type Digits; give clients, such as ArrayData\(...\).federated\(seed=0\)"
    ):
        saved.assign(Digits(4))  # type: ignore[arg-type]  # a data module in place of its clients: the mistake


def test_plan_of_another_machine_does_not_stop_a_prediction(path: Path, tmp_path: Path):
    shutil.copytree(path, tmp_path / "run")
    replace_everywhere(tmp_path / "run", "device: cpu", "device: cuda:31")
    assert load_run(tmp_path / "run").prepared.engine.plan.device == "cpu"
    assert replace(load_run(path).experiment.choose_own_plan(), device="cpu").device == "cpu"
