"""The folder sent with a job: our packages, the configuration, the user's own code, and nothing else."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import as_yaml
from lit_cfl.tune.launching.launch_request import OURS, LaunchRequest, SentFiles

CONFIG, JOB = "launched.yaml", "launched.json"
_LIMIT_MIB = 100  # Ray's dashboard takes no larger request


@contextmanager
def packed(order: LaunchRequest, folder: str, storage: str | None) -> Iterator[Path]:
    """Makes the job's folder for the duration of the block.

    Args:
        folder: where the job writes, on the cluster.
        storage: where it leaves a copy, or None.

    Raises:
        InputError: it is larger than Ray takes.
    """
    files = _packages() | order.files
    _require_small(files)
    where = "--run_dir" if order.command == "run" else "--study_dir"
    job = {
        "words": [order.command, "--config", CONFIG, *order.words, where],
        "folder": folder,
        "storage": storage,
    }
    with TemporaryDirectory(prefix="lit-cfl-") as name:
        parcel = Path(name)
        for place, file in files.items():
            (parcel / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, parcel / place)
        (parcel / CONFIG).write_text(as_yaml(order.config), "utf-8")
        (parcel / JOB).write_text(json.dumps(job), "utf-8")
        _write_version(parcel)
        yield parcel


def _packages() -> SentFiles:
    found: SentFiles = {}
    for name in OURS:  # a search of lit_cfl/ alone does not follow the links of an editable install
        folder = Path(str(import_module(name).__file__)).parent
        place = Path(*name.split("."))
        found |= {(place / file.relative_to(folder)).as_posix(): file for file in _sources(folder)}
    return found


def _sources(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.py")


def _require_small(files: SentFiles) -> None:
    sizes = {place: file.stat().st_size for place, file in files.items()}
    mib = sum(sizes.values()) / 2**20
    if mib > _LIMIT_MIB:
        largest = max(sizes, key=lambda place: sizes[place])
        raise InputError(
            f"the job's folder would be {mib:.0f} MiB, and a Ray cluster takes {_LIMIT_MIB}; the largest file is "
            f"{largest}: leave it out, put it where the cluster can read it, and name that path in the configuration"
        )


def _write_version(parcel: Path) -> None:
    """Writes the version as if it were installed, since the command line reads it."""
    number = version("lit-cfl")
    folder = parcel / f"lit_cfl-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: lit-cfl\nVersion: {number}\n", "utf-8")
