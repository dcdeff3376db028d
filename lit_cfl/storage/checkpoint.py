"""Saves a run's state atomically and without pickled code.

A file appears under its name only when it is complete on the disk. A state is saved as `{field: value}`; tensors
that are views are cloned, since a view would save all of its storage. Fields that map clients to models
(`dict[int, Tensor]`) are saved incrementally, in `rows/`: a save writes only models whose tensor was replaced since the
previous save, many per file. A file of which less than half is still needed is dropped, and its needed models are
written again, so that the files take at most twice the size of the models. `checkpoint.pt` names the files with their
digests and is renamed last. A file that has changed by a single bit is refused.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from lit_cfl.storage.run_format import FORMAT, require_format

_READS = 3  # attempts to read a checkpoint that another process keeps saving
_ROWS = re.compile(r"\w+-\d+-\d+\.pt")  # file names: field, round and number
_NOBODY = object()
_FILE_BYTES = 2**26  # maximum size of the models in a file of rows/, unless a single one is larger


def state_to_dict(state: State) -> dict[str, Any]:
    """Converts a state to a dict of its fields, ready for `torch.save`."""
    return {field.name: _compact(getattr(state, field.name)) for field in fields(state)}


def state_from_dict(state_type: type, values: dict[str, Any]) -> State:
    """Builds the state with these fields. Raises InputError if the class has different fields now."""
    names = {field.name for field in fields(state_type)}
    if names != values.keys():
        raise InputError(
            f"{state_type.__name__} has the fields {sorted(names)}, but the saved state has {sorted(values)}: the "
            "algorithm's code has changed since then; restore it, or start a new run"
        )
    return state_type(**values)


def read_fingerprint(directory: Path) -> dict[str, str]:
    """Reads the recorded `PreparedRun.fingerprint` of a run; {} if there is no checkpoint."""
    return dict(read_identity(directory)["fingerprint"])


def read_identity(directory: Path) -> dict[str, Any]:
    """Reads the digests, and the options of the data, from a run's checkpoint, if there is one."""
    if not (directory / "checkpoint.pt").exists():
        return {"fingerprint": {}}
    saved = torch.load(directory / "checkpoint.pt", weights_only=True, map_location="cpu", mmap=True)
    return {key: saved[key] for key in ("fingerprint", "data options")}


def share_initial_model(directories: Sequence[Path]) -> bool:
    """Returns whether runs of different seeds all started from the same initial model."""
    found = [read_fingerprint(directory).get("initial model") for directory in directories]
    return len(found) > 1 and None not in found and len(set(found)) == 1


@dataclass(frozen=True)
class _RowFile:
    """A file in `rows/`, and the number of models in it."""

    name: str
    digest: str
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class _SavedRow:
    """A weak reference to a client's model, and the model's place on disk."""

    row: "ReferenceType[Tensor]"
    file: _RowFile
    position: int


