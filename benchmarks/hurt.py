"""Interrupts a process at one of its file operations, by SIGKILL or by a disk that stays full from then on."""

import builtins
import errno
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
_WRITING = os.O_WRONLY | os.O_RDWR


class _Watched(io.FileIO):
    """A file that calls a function before each write."""

    operation: Callable[[], None]

    def write(self, data: Any) -> int:
        self.operation()
        return super().write(data)


class Hurt:
    """Counts a process's file operations below a folder, and interrupts the process at one of them.

    Args:
        folder: Folder below which operations count.
        how: `count`, `kill`, or `full`: from then on all operations fail, and no space is free.
        at: Number of the operation, from 0.
        apart: Folder whose operations neither count nor fail.
        record: File to which `count` adds a line per operation, and the other modes a line for the interrupted one.
            Processes may share it: only one of them is killed, but a full disk is full for all of them.
    """

    def __init__(self, folder: Path, how: str, at: int, apart: Path | None = None, record: Path | None = None) -> None:
        self.folder, self.how, self.at, self.count = folder.absolute(), how, at, 0
        self.apart, self.record = apart and apart.absolute(), record
        self._sync, self._open = os.fsync, io.open
        sys.addaudithook(self._handle_event)
        os.fsync = self._fsync
        io.open = builtins.open = self._open_watched
        if how == "full":
            shutil.disk_usage = self._wrap_usage(shutil.disk_usage)

    def _handle_event(self, event: str, details: tuple[object, ...]) -> None:
        if event == "open":
            counts = isinstance(details[2], int) and bool(details[2] & _WRITING)
        else:
            counts = event in _EVENTS and os.path.exists(str(details[0])) != (event == "os.mkdir")
        if counts:
            self._operation(event, os.path.abspath(str(details[0])))

    def _fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._is_next(path) and self.how == "kill" and path.endswith(".tmp"):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        self._operation("fsync", path)
        self._sync(descriptor)

    def _open_watched(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Opens a file; each write to a new or extended one is an operation."""
        path = "" if isinstance(file, int) else os.path.abspath(file)
        if not self._counts(path) or buffering != -1 or not set(mode) & set("wax"):
            return self._open(file, mode, buffering, encoding, *args, **options)
        raw = _Watched(path, mode.replace("b", "").replace("t", ""))
        raw.operation = lambda: self._operation("write", path)
        binary = io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding or "utf-8")

    def _operation(self, event: str, path: str) -> None:
        hurts = self._is_next(path)
        if hurts or (self.how == "count" and self._counts(path)):
            self._add(f"{event} {path}")
        self.count += self._counts(path)
        if hurts and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "full" and self._is_full() and self._counts(path):
            named = [] if event == "fsync" else [path]  # as for the operating system's own errors, fsync names no file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)

    def _is_next(self, path: str) -> bool:
        """Returns whether this operation is the one at which to interrupt the process."""
        is_it = self.how != "count" and self.count == self.at and self._counts(path)
        return is_it and not self._recorded()

    def _is_full(self) -> bool:
        return self._recorded() or self.at < self.count

    def _counts(self, path: str) -> bool:
        return Path(path).is_relative_to(self.folder) and not (self.apart and Path(path).is_relative_to(self.apart))

    def _wrap_usage(self, usage: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reported(path: Any) -> Any:
            found = usage(path)
            return found._replace(free=0) if self._is_full() and self._counts(str(path)) else found

        return reported

    def _recorded(self) -> bool:
        return self.record is not None and self.record.exists() and self.record.stat().st_size > 0

    def _add(self, line: str) -> None:
        if self.record is not None:
            with self.record.open("a") as file:
                file.write(f"{line}\n")
