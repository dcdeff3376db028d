"""Records the SHA-256 of files, to detect damaged files when reading.

`SHA256SUMS`, the last file of a run, holds the digests of all others (`sha256sum -c SHA256SUMS` checks them): once it
exists, the run has finished.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from lit_cfl.storage.atomic_writes import write_text

SUMS = "SHA256SUMS"
_END = "# end"


def digest_of(path: Path) -> str | None:
    """Computes the SHA-256 of a file; None if it does not exist or cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def write_sums(directory: Path, digests: Mapping[str, str | None]) -> None:
    """Writes `SHA256SUMS` of a run directory, whose last line shows that no line is missing.

    Args:
        digests: Digest of each file, by its name within the directory.
    """
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    write_text(directory / SUMS, "".join([*lines, f"{_END}\n"]))


def renew_sums(directory: Path, names: Iterable[str]) -> None:
    """Updates the digests of rewritten files of a finished run."""
    sums = read_digests(directory)
    if sums is not None:
        write_sums(directory, sums | {name: digest_of(directory / name) for name in names})


def read_digests(directory: Path) -> dict[str, str | None] | None:
    """Reads the digests of a finished run; None if `SHA256SUMS` is missing or incomplete."""
    try:
        *lines, end = (directory / SUMS).read_text("utf-8").split("\n")[:-1]
    except (OSError, ValueError):
        return None
    pairs = [line.partition("  ") for line in lines]
    return {name: digest for digest, _, name in pairs} if end == _END else None


def find_changed(directory: Path, names: Iterable[str] | None = None) -> list[str] | None:
    """Lists files of a run that changed since it finished; None if it has not finished, or has no valid digests.

    Args:
        names: Files to check; None = all.
    """
    sums = read_digests(directory)
    if sums is None:
        return None
    return [name for name in (sums if names is None else names) if digest_of(directory / name) != sums.get(name)]