class Checkpoint:
    """`checkpoint.pt` of one run directory, and the files in `rows/` that it references."""

    def __init__(self, directory: Path) -> None:
        self.path, self.rows = directory / "checkpoint.pt", directory / "rows"
        self._written: dict[str, dict[int, _SavedRow]] = {}  # saved rows by field and client

    @property
    def row_files(self) -> list[str]:
        """Names of the files in `rows/` that belong to the checkpoint, unordered."""
        return [*{saved.file.name for rows in self._written.values() for saved in rows.values()}]

    def save(self, content: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Saves plain values and a state's fields. Raises SaveError, with the previous checkpoint intact."""
        by_client = {name: value for name, value in state.items() if _is_per_client(value)}
        written = {name: self._save_rows(name, rows, int(content["round"])) for name, rows in by_client.items()}
        plain = {name: value for name, value in state.items() if name not in by_client}
        places = {name: _places(rows) for name, rows in written.items()}
        whole = {**content, "format": FORMAT, "state": plain, "rows": places}
        write_atomically(self.path, lambda file: torch.save(whole, file))
        self._written = written
        self.remove_superseded()

    def _save_rows(self, field: str, rows: Mapping[int, Tensor], round: int) -> dict[int, _SavedRow]:
        before = self._written.get(field, {})
        same = {client: saved for client, saved in before.items() if saved.row() is rows.get(client, _NOBODY)}
        needed = Counter(saved.file for saved in same.values())
        now = {client: saved for client, saved in same.items() if 2 * needed[saved.file] >= saved.file.size}
        with name_write_errors(self.rows):
            self.rows.mkdir(exist_ok=True)
        taken, number = {saved.file.name for saved in before.values()}, 0
        for clients in _parts({client: row for client, row in rows.items() if client not in now}):
            while (name := f"{field}-{round}-{number}.pt") in taken:
                number += 1
            taken.add(name)
            file = self._save_file(name, [rows[client] for client in clients])
            now |= {client: _SavedRow(ref(rows[client]), file, k) for k, client in enumerate(clients)}
        return {client: now[client] for client in rows}

    def _save_file(self, name: str, rows: Sequence[Tensor]) -> _RowFile:
        file = BytesIO()
        torch.save(torch.stack([*rows]), file)
        write_atomically(self.rows / name, lambda opened: opened.write(file.getbuffer()))
        return _RowFile(name, sha256(file.getbuffer()).hexdigest(), len(rows))

    def remove_superseded(self) -> None:
        """Removes files in `rows/` that the checkpoint does not reference, such as those of a killed process."""
        named = set(self.row_files)
        for file in self.rows.glob("*.pt"):
            if _ROWS.fullmatch(file.name) and file.name not in named:
                with name_write_errors(file):
                    file.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Loads the saved values, with the state under `state`; None without a checkpoint. Executes no code in files.

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
                    raise  # otherwise another process has saved in the meantime, and removed rows that it replaced
        raise InputError(f"{self.path} was saved again each time it was read; wait until its run has ended")

    def _written_at(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_ino, found.st_mtime_ns

    def _load(self) -> dict[str, Any]:
        content = self._read()
        if not isinstance(content, dict) or not content.keys() >= {"format", "state", "rows"}:
            raise InputError(f"{self.path} is not a checkpoint of Lit-CFL; remove it to start again at round 1")
        require_format(self.path, content["format"])
        for field, saved in content["rows"].items():
            content["state"][field] = self._load_rows(field, saved)
        return content

    def _load_rows(self, field: str, places: Mapping[str, Any]) -> dict[int, Tensor]:
        files = [_RowFile(*named) for named in places["files"]]
        wholes = [self._load_file(file.name, file.digest) for file in files]
        self._written[field], rows = {}, {}
        for client, number, position in places["rows"].tolist():
            rows[client] = wholes[number][position]
            self._written[field][client] = _SavedRow(ref(rows[client]), files[number], position)
        return rows

    def _read(self) -> Any:
        try:
            with ZipFile(self.path) as archive:  # torch.load does not look at the checksums
                intact = archive.testzip() is None
            if intact:
                return torch.load(self.path, weights_only=True, map_location="cpu")
        except Exception as error:  # a damaged file makes torch raise nearly anything
            raise InputError(_unreadable(self.path)) from error
        raise InputError(_unreadable(self.path))

    def _load_file(self, name: str, digest: str) -> Tensor:
        if not _ROWS.fullmatch(name):
            raise InputError(
                f"{self.path} names {name!r}, which is not a file of rows/, so it is not a checkpoint of Lit-CFL; "
                "remove it to start again at round 1"
            )
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
        # mapped, not read: all rows together may exceed the memory
        return cast(Tensor, torch.load(path, weights_only=True, map_location="cpu", mmap=True))


def _unreadable(path: Path) -> str:
    return (
        f"{path} cannot be read: it is truncated, damaged, or not a file of Lit-CFL; put a copy back, or remove "
        "checkpoint.pt to start again at round 1"
    )


def _places(rows: Mapping[int, _SavedRow]) -> dict[str, Any]:
    """Describes where rows are stored: files with digests, and each row's client, file and position `[rows, 3]`."""
    files = {file: number for number, file in enumerate(dict.fromkeys(saved.file for saved in rows.values()))}
    found = [[client, files[saved.file], saved.position] for client, saved in rows.items()]
    return {"files": [[file.name, file.digest, file.size] for file in files], "rows": torch.tensor(found)}


def _parts(rows: Mapping[int, Tensor]) -> Iterator[list[int]]:
    """Splits clients with rows of equal shape and dtype into files of at most `_FILE_BYTES`, or of a single row."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for client, row in rows.items():
        alike.setdefault((row.shape, row.dtype), []).append(client)
    for clients in alike.values():
        size = rows[clients[0]].nbytes
        most = max(1, _FILE_BYTES // max(size, 1))
        for start in range(0, len(clients), most):
            yield clients[start : start + most]


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
