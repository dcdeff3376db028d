"""Population based training: a trial goes on from another's run with other values, which `stages.json` records."""

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lit_cfl.errors import SaveError
from lit_cfl.storage.atomic_writes import is_full_disk, write_text
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.config_file import recorded_run_id, write_config
from lit_cfl.storage.digests import SUMS
from lit_cfl.storage.error_file import ERROR_FILE
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.record import RECORD, TOO_LONG

Stages = list[tuple[int, dict[str, Any]]]  # the first round, from 1, and the values that hold from it on
_STAGES = "stages.json"
_NEXT = ".next"  # in a trial's directory: the run that it is about to take over
# of a directory, what a run does not go on from:
_LEFT_OUT = (RECORD, TOO_LONG, ".lock", "summary.json", SUMS, ERROR_FILE, "wandb", "pictures", ".*.tmp", _NEXT)
_OF_ITS_OWN = ("wandb", "pictures")  # what a trial keeps that goes on from itself


def recorded_stages(path: Path) -> Stages:
    """Reads the stages of a trial; none where there is no such file, or half of one."""
    try:
        return [(first, values) for first, values in json.loads((path / _STAGES).read_text())]
    except (OSError, ValueError, TypeError):
        return []


def save_copy(path: Path, target: Path) -> None:
    """Copies what a run can be gone on from: nothing that another thread may be writing."""
    shutil.copytree(path, target, ignore=shutil.ignore_patterns(*_LEFT_OUT), copy_function=_copy, dirs_exist_ok=True)


def _copy(source: str, target: str) -> None:
    """Copies a file. A full disk is a SaveError: `copytree` collects errors of the system into one without a number."""
    try:
        shutil.copy2(source, target)
    except OSError as error:
        if not is_full_disk(error):
            raise
        raise SaveError(f"{target} could not be written ({error.strerror})") from error


def take_over(source: Path, path: Path) -> None:
    """Replaces a trial's run by a copy; by another trial's under an identity of its own.

    The copy is whole before anything goes: only a kill in the moment in which files are moved loses rounds.

    Args:
        source: what `save_copy` made.
        path: of the trial: what it held goes.
    """
    own = (path / "config.yaml").exists() and recorded_run_id(path) == recorded_run_id(source)
    whole = path / _NEXT
    shutil.rmtree(whole, ignore_errors=True)  # of a process that was killed
    save_copy(source, whole)
    if not own:
        _rewrite(whole, {}, secrets.token_hex(4))
    clear(path, (_NEXT, *(_OF_ITS_OWN if own else ())))
    for entry in whole.iterdir():
        entry.rename(path / entry.name)
    whole.rmdir()


def clear(path: Path, kept: Sequence[str] = ()) -> None:
    """Empties a directory but for what is kept, and for what the study notes of the trial."""
    for entry in path.iterdir() if path.exists() else ():
        if entry.name in (*kept, RECORD, TOO_LONG):
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def set_values(path: Path, values: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Gives a trial these values from its next round on, and records it.

    Args:
        path: of the trial; what it holds goes on under the new values.
        config: of the experiment with them.
    """
    stages = recorded_stages(path)
    if not stages or stages[-1][1] != values:
        saved = Checkpoint(path).load()
        following = 1 if saved is None else int(saved["round"]) + 1
        stages = [stage for stage in stages if stage[0] < following]
        stages.append((following, dict(values)))
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / _STAGES, json.dumps(stages))
    _rewrite(path, {key: config[key] for key in ("name", "tracking", "algorithm")})


def _rewrite(path: Path, changed: Mapping[str, Any], new_id: str | None = None) -> None:
    """Changes a run that is about to be gone on with.

    Args:
        path: of its directory; where there is no run nothing is done.
        changed: options of its configuration.
        new_id: that trackers know it by; None = as before.
    """
    if not (path / "config.yaml").exists():
        return
    run_id = new_id or recorded_run_id(path)
    write_config(path, parse_yaml((path / "config.yaml").read_text()) | changed, run_id)
    checkpoint = Checkpoint(path)
    saved = checkpoint.load()
    if saved is not None:
        content = {key: value for key, value in saved.items() if key not in ("format", "rows", "state")}
        content["config"] = json.dumps(json.loads(saved["config"]) | changed)
        content |= {"run_id": run_id, "environment": saved["environment"] | {"run_id": run_id}}
        checkpoint.save(content, cast(Mapping[str, Any], saved["state"]))
