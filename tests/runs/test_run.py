"""Tests whole runs on the digits: files, repeatability, baseline, seeds, evaluation, early stopping."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from digits_experiment import digits, timeless_rows

from lit_cfl.algorithms import FedAvg, FedGroup, Local
from lit_cfl.datamodules import Digits
from lit_cfl.early_stopping import StopRule
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.cohort import FitRequest
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError, Notice
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.local_work import Chunk
from lit_cfl.nets import MCLR
from lit_cfl.runs.run import RunCallbacks, mean_summary, run
from lit_cfl.storage.checkpoint import Checkpoint, state_from_dict
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "digits"
    run(digits(baseline=FedAvg()), path)
    return path


def test_same_seed_gives_the_same_metrics(finished: Path, tmp_path: Path):
    run(digits(baseline=FedAvg()), tmp_path / "again")
    assert timeless_rows(tmp_path / "again") == timeless_rows(finished)
    assert (tmp_path / "again" / "clients.csv").read_text() == (finished / "clients.csv").read_text()
    run(digits(seeds=[4]), tmp_path / "other")
    assert timeless_rows(tmp_path / "other") != timeless_rows(finished)


def test_baseline_is_the_run_that_it_would_be_alone(finished: Path, tmp_path: Path):
    run(digits(algorithm=FedAvg()), tmp_path / "alone")
    assert timeless_rows(tmp_path / "alone") == timeless_rows(finished / "baseline")


def test_module_is_built_once_and_once_more_to_compare(tmp_path: Path):
    built: list[Classification] = []

    def task() -> Classification:
        built.append(Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)))
        return built[-1]

    run(digits(task=task, rounds=1), tmp_path / "run")
    assert len(built) == 2


def test_weighted_accuracy_is_the_one_of_the_clients_file(finished: Path):
    clients, last = read_table(finished / "clients.csv"), read_table(finished / "metrics.csv")[-1]
    scored = [row for row in clients if row["accuracy"] is not None]
    correct = sum(round(row["accuracy"] * row["n_test"]) for row in scored)
    assert correct / sum(row["n_test"] for row in scored) == last["test/weighted_accuracy"]
    assert len(scored) == last["clients/evaluated"]


def test_cluster_rows_add_up_to_the_clients_evaluated(finished: Path):
    metrics, clusters = read_table(finished / "metrics.csv"), read_table(finished / "clusters.csv")
    assert len(metrics) == 3
    for row in metrics:
        mine = [c for c in clusters if c["round"] == row["round"]]
        assert sum(c["size"] for c in mine) == row["clients/evaluated"]
        assert len(mine) == row["clusters/count"]
        correct = sum(c["accuracy"] * c["n_test"] for c in mine)
        assert correct / sum(c["n_test"] for c in mine) == pytest.approx(row["test/weighted_accuracy"])


def test_configuration_holds_plan_and_options(finished: Path):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["plan"]["engine"] in ("chain", "loop")
    assert config["algorithm"]["init_args"]["pretrain"] == {"length": 5, "unit": "epochs", "batch_size": None}
    assert yaml.safe_load((finished / "baseline" / "config.yaml").read_text())["algorithm"]["class_path"].endswith(
        "FedAvg"
    )


def test_checkpoint_holds_the_last_state_and_is_plain_data(finished: Path):
    content = Checkpoint(finished).load()
    state = state_from_dict(FedGroup.state_type, content["state"])
    assert content["round"] == 3
    members = np.load(finished / "memberships.npz")["cluster"][-1]
    assert state.index.tolist() == members.tolist()


def test_memberships_and_snapshot_agree_with_the_clients_file(finished: Path):
    arrays, snapshot = np.load(finished / "memberships.npz"), np.load(finished / "snapshots" / "1.npz")
    clients = read_table(finished / "clients.csv")
    assert arrays["rounds"].tolist() == [1, 2, 3]  # clients joined in round 2
    assert [-1 if row["cluster"] is None else row["cluster"] for row in clients] == arrays["cluster"][-1].tolist()
    assert [row["true_cluster"] for row in clients] == arrays["true_cluster"].tolist()
    assert snapshot["similarity"].shape == (8, 8)
    assert snapshot["projection"].shape == (8, 2)
    assert np.allclose(snapshot["similarity"].diagonal(), 1, atol=1e-3)


def test_summary_is_the_last_row_and_the_best_covered_accuracy(finished: Path):
    summary, rows = (
        json.loads((finished / "baseline" / "summary.json").read_text()),
        read_table(finished / "baseline" / "metrics.csv"),
    )
    assert summary["test/weighted_accuracy"] == rows[-1]["test/weighted_accuracy"]
    assert summary["test/max_weighted_accuracy"] == max(row["test/weighted_accuracy"] for row in rows)


def test_best_accuracy_counts_only_rounds_that_cover_everybody(tmp_path: Path):
    seen = run(digits(rounds=1), tmp_path / "partial").summary
    assert seen["clusters/unobserved"] > 0
    assert seen["test/max_weighted_accuracy"] is None


def test_others_are_placed_for_scoring_only(tmp_path: Path):
    assigned = run(digits(rounds=1), tmp_path / "assigned").summary
    everyone = run(digits(rounds=1, evaluation=EvaluationPlan(clients="all")), tmp_path / "all").summary
    assert everyone["clients/evaluated"] == 12 > assigned["clients/evaluated"]
    for column in ("traffic/models_up", "clusters/unobserved", "train/loss", "local/steps", "local/examples"):
        assert everyone[column] == assigned[column]


def test_a_sample_of_the_clients_may_be_scored(tmp_path: Path):
    summary = run(digits(algorithm=FedAvg(), evaluation=EvaluationPlan(clients=5)), tmp_path / "five").summary
    assert summary["clients/evaluated"] == 5
    assert summary["test/max_weighted_accuracy"] is None  # the papers' score needs all clients


def test_several_seeds_are_whole_runs_and_their_means(tmp_path: Path):
    result = run(digits(seeds=[3, 4], baseline=FedAvg()), tmp_path / "two")
    parts = [json.loads((tmp_path / "two" / f"seed-{s}" / "summary.json").read_text()) for s in (3, 4)]
    mean = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert mean["test/weighted_accuracy"] == pytest.approx(sum(p["test/weighted_accuracy"] for p in parts) / 2)
    assert result.baseline is not None
    assert (tmp_path / "two" / "seed-4" / "baseline" / "metrics.csv").exists()
    alone = run(digits(seeds=[4]), tmp_path / "alone").summary
    assert alone["test/weighted_accuracy"] == parts[1]["test/weighted_accuracy"]


def test_newcomers_join_after_training_and_are_scored(tmp_path: Path):
    summary = run(digits(data=Digits(12, newcomers=0.25)), tmp_path / "run").summary
    rows = read_table(tmp_path / "run" / "clients.csv")
    held_out = [row for row in rows if row["newcomer"]]
    assert len(held_out) == 3
    assert all(row["cluster"] is not None and row["accuracy"] is not None for row in held_out)
    assert 0 < summary["test/newcomers_accuracy"] <= 1
    members = np.load(tmp_path / "run" / "memberships.npz")["cluster"][-1]
    assert all(members[row["client"]] == -1 for row in held_out)


def test_run_stops_when_validation_no_longer_improves(tmp_path: Path):
    frozen = lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=1e-30))  # noqa: E731
    stop, reasons = StopRule(patience=2), []
    result = run(
        digits(algorithm=FedAvg(), task=frozen, rounds=30, stop=stop),
        tmp_path / "run",
        RunCallbacks(ended=reasons.append),
    )
    assert len(read_table(tmp_path / "run" / "metrics.csv")) == 3
    assert reasons == [result.summary["stopped"]]
    assert "has not improved in 2 evaluations" in reasons[0]


def test_stopping_by_validation_without_validation_data_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no validation part"):
        run(digits(data=Digits(12, validation=0.0), stop=StopRule()), tmp_path / "run")


def test_validation_share_that_rounds_to_nothing_is_not_recommended(tmp_path: Path):
    few = Digits(12, partition=None, validation=0.003)  # of 120 examples each, so that no client has one for validation
    expected = (
        "no validation part; data.validation is 0.003, which rounds to no example of any client, as the largest has"
    )
    with pytest.warns(Notice, match="validation is 0.003"), pytest.raises(InputError, match=expected):
        run(digits(data=few, stop=StopRule()), tmp_path / "run")


@pytest.mark.parametrize("dropout", [0.0, 0.999])
def test_run_in_which_no_client_trained_says_so(tmp_path: Path, dropout: float):
    skipping = LocalTraining(1, 20, on_divergence="skip")
    nan = lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=3e38))  # noqa: E731
    part = {"dropout": dropout, "cohort_size": 1} if dropout else {"local": skipping, "task": nan}
    remedy = "dropout is 0.999; lower it" if dropout else "clients/skipped in metrics.csv counts those left out"
    with pytest.warns(
        Notice, match=rf"no client trained in any of the 3 rounds: the models are the initial ones \({remedy}\)"
    ):
        run(digits(algorithm=FedAvg(), **part), tmp_path / "run")


def test_run_whose_training_diverges_to_finite_losses_says_so(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    def task(rate: float) -> Callable[[], Classification]:
        return lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=rate))

    run(digits(algorithm=FedAvg(), task=task(0.1)), tmp_path / "fine")
    assert not [note for note in recwarn if "training diverges" in str(note.message)]
    with pytest.warns(Notice, match=r"but equal probabilities for all 10 labels have 2.3: training diverges; lower"):
        run(digits(algorithm=FedAvg(), task=task(100.0)), tmp_path / "diverging")


def test_run_in_which_some_clients_trained_does_not_say_that_none_did(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    run(digits(algorithm=FedAvg(), dropout=0.9, cohort_size=2, rounds=8), tmp_path / "run")
    losses = [row["train/loss"] for row in read_table(tmp_path / "run" / "metrics.csv")]
    assert "" in losses or None in losses  # in some rounds, no client trained
    assert not [one for one in recwarn if "no client trained" in str(one.message)]


class Silent(Classification):
    """Task that optimises manually, and reports no loss."""

    def __init__(self) -> None:
        super().__init__(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))
        self.automatic_optimization = False

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        self.optimizers().zero_grad()
        self.manual_backward(self.losses(batch).mean())
        self.optimizers().step()


@pytest.mark.parametrize("algorithm", [FedAvg(), Local()])
def test_run_whose_module_reports_no_loss_does_not_say_that_no_client_trained(
    algorithm: FedAvg | Local, tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    run(digits(task=Silent, algorithm=algorithm, rounds=1, cohort_size=1), tmp_path / "run")
    assert read_table(tmp_path / "run" / "metrics.csv")[0]["train/loss"] is None
    assert not [one for one in recwarn if "no client trained" in str(one.message)]


@pytest.mark.parametrize("lost", ["metrics.csv", "checkpoint.pt"])
def test_files_of_something_else_and_of_a_run_without_its_configuration_stay(lost: str, tmp_path: Path):
    path = tmp_path / "here"
    path.mkdir()
    if lost == "checkpoint.pt":
        run(digits(rounds=1), path)
        (path / "config.yaml").unlink()
    else:
        (path / lost).write_text("mine\n")
    before = {file: file.read_bytes() for file in path.glob("[!.]*") if file.is_file()}
    with pytest.raises(InputError, match=rf"has no config.yaml, but .*{lost}.*choose another --run_dir"):
        run(digits(rounds=1), path)
    assert before == {file: file.read_bytes() for file in path.glob("[!.]*") if file.is_file()}


def test_files_of_a_run_that_was_killed_while_it_started_are_removed(tmp_path: Path):
    path = tmp_path / "here"
    run(digits(rounds=1), path)
    for name in ("config.yaml", "checkpoint.pt", "summary.json", "SHA256SUMS"):
        (path / name).unlink()
    (path / "snapshots").mkdir(exist_ok=True)
    (path / "snapshots" / "7.npz").touch()
    run(digits(algorithm=FedAvg(), rounds=1), path)
    assert not (path / "snapshots" / "7.npz").exists()


def test_net_that_does_not_fit_the_data_is_refused(tmp_path: Path):
    wrong = lambda: Classification(MCLR([1, 9, 9], 10))  # noqa: E731
    with pytest.raises(InputError, match=r"inputs of shape \(1, 8, 8\), 10 labels"):
        run(digits(task=wrong), tmp_path / "run")
    few = lambda: Classification(MCLR([1, 8, 8], 2))  # noqa: E731
    with pytest.raises(InputError, match="10 labels"):
        run(digits(task=few), tmp_path / "run")


def test_losses_that_are_a_mean_are_refused_where_the_outcomes_are_not(tmp_path: Path):
    class Mean(Classification):
        def losses(self, batch):
            return super().losses(batch).mean()

        def outcomes(self, batch):
            return super().losses(batch), super().outcomes(batch)[1]

    with pytest.raises(InputError, match=r"Mean returned losses of shape \(\) .*; return one number per example"):
        run(digits(task=lambda: Mean(MCLR([1, 8, 8], 10))), tmp_path / "run")


def test_client_without_training_data_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="has no training data"):
        run(digits(data=_WithEmptyClient(12)), tmp_path / "run")


class _WithEmptyClient(Digits):
    def divide(self, examples, rng):
        division = super().divide(examples, rng)
        last = torch.arange(len(division.train)) == len(division.train) - 1
        return replace(division, train=division.train.first(torch.where(last, 0, division.train.sizes)))


def test_unknown_true_clusters_leave_agreement_blank(tmp_path: Path):
    class Unknown(Digits):
        def divide(self, examples, rng):
            division = super().divide(examples, rng)
            return replace(division, true_clusters=torch.full_like(division.true_clusters, -1))

    summary = run(digits(data=Unknown(12)), tmp_path / "run").summary
    assert summary["clusters/ari"] is None
    assert summary["clusters/silhouette"] is not None


def test_iterating_an_experiment_steps_by_hand_and_writes_nothing(finished: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    losses = [r.info.loss for r in digits()]
    assert losses == [row["train/loss"] for row in read_table(finished / "metrics.csv")]
    assert list(tmp_path.iterdir()) == []


def test_recorded_plan_is_used_again(tmp_path: Path):
    experiment = digits()
    plan = replace(experiment.prepare(3).engine.plan, rows_mib=77)
    assert replace(experiment, plan=PlanOptions(**vars(plan))).prepare(3).engine.plan == plan


def test_a_plan_halved_for_lack_of_memory_is_recorded_and_a_resume_starts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plans, train = list[int](), Engine._fit_part

    def short_of_memory(engine: Engine, request: FitRequest, part: slice, *given: Any) -> Chunk:
        if part.stop - part.start > 1:  # not the check of one client
            plans.append(engine.plan.rows_mib)
            if len(plans) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return train(engine, request, part, *given)

    monkeypatch.setattr(Engine, "_fit_part", short_of_memory)
    with pytest.warns(Notice, match="out of memory: reduced to 1 MiB"):
        run(digits(rounds=1), tmp_path / "run")
    assert stored_config(tmp_path / "run")["plan"]["rows_mib"] == 1
    begun = len(plans)
    run(digits(rounds=2), tmp_path / "run", mode="resume")
    assert (plans[0], set(plans[1:]), len(plans) > begun) == (1024, {1}, True)


def test_a_mean_over_seeds_needs_each_of_them():
    same = {"algorithm": "IFCA", "scores": [{"name": "mae"}]}
    parts = [same | {"val/a": value, "val/b": other} for value, other in ((0.25, 0.5), (0.75, None))]
    assert mean_summary(parts) == same | {"seeds": 2, "val/a": 0.5, "val/b": None}


def test_a_file_in_place_of_an_experiment_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"^run needs an Experiment, not 'own.yaml'; lit_cfl.load_experiment\(FILE\)"):
        run("own.yaml")  # type: ignore[arg-type]  # a file in place of an experiment: the mistake


@pytest.mark.parametrize(
    ("callbacks", "remedy"), [("resume", "give mode='resume'"), (print, r"give RunCallbacks\(\.\.\.\)")]
)
def test_a_mode_or_a_function_in_the_place_of_callbacks_is_refused(callbacks: object, remedy: str, tmp_path: Path):
    with pytest.raises(InputError, match=remedy):
        run(digits(algorithm=FedAvg(), rounds=1), tmp_path / "run", callbacks)  # type: ignore[arg-type]  # the mistake
    assert not (tmp_path / "run").exists()


def test_a_run_and_its_baseline_try_the_task_once_and_have_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried, of = list[Any](), Trial.of
    monkeypatch.setattr(Trial, "of", lambda *given: tried.append(given) or of(*given))
    run(digits(baseline=FedAvg()), tmp_path)
    assert len(tried) == 1
    plans = [(stored_config(path) or {})["plan"] for path in (tmp_path, tmp_path / "baseline")]
    assert plans[0] == plans[1]
