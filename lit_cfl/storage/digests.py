"""Records the SHA-256 of files, to detect damaged files when reading.

`SHA256SUMS`, the last file of a run, holds the digests of all others (`sha256sum -c SHA256SUMS` checks them): once it
exists, the run has finished. Records of comparisons and studies end with a comment that holds the digest of everything
before it.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import write_atomically, write_text

SUMS = "SHA256SUMS"
_END = "# end"
_SEAL = re.compile(rb"(?:.*\n)?# (?:run ([0-9a-f]{8}), )?SHA-256 of all before the digest: ([0-9a-f]{64})\n", re.DOTALL)
_DIGEST_LENGTH = 65  # including the line feed


def digest_of(path: Path) -> str | None:
    """Computes the SHA-256 of a file; None if it does not exist or cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def write_sealed(path: Path, text: str, run_id: str | None = None) -> None:
    """Writes text and a final comment line with its digest, which `read_sealed` checks.

    Args:
        path: Path of the file.
        text: Content, which ends with a line feed.
        run_id: Id of the run that the file belongs to, eight hexadecimal digits.
    """
    of_run = f"run {run_id}, " if run_id else ""
    data = f"{text}# {of_run}SHA-256 of all before the digest: ".encode()
    write_atomically(path, lambda file: file.write(data + f"{hashlib.sha256(data).hexdigest()}\n".encode()))


def read_sealed(path: Path) -> tuple[str, str | None]:
    """Reads the text of a sealed file, and the id of its run.

    Raises:
        InputError: the file was changed, cut off, or never sealed.
    """
    data = path.read_bytes()
    seal = _SEAL.fullmatch(data)
    if seal is None:
        raise InputError(f"{path} does not end with its digest: it was cut off or changed; put the original back")
    if hashlib.sha256(data[:-_DIGEST_LENGTH]).hexdigest().encode() != seal[2]:
        raise InputError(
            f"{path} was changed or damaged: it does not match the digest in its last line; put the original back "
            "(options are changed on the command line; an edited copy can be given to --config, for a new run)"
        )
    return data.decode(), None if seal[1] is None else seal[1].decode()


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


def require_undamaged(directory: Path, name: str) -> None:
    """Raises InputError if a file of a finished run was changed or damaged."""
    if find_changed(directory, [name]):
        raise InputError(
            f"{directory / name} was changed or damaged since the run ended; put the original back, or use lit-cfl "
            f"run --resume {directory} to write again what it can"
        )
