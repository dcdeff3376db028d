"""Fetches the results of a job: through storage, or through the Jobs API, which needs no other port."""

import os
import re
import shlex
import shutil
import tarfile
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it carries no types

from lit_cfl.errors import InputError

LEFT_OUT = ("ray", ".lock")  # Ray's records hold pickles, which must not travel; a lock holds nothing


def require_storage(url: str) -> str:
    """Returns the storage path without a trailing slash. Raises InputError if nothing would be stored there."""
    protocol = url.partition("://")[0] if "://" in url else "file"
    if protocol == "memory":
        raise InputError(f"--storage_path {url}: memory ends with the job; give a shared folder or a bucket")
    if protocol == "file" and not Path(url.removeprefix("file://")).is_absolute():
        raise InputError(f"--storage_path {url}: give an absolute path, which every node sees, or a URL (s3://...)")
    try:
        fsspec.get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        raise InputError(
            f"--storage_path {url}: {error}; install that package here and on the cluster, or name another place"
        ) from error
    return url.rstrip("/")


def store(folder: Path, url: str) -> None:
    """Copies a run or study directory to storage."""
    system, target = fsspec.core.url_to_fs(url)
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and place.parts[0] not in LEFT_OUT:
            system.makedirs(os.path.dirname(f"{target}/{place.as_posix()}"), exist_ok=True)
            system.put_file(str(path), f"{target}/{place.as_posix()}")


def collect(url: str, folder: Path) -> None:
    """Copies a job's stored results into an existing folder.

    Raises:
        InputError: nothing is there, or it cannot be read from here.
    """
    try:
        system, source = fsspec.core.url_to_fs(url)
        found: list[Any] = system.find(source)
        for name in found:
            target = folder / os.path.relpath(name, source)
            target.parent.mkdir(parents=True, exist_ok=True)
            with system.open(name, "rb") as reader, target.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
    except Exception as error:  # every kind of storage has its own
        raise InputError(f"{url} cannot be read from here: {type(error).__name__}: {error}") from error
    if not found:
        raise InputError(f"nothing is stored at {url}: the job left nothing, or its nodes see another place there")


_BEGIN, _END = "lit-cfl archive begins", "lit-cfl archive ends"
_OF_RAY = re.compile("Running entrypoint for job .*\n")  # written by another process, so anywhere in the log
LIMIT_MIB = 256  # packed: Ray holds a log whole when it is read


def packing_command(folder: str) -> str:
    """Returns a shell command that prints a folder as an archive between two marks, for a job at the folder's node."""
    place = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    left_out = " ".join(f"--exclude=./{name}" for name in LEFT_OUT)
    size = LIMIT_MIB * 2**20 + 1
    tar = f"tar -C {place} {left_out} -czf - . | head -c {size} | base64"
    return f"echo {shlex.quote(_BEGIN)}; {tar}; echo {shlex.quote(_END)}"


def unpack(log: str, folder: Path) -> None:
    """Unpacks the output of `packing_command`.

    Raises:
        InputError: it is not whole, or too large.
    """
    text = _OF_RAY.sub("", f"\n{log}").rpartition(f"\n{_BEGIN}\n")[2].partition(f"\n{_END}")[0]
    try:
        packed = b64decode(text)
        if len(packed) > LIMIT_MIB * 2**20:
            raise InputError(f"the results take more than {LIMIT_MIB} MiB packed; launch with --storage_path")
        with tarfile.open(fileobj=BytesIO(packed), mode="r:gz") as archive:
            _extract(archive, folder)
    except (Error, tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"the results could not be read: {error}; the cluster said: {log[-500:].strip()}") from error


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extracts an archive safely: nothing outside of the folder, no devices, no owners. Raises TarError otherwise."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    plain = []  # before Python 3.11.4, such as Debian 12's: files and folders, but no links
    for member in archive:
        place = PurePosixPath(member.name)
        if place.is_absolute() or ".." in place.parts:
            raise tarfile.TarError(f"{member.name!r} would be outside of the folder")
        plain += [member] if member.isfile() or member.isdir() else []
    archive.extractall(folder, plain)  # noqa: S202  # each was looked at above


@contextmanager
def renamed_when_complete(folder: Path) -> Iterator[Path]:
    """Provides a temporary folder, renamed when the block succeeds, so that no partial result is left.

    Raises:
        InputError: the name is taken.
    """
    require_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        (Path(name) / "results").mkdir()
        yield Path(name) / "results"
        (Path(name) / "results").rename(folder)


def require_new(folder: Path) -> None:
    """Checks that a folder is new or empty. Raises InputError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; name another with --run_dir or --study_dir")
