"""Storage that both sides can reach: a shared folder, or a bucket through fsspec."""

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it carries no types

from lit_cfl.errors import InputError

LEFT_OUT = ("ray", ".lock")  # Ray's records hold pickles, which must not travel; a lock holds nothing


def require_storage(url: str) -> str:
    """The storage path without a slash at its end. Raises InputError where nothing would be left there."""
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
    """Copies what a job stored into a folder that is there.

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
