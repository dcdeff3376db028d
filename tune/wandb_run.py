"""The W&B runs of a study: one for the whole study, and those of trials stopped early."""

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from lit_cfl.errors import Notice
from lit_cfl.runs.environment import read_run_id
from lit_cfl.storage.csv_log import read_table
from lit_cfl.storage.lock import wait_until_free
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tracking.offline import last_kept_round, sync_line
from lit_cfl.tracking.options import Mode, Tracking
from lit_cfl.tracking.trackers import Trackers
from lit_cfl.tracking.wandb_run import WandbRun
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.record import FINISHED_STATUS, TRIALS, files_of_runs
from lit_cfl.tune.study_result import StudyResult

_FILES = ("trials.csv", "pictures/*.png")


def complete(trials: Sequence[Path]) -> None:
    """Logs the last rounds of stopped trials to W&B if the trials' processes ended without doing so."""
    for trial in trials:
        wait_until_free(trial)
        for metrics in files_of_runs(trial, "metrics.csv"):
            _complete(metrics.parent)


def _complete(path: Path) -> None:
    rows, run_id = read_table(path / "metrics.csv"), read_run_id(path)
    if not rows or last_kept_round(path / "wandb", run_id) >= rows[-1]["round"]:
        return
    config = parse_yaml((path / "config.yaml").read_text("utf-8"))
    tracking = Tracking(**(config["tracking"] | {"loggers": []}))
    Trackers(tracking, config["name"], path, config, run_id, rows).finish("success")


def track_study(prepared: PreparedStudy, outcome: StudyResult) -> str | None:
    """Logs a study's results to W&B, if the base's tracking is enabled. A failure does not end the study.

    Returns:
        A line that says how to upload the offline runs, or None.
    """
    tracking = prepared.default.tracking
    mode = tracking.requested_mode()
    if mode == "disabled":
        return None
    try:
        complete([outcome.path / TRIALS / row["trial_id"] for row in outcome.rows if row["status"] != FINISHED_STATUS])
        _log(prepared, outcome, replace(tracking, group=tracking.group or prepared.study.name), mode)
    except Exception as error:  # W&B raises many types of errors
        warnings.warn(Notice(f"the W&B run of the whole study could not be logged ({error})"), stacklevel=2)
    return sync_line([outcome.path, *sorted(path.parent for path in outcome.path.glob("*/**/wandb"))])


def _log(prepared: PreparedStudy, outcome: StudyResult, tracking: Tracking, mode: Mode | None) -> None:
    import wandb

    study, path = prepared.study, outcome.path
    config = {key: value for key, value in asdict(study).items() if key != "base"}
    run = WandbRun(tracking, mode, f"{study.name}-study", path, config, _run_id(path))
    try:
        pictures = {f"pictures/{file.stem}": wandb.Image(str(file)) for file in sorted(path.glob("pictures/*.png"))}
        run.run.log(pictures)
        run.run.summary.update(_summary(outcome))
        with TemporaryDirectory(dir=path / "wandb") as folder:
            artifact = wandb.Artifact(f"study-{run.run.id}", type="study")
            for file in (*(file for pattern in _FILES for file in sorted(path.glob(pattern))), _best(path, folder)):
                if file is not None:
                    artifact.add_file(str(file), name=file.name, skip_cache=True)
            run.run.log_artifact(artifact)
            run.finish("success")
    except BaseException:
        run.finish("failed")
        raise


def _best(path: Path, folder: str) -> Path | None:
    """Copies `best.yaml` into `folder`, without the folders of the user's own code; returns the copy's path."""
    if not (path / "best.yaml").exists():
        return None
    content = parse_yaml((path / "best.yaml").read_text("utf-8")) | {"code": []}
    copy = Path(folder) / "best.yaml"
    copy.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")
    return copy


def _summary(outcome: StudyResult) -> dict[str, Any]:
    found: dict[str, Any] = {"trials": len(outcome.rows)} | {
        f"importance/{k}": v for k, v in outcome.importance.items()
    }
    if outcome.best is not None:
        found |= {f"best/{key}": value for key, value in outcome.best.items() if value is not None}
    if outcome.repeated is not None:
        for setting, figures in outcome.repeated.figures.items():
            found |= {f"new seeds/{setting}/{metric}": figure.mean for metric, figure in figures.items()}
        if outcome.repeated.gain is not None:
            found["new seeds/gain"] = outcome.repeated.gain.mean
    return found


def _run_id(path: Path) -> str:
    """Returns the id of the study's W&B run as found in the study's folder, or a new id."""
    before = sorted((path / "wandb").glob("*run-*-*"))
    return before[0].name.rpartition("-")[2] if before else secrets.token_hex(4)
