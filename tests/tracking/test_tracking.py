"""Tests trackers without W&B's service: the mode, folders of killed runs, models, and failing loggers."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from digits_experiment import digits
from lightning.pytorch.loggers import CSVLogger
from quadratic import ids
from ragged import SGD
from torch import Tensor, nn

from lit_cfl.algorithms import Assignment, FedAvg
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Notice
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification
from lit_cfl.tracking.artifacts import cluster_models
from lit_cfl.tracking.offline import last_kept_round, mark_complete, set_offline_aside, sync_line
from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.trackers import Trackers


@pytest.mark.parametrize(
    ("option", "variable", "mode"),
    [
        (None, None, None),
        (None, "offline", "offline"),
        ("offline", "disabled", "offline"),
        ("disabled", "sometimes", "disabled"),
    ],
)
def test_an_option_goes_before_the_variable(option: Any, variable: str | None, mode: str | None, monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert Tracking(wandb=option).requested_mode() == mode
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(InputError, match="WANDB_MODE is 'sometimes'"):
        Tracking().requested_mode()


# Loggers


class FullDisk(CSVLogger):
    """Logger that fails at step 3, as on a full disk."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if step == 3:
            raise OSError(28, "No space left on device")
        super().log_metrics(metrics, step)


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg with a score column that is sometimes NaN, and a table with unusual column names."""

    score_columns: ClassVar[tuple[str, ...]] = (*FedAvg.score_columns, "odd/figure")
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"odd": ("who, when", "what")}

    def round(self, state, cohort, work, rng):
        state, info = super().round(state, cohort, work, rng)
        odd = {"odd/figure": float("nan") if work.round == 1 else 1.5}
        rows = [{"who, when": '<b>a</b>, "b"', "what": "$x_1$"}]
        return state, replace(info, scores=info.scores | odd, tables={"odd": rows})


def test_logger_on_a_full_disk_is_left_out_with_one_notice_and_others_get_every_row(tmp_path: Path):
    loggers = [partial(FullDisk, tmp_path / "full"), partial(CSVLogger, tmp_path / "whole")]
    with pytest.warns(Notice, match="^FullDisk failed and is left out of the rest") as given:
        run(digits(algorithm=Odd(), rounds=4, tracking=Tracking(loggers=loggers)), tmp_path / "run")
    assert len([one for one in given if one.category is Notice]) == 1
    own = read_table(tmp_path / "run" / "metrics.csv")
    full, whole = (read_table(next((tmp_path / name).rglob("metrics.csv"))) for name in ("full", "whole"))
    assert [row["step"] for row in whole] == [row["round"] for row in own] == [1, 2, 3, 4]
    assert [row["step"] for row in full] == [1, 2]
    # a figure that is not a number is blank everywhere, and names with commas and HTML survive tables
    assert [row["odd/figure"] for row in whole] == [row["odd/figure"] for row in own] == [1.5, None, 1.5, 1.5]
    odd = {"round": 1, "who, when": '<b>a</b>, "b"', "what": "$x_1$"}
    assert read_table(tmp_path / "run" / "odd.csv")[0] == odd


def test_logger_whose_package_is_missing_is_refused_before_anything_is_trained(tmp_path: Path):
    def no_such_package() -> CSVLogger:
        raise ModuleNotFoundError("no package of the name nowhere")

    with pytest.raises(InputError, match=r"tracking\.loggers .*nowhere"):
        run(digits(tracking=Tracking(loggers=[no_such_package])), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_loggers_receive_no_folders(tmp_path: Path):
    logger = CSVLogger(tmp_path / "csv")
    config = {"data": {"path": "/home/alice/images.npz", "own": ["~/x/y.py", "a/b"]}, "code": ["/home/alice/code"]}
    Trackers(Tracking(loggers=[lambda: logger]), "mine", tmp_path, config, None).log({"round": 0, "x": 1.0})
    assert logger.experiment.hparams == {"data": {"path": "images.npz", "own": ["y.py", "a/b"]}}


# Folders of W&B


def test_what_a_killed_process_left_is_set_aside_and_its_rounds_are_logged_again(tmp_path: Path):
    assert last_kept_round(tmp_path / "wandb", "abc") == 0  # W&B was off until now
    files = [tmp_path / f"{name}-{time}-abc" / "run-abc.wandb" for time, name in enumerate(("offline-run", "run"))]
    for file in files:
        file.parent.mkdir()
        file.touch()
    mark_complete(files[0].parent, 7)
    for _ in range(2):  # also if the next process was killed before it had a folder of its own
        assert last_kept_round(tmp_path, "abc") == 7  # these rounds are in the complete folder, which will be uploaded
        assert [file.with_suffix(".wandb.synced").exists() for file in files] == [False, True]
    assert last_kept_round(tmp_path, "of another run") == 0
    later = tmp_path / "offline-run-2-abc"
    later.mkdir()
    mark_complete(later, 9)
    later.rmdir()
    assert last_kept_round(tmp_path, "abc") == 9  # the folder was uploaded and removed
    set_offline_aside(tmp_path, "abc")  # the run continues online, and the server has no round yet
    assert all(file.with_suffix(".wandb.synced").exists() for file in files)


def test_line_names_what_waits_to_be_uploaded_and_the_caller_of_a_run_is_told_once(tmp_path: Path):
    runs = [tmp_path / f"seed {seed}" for seed in range(2)]
    assert sync_line(runs) is None
    for run_path in (runs[0], runs[0] / "baseline", runs[1]):
        folder = run_path / "wandb" / "offline-run-1-abc"
        folder.mkdir(parents=True)
        (folder / "run-abc.wandb").touch()
    names = [f"'{path}/wandb'" for path in (runs[0], runs[0] / "baseline", runs[1])]
    assert f"`wandb sync {' '.join(names)}`" in str(sync_line(runs))
    told: list[str] = []
    run(digits(rounds=1), runs[1], RunCallbacks(notice=told.append))
    assert told == [sync_line(runs[1:])]


# Models


class Tied(nn.Module):
    """Net with a frozen layer, and a trained layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 100).requires_grad_(False)
        self.head = nn.Linear(100, 10)
        self.same = self.head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.same(self.base(inputs.flatten(1)).relu())


