"""W&B's folders in a run directory: each process of a run writes a separate one, also when online."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from lit_cfl.storage.atomic_writes import write_text

_COMPLETE = "lit-cfl-complete-"  # the name of a folder follows whose process logged everything up to a last round
_MAX_NAMED = 3


def folders_of(wandb: Path, run_id: str | None) -> list[Path]:
    """Lists the W&B folders of a run in order of creation: one for each start or resumption.

    Args:
        wandb: Folder `wandb` of a run directory.
        run_id: Id of the W&B run.
    """
    return sorted(wandb.glob(f"*run-*-{run_id}/"), key=lambda path: path.name.removeprefix("offline-"))


def mark_complete(folder: Path, last_round: int) -> None:
    """Marks a W&B folder as complete up to `last_round`. The mark stays if an upload removes the folder."""
    write_text(_mark_of(folder), f"{last_round}\n")


def last_kept_round(wandb: Path, run_id: str | None) -> int:
    """Returns the last round that need not be logged again, and sets folders of killed processes aside.

    A killed process leaves a folder that may lack rounds and may end in half an entry. `wandb sync` (0.31) stops at
    that entry: it sends none of the later folders of the run, and exits with 0. So the next process logs again all
    rounds after those in complete folders.
    """
    _set_aside(folder for folder in folders_of(wandb, run_id) if not _mark_of(folder).exists())
    marks = wandb.glob(f"{_COMPLETE}*-{run_id}")
    return max((int(mark.read_text("utf-8")) for mark in marks), default=0)


def set_offline_aside(wandb: Path, run_id: str | None) -> None:
    """Sets a run's offline folders aside, since it continues online and logs their rounds again."""
    _set_aside(folder for folder in folders_of(wandb, run_id) if folder.name.startswith("offline-"))


def _set_aside(folders: Iterable[Path]) -> None:
    """Makes `wandb sync` skip folders, as if they were uploaded."""
    for folder in folders:
        for file in folder.glob("*.wandb"):
            _upload_mark_of(file).touch()


def sync_line(runs: Iterable[Path]) -> str | None:
    """Describes how to upload the offline folders of runs; None if there are none.

    Args:
        runs: Run directories; their baselines are included.
    """
    folders = [place / "wandb" for run in runs for place in (run, run / "baseline")]
    waiting = [
        folder
        for folder in folders
        if any(not _upload_mark_of(file).exists() for file in folder.glob("offline-run-*/*.wandb"))
    ]
    if not waiting:
        return None
    if len(waiting) > _MAX_NAMED:
        above = shlex.quote(os.path.commonpath(waiting))
        command = f"find {above} -type d -name wandb -exec wandb sync {{}} +"
    else:
        command = f"wandb sync {' '.join(shlex.quote(str(folder)) for folder in waiting)}"
    # the command is not last, since a full stop follows the text and would be copied
    return f"W&B keeps this offline; `{command}` uploads it"


def _mark_of(folder: Path) -> Path:
    return folder.with_name(_COMPLETE + folder.name)


def _upload_mark_of(file: Path) -> Path:
    """Names the file with which W&B marks another file as uploaded."""
    return file.with_suffix(".wandb.synced")
