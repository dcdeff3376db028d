"""Saves a run's state atomically and without pickled code.

`checkpoint.pt` is renamed into place last, so it always belongs to one round. Fields that map numbers to tensors, such
as clients to models, may be large: `rows/` holds them, and a save writes only the tensors that were replaced since the
previous one, many per file. Files of which less than half is still needed are dropped, and their needed tensors are
written again, so that the files take at most twice the size of the tensors. Every file is a zip archive with checksums.
The name of a file in `rows/` is random and also stands in the file, so that a file of another run is noticed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from secrets import token_hex
from typing import Any
from weakref import ReferenceType, ref
from zipfile import ZipFile

import torch
from torch import Tensor

from lit_cfl.algorithms.base import State
from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically
from lit_cfl.storage.config_file import FORMAT, require_format

_READS = 3  # attempts to read a checkpoint that another process keeps saving
_FILE_BYTES = 2**26  # maximum size of the tensors in a file of rows/, unless a single one is larger
_NOBODY = object()
_REMEDY = "put a copy back, or remove checkpoint.pt to start again at round 1"


def state_to_dict(state: State) -> dict[str, Any]:
    """Converts a state to a dict of its fields, ready for `torch.save`."""
    return {field.name: _without_views(getattr(state, field.name)) for field in fields(state)}


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
    path = directory / "checkpoint.pt"
    return dict(_read(path, mmap=True)["fingerprint"]) if path.exists() else {}


def read_saved_config(directory: Path) -> dict[str, Any] | None:
    """Reads the configuration that a run was last saved with; None if there is no checkpoint."""
    path = directory / "checkpoint.pt"
    return dict(json.loads(_read(path, mmap=True)["config"])) if path.exists() else None


def share_initial_model(directories: Sequence[Path]) -> bool:
    """Returns whether runs of different seeds all started from the same initial model."""
    found = [read_fingerprint(directory).get("initial model") for directory in directories]
    return len(found) > 1 and None not in found and len(set(found)) == 1


@dataclass(frozen=True, eq=False, slots=True)
class _SavedRow:
    """Where a tensor is saved: a file of `rows/`, the number of tensors in the file, and the tensor's position."""

    row: "ReferenceType[Tensor]"  # the tensor, to see whether it was replaced; weak, so that it can be freed
    file: str
    size: int
    position: int


