"""Hurts a process at one of its file operations: SIGKILL, or a disk that is full from then on."""

import errno
import os
import signal
import sys
from pathlib import Path

_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
_WRITING = os.O_WRONLY | os.O_RDWR


class Hurt:
    """Counts the file operations of this process below a folder, and hurts the process at one of them.

    Args:
        folder: below which operations count.
        how: `kill`, `full` or `count`.
        at: number of the operation, from 0.
        apart: a folder below it whose operations do not count.
        record: file to which `count` adds a line for each operation, and `kill` one before it kills; where it has a
            line, `kill` spares the process.
    """

    def __init__(self, folder: Path, how: str, at: int, apart: Path | None = None, record: Path | None = None) -> None:
        self.folder, self.how, self.at, self.count = str(folder.absolute()), how, at, 0
        self.apart, self.record = apart and str(apart.absolute()), record
        self._sync = os.fsync
        sys.addaudithook(self._heard)
        os.fsync = self._fsync

    def _heard(self, event: str, details: tuple[object, ...]) -> None:
        if event == "open":
            counts = isinstance(details[2], int) and bool(details[2] & _WRITING)
        else:
            counts = event in _EVENTS and os.path.exists(str(details[0])) != (event == "os.mkdir")
        path = os.path.abspath(str(details[0])) if counts else ""
        if self._counts(path):
            self._operation(event, path)

    def _counts(self, path: str) -> bool:
        return path.startswith(self.folder) and not (self.apart and path.startswith(self.apart))

    def _fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._counts(path):
            if self.how == "kill" and self.count == self.at and path.endswith(".tmp") and not self._recorded():
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            self._operation("fsync", path)
        self._sync(descriptor)

    def _operation(self, event: str, path: str) -> None:
        number, self.count = self.count, self.count + 1
        if self.how == "count" or (self.how == "kill" and number == self.at and not self._recorded()):
            self._add(f"{event} {path}")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "full" and number >= self.at:
            named = [] if event == "fsync" else [path]  # as the system does
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)

    def _recorded(self) -> bool:
        return self.record is not None and self.record.exists() and self.record.stat().st_size > 0

    def _add(self, line: str) -> None:
        if self.record is not None:
            with self.record.open("a") as file:
                file.write(f"{line}\n")
