"""Brings back what a job left: through the Jobs API itself, so that no port but the dashboard's need be open."""

import re
import shlex
import tarfile
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from lit_cfl.errors import InputError
from lit_cfl.tune.launching.storage import LEFT_OUT

_BEGIN, _END = "lit-cfl archive begins", "lit-cfl archive ends"
_OF_RAY = re.compile("Running entrypoint for job .*\n")  # written by another process, so anywhere in the log
LIMIT_MIB = 256  # packed: Ray holds a log whole when it is read


def packing_command(folder: str) -> str:
    """A shell command that prints a folder, packed, between two marks. Its job runs where the folder is."""
    place = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    left_out = " ".join(f"--exclude=./{name}" for name in LEFT_OUT)
    size = LIMIT_MIB * 2**20 + 1
    tar = f"tar -C {place} {left_out} -czf - . | head -c {size} | base64"
    return f"echo {shlex.quote(_BEGIN)}; {tar}; echo {shlex.quote(_END)}"


def unpack(log: str, folder: Path) -> None:
    """Unpacks what `packing_command` printed.

    Raises:
        InputError: it is not whole, or too large.
    """
    text = _OF_RAY.sub("", f"\n{log}").rpartition(f"\n{_BEGIN}\n")[2].partition(f"\n{_END}")[0]
    try:
        packed = b64decode(text)
        if len(packed) > LIMIT_MIB * 2**20:
            raise InputError(f"the results take more than {LIMIT_MIB} MiB packed; launch with --storage_path")
        with tarfile.open(fileobj=BytesIO(packed), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")  # nothing outside of the folder, no devices, no owners
    except (Error, tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"the results could not be read: {error}; the cluster said: {log[-500:].strip()}") from error


@contextmanager
def becoming(folder: Path) -> Iterator[Path]:
    """A folder to fill, that takes its name when the block ends well: half a result is none.

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
    """Raises InputError where something lies already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; name another with --run_dir or --study_dir")