class Checkpoint:
    """`checkpoint.pt` of one run directory, and the files in `rows/` that it names."""

    def __init__(self, directory: Path) -> None:
        self.path, self.rows = directory / "checkpoint.pt", directory / "rows"
        self._written: dict[str, dict[int, _SavedRow]] = {}  # saved tensors by field and number

    @property
    def row_files(self) -> set[str]:
        """Names of the files in `rows/` that belong to the checkpoint."""
        return {saved.file for rows in self._written.values() for saved in rows.values()}

    def save(self, content: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Saves a run.

        Args:
            content: Plain values; `parts` are the parts of each table that never change, see `CsvLog`.
            state: Fields of the algorithm's state.

        Raises:
            SaveError: a file could not be written; the previous checkpoint is intact.
        """
        groups = {"state": state, "parts": content.get("parts", {})}
        large = {name: value for group in groups.values() for name, value in group.items() if _is_numbered(value)}
        written = {name: self._save_rows(name, rows) for name, rows in large.items()}
        plain = {
            group: {name: {} if name in large else value for name, value in fields.items()}
            for group, fields in groups.items()
        }
        places = {name: _places(rows) for name, rows in written.items()}
        whole = {**content, **plain, "format": FORMAT, "rows": places}
        write_atomically(self.path, lambda file: torch.save(whole, file))
        self._written = written
        self.remove_superseded()

    def _save_rows(self, field: str, rows: Mapping[int, Tensor]) -> dict[int, _SavedRow]:
        """Writes the tensors of a field that are not saved yet. Returns the places of all of them."""
        before = self._written.get(field, {})
        same = {number: saved for number, saved in before.items() if saved.row() is rows.get(number, _NOBODY)}
        needed = Counter(saved.file for saved in same.values())
        now = {number: saved for number, saved in same.items() if 2 * needed[saved.file] >= saved.size}
        for numbers in _parts({number: row for number, row in rows.items() if number not in now}):
            name = self._save_file(field, [rows[number] for number in numbers])
            now |= {k: _SavedRow(ref(rows[k]), name, len(numbers), place) for place, k in enumerate(numbers)}
        return {number: now[number] for number in rows}

    def _save_file(self, field: str, rows: Sequence[Tensor]) -> str:
        name = f"{field}-{token_hex(8)}.pt"
        with name_write_errors(self.rows):
            self.rows.mkdir(exist_ok=True)
        write_atomically(self.rows / name, lambda file: torch.save({name: torch.stack([*rows])}, file))
        return name

    def remove_superseded(self) -> None:
        """Removes files in `rows/` that the checkpoint does not name, such as those of a killed process."""
        named = self.row_files
        for file in self.rows.glob(f"*-{'[0-9a-f]' * 16}.pt"):
            if file.name not in named:
                with name_write_errors(file):
                    file.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Loads the saved values, with `state` and `parts`; None without a checkpoint. Executes no code in files.

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
        content = _read(self.path)
        if not isinstance(content, dict) or not content.keys() >= {"format", "state", "parts", "rows"}:
            raise InputError(f"{self.path} is not a checkpoint of Lit-CFL; remove it to start again at round 1")
        require_format(self.path, content["format"])
        for field, places in content["rows"].items():
            group = "parts" if field in content["parts"] else "state"
            content[group][field] = self._load_rows(field, places)
        return content

    def _load_rows(self, field: str, places: Mapping[str, Any]) -> dict[int, Tensor]:
        wholes = [self._load_file(Path(name).name) for name in places["files"]]
        self._written[field], rows = {}, {}
        for number, file, place in places["rows"].tolist():
            rows[number] = wholes[file][place]
            name, size = places["files"][file], len(wholes[file])
            self._written[field][number] = _SavedRow(ref(rows[number]), name, size, place)
        return rows

    def _load_file(self, name: str) -> Tensor:
        """Maps the tensors of a file into memory, which all files together may exceed."""
        content = _read(self.rows / name, mmap=True)
        if not isinstance(content, dict) or name not in content:
            raise InputError(f"{self.rows / name} cannot be read: it is a copy of another file; {_REMEDY}")
        tensor: Tensor = content[name]
        return tensor


def _read(path: Path, mmap: bool = False) -> Any:
    """Reads a file that `torch.save` wrote, or maps it into memory. Raises InputError if it is lost or damaged."""
    with suppress(Exception):  # a damaged file makes torch raise nearly anything
        with ZipFile(path) as archive:  # torch.load does not look at the checksums
            intact = archive.testzip() is None
        if intact:
            return torch.load(path, weights_only=True, map_location="cpu", mmap=mmap)
    raise InputError(f"{path} cannot be read: it is lost, truncated, damaged, or not a file of Lit-CFL; {_REMEDY}")


def _places(rows: Mapping[int, _SavedRow]) -> dict[str, Any]:
    """Describes where tensors are saved: names of files, and each tensor's number, file and position `[rows, 3]`."""
    files = {name: number for number, name in enumerate(dict.fromkeys(saved.file for saved in rows.values()))}
    found = [[number, files[saved.file], saved.position] for number, saved in rows.items()]
    return {"files": list(files), "rows": torch.tensor(found)}


def _parts(rows: Mapping[int, Tensor]) -> Iterator[list[int]]:
    """Splits tensors into groups of equal shape and dtype, of at most `_FILE_BYTES` or of a single one."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, row in rows.items():
        alike.setdefault((row.shape, row.dtype), []).append(number)
    for numbers in alike.values():
        most = max(1, _FILE_BYTES // max(rows[numbers[0]].nbytes, 1))
        for start in range(0, len(numbers), most):
            yield numbers[start : start + most]


def _is_numbered(value: Any) -> bool:
    whole = isinstance(value, dict) and bool(value)
    return whole and all(isinstance(key, int) and isinstance(row, Tensor) for key, row in value.items())


def _without_views(value: Any) -> Any:
    """Clones tensors that are views, since a view would save all of its storage."""
    if isinstance(value, Tensor):
        return value if value.nbytes == value.untyped_storage().nbytes() else value.clone()
    if isinstance(value, dict) and not _is_numbered(value):
        return {key: _without_views(item) for key, item in value.items()}
    return [_without_views(item) for item in value] if isinstance(value, list) else value
