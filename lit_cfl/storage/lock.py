"""Locks a directory for one process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lit_cfl.errors import InputError, SaveError
from lit_cfl.storage.atomic_writes import name_write_errors, remove_unfinished

_FOLDERS = ("rows", "snapshots", "pictures")  # folders in which a killed process may have left unfinished files
_WAIT_SECONDS, _POLL_SECONDS = 60.0, 0.2
_LOOK_SECONDS = 0.5  # a report's `wait_until_free` holds the lock for a moment


@contextmanager
def lock_directory(path: Path, option: str = "--run_dir") -> Iterator[None]:
    """Creates the directory and locks it for this process until the end of the block or the process.

    Args:
        path: Path of the directory.
        option: Option by which the user chose the directory.

    Raises:
        InputError: another process has locked the directory, or it cannot be written.
    """
    file = path / ".lock"
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file).acquire(timeout=_LOOK_SECONDS, poll_interval=0.02)
    except Timeout as error:
        raise InputError(
            f"{path} is in use by process {file.read_text('utf-8').strip()}; wait for it, or choose another {option}"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another {option}") from error
    with lock:
        with name_write_errors(file):
            file.write_text(str(os.getpid()), "utf-8")
        for folder in (path, *(path / name for name in _FOLDERS)):
            remove_unfinished(folder)
        try:
            yield
        finally:
            with suppress(OSError):  # the disk is full or gone, which was reported already
                if [entry.name for entry in path.iterdir()] == [".lock"]:  # nothing was written
                    file.unlink()
                    path.rmdir()


def wait_until_free(path: Path, seconds: float = _WAIT_SECONDS) -> bool:
    """Waits a limited time until no other process holds a directory's lock.

    A killed process may take a moment to end.

    Args:
        path: Path of the directory.
        seconds: Maximum time to wait.

    Returns:
        Whether the directory is free now.
    """
    if (path / ".lock").exists():
        with name_write_errors(path / ".lock"):
            try:
                with FileLock(path / ".lock", timeout=seconds, poll_interval=_POLL_SECONDS):
                    return True
            except Timeout:
                return False
    return True


def is_locked(path: Path) -> bool:
    """Returns whether a process has locked a directory now; False if this user cannot read the lock."""
    try:
        return not wait_until_free(path, 0)
    except SaveError:
        return False
