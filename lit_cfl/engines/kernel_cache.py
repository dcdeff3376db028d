"""Keeps compiled code in a folder of the user's own, and never loads another user's, or a damaged file."""

import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

import torch
from filelock import FileLock, Timeout

from lit_cfl.storage.cache_folder import cache_folder

_DIGITS = 16  # hexadecimal, of names
_WAIT_SECONDS = 300.0  # for another process that compiles


class BuildError(RuntimeError):
    """Code could not be compiled, kept or loaded."""


def kept(kind: str, parts: Sequence[str], make: Callable[[Path], None], suffix: str) -> Path:
    """Returns a file of compiled code, made now where the cache has none that is whole.

    The name ends with the digest of the content. Of processes that need a file at the same time one makes it, and the
    others wait.

    Args:
        kind: begins the name.
        parts: all that the code depends on, beside the processor and PyTorch.
        make: writes the file.
        suffix: ends the name, such as `.so`.

    Raises:
        BuildError: the folder cannot be written, or it or the file is not this user's own.
    """
    folder = _folder()
    key = hashlib.sha256("\n".join([*parts, processor(), torch.__version__]).encode()).hexdigest()[:_DIGITS]
    if found := _whole(folder, kind, key, suffix):
        return found
    with _one_at_a_time(folder / f".{kind}-{key}.lock"):
        return _whole(folder, kind, key, suffix) or _made(folder, kind, key, make, suffix)


@contextmanager
def _one_at_a_time(file: Path) -> Iterator[None]:
    """Waits until no other process is in such a block; not for ever, and not where the file system has no locks."""
    with ExitStack() as stack:
        with suppress(OSError, NotImplementedError, Timeout):
            stack.enter_context(FileLock(file, timeout=_WAIT_SECONDS, poll_interval=0.2))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _whole(folder: Path, kind: str, key: str, suffix: str) -> Path | None:
    """Finds a file whose name tells its content."""
    for file in sorted(folder.glob(f"{kind}-{key}-*{suffix}")):
        _require_own(file)
        if file.name == _name(kind, key, file, suffix):
            return file
    return None


def _made(folder: Path, kind: str, key: str, make: Callable[[Path], None], suffix: str) -> Path:
    """Makes a file under another name, and gives it its own when it is whole."""
    try:
        with NamedTemporaryFile(dir=folder, prefix=".making-", suffix=suffix, delete=False) as opened:
            made = Path(opened.name)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        make(made)
        made.chmod(0o700)
        return made.rename(folder / _name(kind, key, made, suffix))
    finally:
        made.unlink(missing_ok=True)


@cache
def processor() -> str:
    """Returns the processor's model in a line and its instructions in the next ones.

    Outside of Linux these are what Python knows, and the computer's name.
    """
    wanted = ("model name", "flags", "Features")
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return f"{platform.processor()} {platform.machine()}\n{platform.node()}"
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _name(kind: str, key: str, file: Path, suffix: str) -> str:
    return f"{kind}-{key}-{hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]}{suffix}"


def _folder() -> Path:
    parent = cache_folder() or Path(_of_this_process().name)
    folder = parent / "kernels"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise BuildError(f"{folder} cannot be made: {error.strerror}") from error
    _require_own(folder)
    return folder


@cache
def _of_this_process() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="lit-cfl-")


def _require_own(path: Path) -> None:
    """Raises BuildError where somebody else owns a path or may write to it: its code would run as this user."""
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise BuildError(
            f"{path} is another user's, or others may write to it; set LITCFL_CACHE to a folder of your own"
        )
