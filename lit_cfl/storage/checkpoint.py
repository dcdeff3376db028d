"""Saves a run's state, without pickled code and never half.

A file appears under its name only when it is complete on the disk. A state is saved as `{field: value}`; tensors
that are views are cloned, for a view would save all of its storage. Fields that map clients to models
(`dict[int, Tensor]`) are saved incrementally: a file a model in `rows/`, written only where the model is another
tensor than at the save before. `checkpoint.pt` names these files with their digests and is renamed last. A file with
a bit that is not as it was written is refused.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from weakref import ReferenceType, ref
from zipfile import ZipFile

import torch
from torch import Tensor

from lit_cfl.algorithms.base import State
from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically
from lit_cfl.storage.digests import digest_of

FORMAT = 3  # of a run directory; noted in config.yaml and checkpoint.pt
_READS = 3  # of a checkpoint that another process goes on saving
_ROW = re.compile(r"\w+-\d+-\d+\.pt")  # field, client and round


def require_format(path: Path, found: object) -> None:
    """Checks that a run has the format of this version.

    Args:
        path: of the file that holds the number.
        found: the number in it; None = none, as in `config.yaml` before 0.2.0.

    Raises:
        InputError: naming the version that reads it.
    """
    if found != FORMAT:
        earlier = found is None or (isinstance(found, int) and found < FORMAT)
        raise InputError(
            f"{path} is of a run of {'Lit-CFL 0.1.0' if earlier else 'a later version'}, whose files this version "
            f"does not read (its format is {FORMAT}); use {'0.1.0' if earlier else 'that version'}"
        )


def state_to_dict(state: State) -> dict[str, Any]:
    """Converts a state to its fields by name, ready for `torch.save`."""
    return {field.name: _compact(getattr(state, field.name)) for field in fields(state)}


def state_from_dict(state_type: type, values: dict[str, Any]) -> State:
    """Builds the state with these fields. Raises InputError where the class has other fields now."""
    names = {field.name for field in fields(state_type)}
    if names != values.keys():
        raise InputError(
            f"{state_type.__name__} has the fields {sorted(names)}, the saved state {sorted(values)}: "
            "the algorithm was changed since; put it back, or start a new run"
        )
    return state_type(**values)


def recorded_fingerprint(directory: Path) -> dict[str, str]:
    """Reads `PreparedRun.fingerprint` as a run recorded it; {} if there is no checkpoint."""
    if not (directory / "checkpoint.pt").exists():
        return {}
    saved = torch.load(directory / "checkpoint.pt", weights_only=True, map_location="cpu", mmap=True)
    return dict(saved["fingerprint"])


def share_initial_model(directories: Sequence[Path]) -> bool:
    """Says whether several runs, of different seeds, started from one initial model."""
    found = [recorded_fingerprint(directory).get("initial model") for directory in directories]
    return len(found) > 1 and None not in found and len(set(found)) == 1


@dataclass(frozen=True, eq=False)
class _SavedRow:
    """A client's model and its file in `rows/`. The model is not kept alive: all of them may be much of the memory."""

    row: "ReferenceType[Tensor]"
    name: str
    digest: str


