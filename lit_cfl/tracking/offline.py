"""What the W&B folders of a run hold: each process writes one, online too, a LevelDB log of protocol buffers."""

import json
import os
import shlex
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_BLOCK, _HEADER = 32768, 7
_WHOLE, _LAST = 1, 4
_MAX_NAMED = 3


def folders_of(wandb: Path, run_id: str | None) -> list[Path]:
    """The folders of a run in the order in which they were begun: one for each time that it was started or resumed.

    Args:
        wandb: the folder `wandb` of a run directory.
        run_id: of the W&B run.
    """
    return sorted(wandb.glob(f"*run-*-{run_id}"), key=lambda path: path.name.removeprefix("offline-"))


def last_kept_round(wandb: Path, run_id: str | None, logged: int) -> int:
    """The last round that the run's folders hold, 0 = none.

    A process that is killed takes the last seconds of its folder with it, though its rows stand in `metrics.csv`.

    Args:
        logged: the answer where the folders were removed, as they may be after `wandb sync`.
    """
    if not wandb.exists():
        return 0
    folders = folders_of(wandb, run_id)
    return max(map(_last_round, folders)) if folders else logged


def _last_round(folder: Path) -> int:
    """The last round that a folder holds, 0 = none."""
    return next((int(row["round"]) for row in history(folder, backwards=True) if "round" in row), 0)


def mend(wandb: Path, run_id: str | None) -> None:
    """Cuts a run's folders back to their last whole entry: at half a one `wandb sync` would stop, and send no other."""
    for folder in folders_of(wandb, run_id):
        for path in folder.glob("*.wandb"):
            data = path.read_bytes()
            end = max((end for end, _ in entries(data)), default=0)
            if end == 0:
                shutil.rmtree(folder)
            elif end < len(data):
                os.truncate(path, end)


def history(folder: Path, backwards: bool = False) -> Iterator[dict[str, float]]:
    """The rows that were logged into one folder, up to where it was cut off; the last one first if `backwards`."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when it is imported

    for path in folder.glob("*.wandb"):
        found = list(entries(path.read_bytes()))
        for _, data in reversed(found) if backwards else found:
            with suppress(DecodeError):  # a disk that was full may leave holes
                record = Record.FromString(data)
                if record.WhichOneof("record_type") == "history":
                    items = record.history.item
                    yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole entries of a file and where each ends.

    They lie in blocks of 32 KiB; a piece of one has a checksum, its length and its place in the entry before it.
    """
    at, pieces = _HEADER, b""  # behind the file's own header
    while at + _HEADER <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _HEADER:
            at += room
            continue
        length, place = struct.unpack_from("<HB", data, at + 4)
        at += _HEADER + length
        if at > len(data) or not place:  # cut off, or zeros behind the end
            return
        pieces += data[at - length : at]
        if place in (_WHOLE, _LAST):
            yield at, pieces
            pieces = b""


def sync_line(runs: Iterable[Path]) -> str | None:
    """How to upload what runs have kept offline; None where nothing waits.

    Args:
        runs: run directories; their baselines count, too.
    """
    folders = [place / "wandb" for run in runs for place in (run, run / "baseline")]
    waiting = [folder for folder in folders if any(map(_waits, folder.glob("offline-run-*/*.wandb")))]
    if not waiting:
        return None
    if len(waiting) > _MAX_NAMED:
        above = shlex.quote(os.path.commonpath(waiting))
        return f"W&B keeps this offline; to upload it: find {above} -type d -name wandb -exec wandb sync {{}} +"
    return (
        f"W&B keeps this offline; to upload it: wandb sync {' '.join(shlex.quote(str(folder)) for folder in waiting)}"
    )


def _waits(file: Path) -> bool:
    return not file.with_suffix(".wandb.synced").exists()
