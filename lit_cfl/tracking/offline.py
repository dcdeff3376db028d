"""W&B's folders in a run directory: each process of a run writes a separate one, also when online."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from lit_cfl.storage.atomic_writes import write_text

_COMPLETE = "lit-cfl-complete"  # marks a folder whose process ended normally and logged everything
# prefix of a file that stays if an upload removes W&B's folders; the run's id follows
_LAST_ROUND = "lit-cfl-last-round-"
_MAX_NAMED = 3


def folders_of(wandb: Path, run_id: str | None) -> list[Path]:
    """Lists the W&B folders of a run in order of creation: one for each start or resumption.

    Args:
        wandb: Folder `wandb` of a run directory.
        run_id: Id of the W&B run.
    """
    return sorted(wandb.glob(f"*run-*-{run_id}"), key=lambda path: path.name.removeprefix("offline-"))


def mark_complete(folder: Path, run_id: str | None, last_round: int) -> None:
    """Marks a W&B folder as complete, and records the last round that it has."""
    write_text(folder.with_name(f"{_LAST_ROUND}{run_id}"), f"{last_round}\n")
    (folder / _COMPLETE).touch()


def last_kept_round(wandb: Path, run_id: str | None) -> int:
    """Returns the last round that need not be logged again, and sets folders of killed processes aside.

    A killed process leaves a folder that may lack rounds and may end in half an entry. `wandb sync` (0.31) stops at
    that entry: it sends none of the later folders of the run, and exits with 0. So the next process logs again all
    rounds after those in complete folders, and the truncated folder is not uploaded: `wandb sync` skips a file that has
    a `.synced` file next to it.

    Args:
        wandb: Folder `wandb` of a run directory.
        run_id: Id of the W&B run.
    """
    folders = folders_of(wandb, run_id)
    _set_aside(folder for folder in folders if not (folder / _COMPLETE).exists())
    file = wandb / f"{_LAST_ROUND}{run_id}"
    return int(file.read_text("utf-8")) if file.exists() else 0


def set_offline_aside(wandb: Path, run_id: str | None) -> None:
    """Sets a run's offline folders aside, since it continues online and logs their rounds again."""
    _set_aside(folder for folder in folders_of(wandb, run_id) if folder.name.startswith("offline-"))


def _set_aside(folders: Iterable[Path]) -> None:
    for folder in folders:
        for file in folder.glob("*.wandb"):
            _marker_of(file).touch()


def sync_line(runs: Iterable[Path]) -> str | None:
    """Describes how to upload the offline folders of runs; None if there are none.

    Args:
        runs: Run directories; their baselines are included.
    """
    folders = [place / "wandb" for run in runs for place in (run, run / "baseline")]
    waiting = [
        folder
        for folder in folders
        if any(not _marker_of(file).exists() for file in folder.glob("offline-run-*/*.wandb"))
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


def _marker_of(file: Path) -> Path:
    """Names the file with which W&B marks another file as uploaded."""
    return file.with_suffix(".wandb.synced")