class Checkpoint:
    """`checkpoint.pt` of one run directory, and the files in `rows/` that it names."""

    def __init__(self, directory: Path) -> None:
        self.path, self.rows = directory / "checkpoint.pt", directory / "rows"
        self._written: dict[str, dict[int, _SavedRow]] = {}  # by field and client

    @property
    def row_files(self) -> list[str]:
        """Names of the files in `rows/` that belong to the checkpoint, in no order."""
        return [saved.name for rows in self._written.values() for saved in rows.values()]

    def save(self, content: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Saves plain values and a state's fields. Raises SaveError; the checkpoint before is intact then."""
        by_client = {name: value for name, value in state.items() if _is_per_client(value)}
        written = {name: self._save_rows(name, rows, int(content["round"])) for name, rows in by_client.items()}
        plain = {name: value for name, value in state.items() if name not in by_client}
        files = {
            name: {client: [saved.name, saved.digest] for client, saved in rows.items()}
            for name, rows in written.items()
        }
        whole = {**content, "format": FORMAT, "state": plain, "rows": files}
        write_atomically(self.path, lambda file: torch.save(whole, file))
        self._written = written
        self.remove_superseded()

    def _save_rows(self, field: str, rows: Mapping[int, Tensor], round: int) -> dict[int, _SavedRow]:
        before, now = self._written.get(field, {}), {}
        with name_write_errors(self.rows):
            self.rows.mkdir(exist_ok=True)
        for client, row in rows.items():
            saved = before.get(client)
            if saved is None or saved.row() is not row:
                saved = self._save_row(row, f"{field}-{client}-{round}.pt")
            now[client] = saved
        return now

    def _save_row(self, row: Tensor, name: str) -> _SavedRow:
        file = BytesIO()
        torch.save(_compact(row), file)
        write_atomically(self.rows / name, lambda opened: opened.write(file.getbuffer()))
        return _SavedRow(ref(row), name, sha256(file.getbuffer()).hexdigest())

    def remove_superseded(self) -> None:
        """Removes rows that the checkpoint does not name, such as a killed process leaves behind."""
        named = set(self.row_files)
        for file in self.rows.glob("*.pt"):
            if _ROW.fullmatch(file.name) and file.name not in named:
                with name_write_errors(file):
                    file.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Loads what `save` saved, the whole state under `state`; None if nothing was saved. No code in a file is run.

        Raises:
            InputError: a file that was changed, damaged or lost, is not ours, or of another format.
        """
        if not self.path.exists():
            return None
        for _ in range(_READS):
            written = self._written_at()
            try:
                return self._load()
            except InputError:
                if self._written_at() == written:
                    raise  # else another process has saved meanwhile, and removed rows that it replaced
        raise InputError(f"{self.path} was saved anew each time it was read; wait until its run has ended")

    def _written_at(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_ino, found.st_mtime_ns

    def _load(self) -> dict[str, Any]:
        content = self._read()
        if not isinstance(content, dict) or not content.keys() >= {"format", "state", "rows"}:
            raise InputError(f"{self.path} is no checkpoint of Lit-CFL; remove it to start again at round 1")
        require_format(self.path, content["format"])
        for field, files in content["rows"].items():
            rows = {client: self._load_row(*named) for client, named in files.items()}
            self._written[field] = {client: _SavedRow(ref(rows[client]), *named) for client, named in files.items()}
            content["state"][field] = rows
        return content

    def _read(self) -> Any:
        try:
            with ZipFile(self.path) as archive:  # torch.load does not look at the checksums
                intact = archive.testzip() is None
            if intact:
                return torch.load(self.path, weights_only=True, map_location="cpu")
        except Exception as error:  # a damaged file makes torch raise nearly anything
            raise InputError(_unreadable(self.path)) from error
        raise InputError(_unreadable(self.path))

    def _load_row(self, name: str, digest: str) -> Tensor:
        if not _ROW.fullmatch(name):
            raise InputError(f"{self.path} names {name!r}, which is no file of rows/: it is no checkpoint of Lit-CFL")
        path, found = self.rows / name, None
        with suppress(OSError):
            found = digest_of(path)
        if found is None:
            raise InputError(f"{_unreadable(path)} ({self.path} names it)")
        if found != digest:
            raise InputError(
                f"{path} cannot be read: it is not the file that {self.path} names, so one of them is "
                "damaged or comes from another run; put a copy back, or remove checkpoint.pt to start again at round 1"
            )
        # Mapped, not read: all of them may be more than the memory.
        return cast(Tensor, torch.load(path, weights_only=True, map_location="cpu", mmap=True))


def _unreadable(path: Path) -> str:
    return (
        f"{path} cannot be read: it is truncated, damaged, or no file of Lit-CFL; "
        "put a copy back, or remove checkpoint.pt to start again at round 1"
    )


def _is_per_client(value: Any) -> bool:
    whole = isinstance(value, dict) and bool(value)
    return whole and all(isinstance(key, int) and isinstance(row, Tensor) for key, row in value.items())


def _compact(value: Any) -> Any:
    if isinstance(value, Tensor):
        whole = value.numel() * value.element_size() == value.untyped_storage().nbytes()
        return value if whole else value.clone()
    if isinstance(value, dict) and not _is_per_client(value):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_compact(item) for item in value]
    return value