@dataclass(frozen=True)
class Served:
    assignment: Assignment

    def serve(self, state, clients):
        return self.assignment


def test_each_used_cluster_has_its_weights_and_all_share_what_is_frozen(tmp_path: Path):
    engine = Engine(lambda: Classification(Tied(), SGD), Plan("loop", "cpu"), 0)
    rows = torch.stack([engine.initial(number) for number in range(4)])
    served = Served(Assignment(rows[:3], ids(2, -1, 0, 2), {"global": rows[3]}))
    models = cluster_models(served, None, engine, ids(0, 1, 2, 3))
    assert list(models) == ["0", "2", "global"]
    for name, row in (("0", rows[0]), ("2", rows[2]), ("global", rows[3])):
        state = models[name]
        weight, bias = row[:1000].view(10, 100), row[1000:]
        for layer in ("net.head", "net.same"):
            assert torch.equal(state[f"{layer}.weight"], weight)
            assert torch.equal(state[f"{layer}.bias"], bias)
        assert torch.equal(state["net.base.weight"], engine.template.state_dict()["net.base.weight"])
    assert len({state["net.base.weight"].data_ptr() for state in models.values()}) == 1
    torch.save(models, tmp_path / "models.pt")
    assert (tmp_path / "models.pt").stat().st_size < 2 * 6500 * 4  # one frozen layer and three heads
    nobody = Served(Assignment(rows[:1], ids(-1, -1)))
    assert cluster_models(nobody, None, engine, ids(0, 1)) == {}
