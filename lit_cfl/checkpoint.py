"""Saving a run's state, without pickled code and never half.

A file appears under its name only when it is complete on the disk. A state is saved as `{field: value}`; tensors
that are views are cloned, for a view would save all of its storage. Fields that map clients to models
(`dict[int, Tensor]`) are saved incrementally: a file a model in `rows/`, written only where the model is another
tensor than at the save before. `checkpoint.pt` names these files and is renamed last.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lit_cfl.algorithms.base import State
from lit_cfl.errors import InputError, SaveError

FORMAT = 3  # of a run directory; noted in config.yaml and checkpoint.pt


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file so that a reader sees the old content or the whole new one, whatever happens meanwhile.

    Raises:
        SaveError: it could not be written; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        failure = error.__context__ if isinstance(error, RuntimeError) else error  # torch.save hides the system's error
        if isinstance(failure, OSError):
            raise SaveError(f"{path} could not be written ({failure.strerror})") from error
        raise


def require_format(path: Path, found: object) -> None:
    """Refuses a run of another format.

    Args:
        path: of the file that tells.
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
    """A state's fields by name, ready for `torch.save`."""
    return {field.name: _compact(getattr(state, field.name)) for field in fields(state)}


def state_from_dict(state_type: type, values: dict[str, Any]) -> State:
    """The state with these fields. Raises InputError where the fields are others than the class has now."""
    names = {field.name for field in fields(state_type)}
    if names != values.keys():
        raise InputError(
            f"{state_type.__name__} has the fields {sorted(names)}, the saved state {sorted(values)}: "
            "the algorithm was changed since; put it back, or start a new run"
        )
    return state_type(**values)


class Checkpoint:
    """`checkpoint.pt` of one run directory, and the files in `rows/` that it names."""

    def __init__(self, directory: Path) -> None:
        self.path, self.rows = directory / "checkpoint.pt", directory / "rows"
        self._written: dict[str, dict[int, tuple[Tensor, str]]] = {}  # field -> client -> row as saved, its file

    def save(self, content: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Saves plain values and a state's fields. Raises SaveError; the checkpoint before is intact then."""
        by_client = {name: value for name, value in state.items() if _is_per_client(value)}
        named = {name: self._save_rows(name, rows, int(content["round"])) for name, rows in by_client.items()}
        plain = {name: value for name, value in state.items() if name not in by_client}
        files = {name: {client: file for client, (_, file) in rows.items()} for name, rows in named.items()}
        whole = {**content, "format": FORMAT, "state": plain, "rows": files}
        write_atomically(self.path, lambda file: torch.save(whole, file))
        self._written = named
        self._remove_superseded()

    def _save_rows(self, field: str, rows: Mapping[int, Tensor], round: int) -> dict[int, tuple[Tensor, str]]:
        before, now = self._written.get(field, {}), {}
        self.rows.mkdir(exist_ok=True)
        for client, row in rows.items():
            saved = before.get(client)
            if saved is not None and saved[0] is row:
                now[client] = saved
                continue
            name = f"{field}-{client}-{round}.pt"
            write_atomically(self.rows / name, lambda file, row=row: torch.save(_compact(row), file))  # type: ignore[misc]  # mypy infers no default
            now[client] = (row, name)
        return now

    def _remove_superseded(self) -> None:
        named = {file for rows in self._written.values() for _, file in rows.values()}
        for file in self.rows.glob("*") if self.rows.exists() else ():
            if file.name not in named:
                file.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """What `save` saved, with the whole state under `state`; None if nothing was saved. No code in a file is run.

        Raises:
            InputError: a file that is truncated, not ours, or of another format.
        """
        if not self.path.exists():
            return None
        content = _load(self.path)
        if not isinstance(content, dict) or not content.keys() >= {"format", "state", "rows"}:
            raise InputError(f"{self.path} is no checkpoint of Lit-CFL; remove it to start again at round 1")
        require_format(self.path, content["format"])
        for field, files in content["rows"].items():
            rows = {client: _load(self.rows / name) for client, name in files.items()}
            self._written[field] = {client: (row, files[client]) for client, row in rows.items()}
            content["state"][field] = rows
        return content


def _load(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file makes torch raise nearly anything
        raise InputError(
            f"{path} cannot be read: it is truncated, or no file of Lit-CFL; "
            "put a copy back, or remove checkpoint.pt to start again at round 1"
        ) from error


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
