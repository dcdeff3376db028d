"""Writes and reads `config.yaml` of a run directory: the format, the options, the run's id and a digest."""

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from lit_cfl.errors import InputError
from lit_cfl.storage.digests import read_sealed, write_sealed
from lit_cfl.storage.given_paths import suggest_directory
from lit_cfl.storage.run_format import FORMAT, require_format
from lit_cfl.storage.yaml_files import parse_yaml


def stored_config(path: Path) -> dict[str, Any] | None:
    """Reads `config.yaml` of a run directory; None if there is none.

    Raises:
        InputError: the file was changed, or belongs to a run of another format.
    """
    file = path / "config.yaml"
    if not file.exists():
        return None
    config = parse_yaml(read_sealed(file)[0])
    if not isinstance(config, dict):
        raise InputError(f"{file} holds no configuration; put the original back, or start a new run")
    require_format(file, config.pop("format", None))
    return config


def require_config(path: Path) -> dict[str, Any]:
    """Reads `config.yaml` as `stored_config` does, but raises InputError if it is missing."""
    config = stored_config(path)
    if config is None:
        inside = sorted(
            found.parent for depth in ("*", "*/*", "*/*/*") for found in path.glob(f"{depth}/checkpoint.pt")
        )
        hint = f", but its folders do: give one of them, such as {inside[0]}" if inside else ""
        if not path.exists():
            hint = suggest_directory(path, "config.yaml")
        raise InputError(f"{path} holds no run (no config.yaml){hint}")
    return config


def require_unused(path: Path) -> None:
    """Raises InputError if the directory contains a run."""
    if (path / "config.yaml").exists():
        raise InputError(
            f"{path} already holds a run; choose another --run_dir, or resume it with --resume {quote(str(path))} "
            "(in Python: another path, or mode='resume')"
        )


def write_config(path: Path, config: Mapping[str, Any], run_id: str | None = None) -> None:
    """Writes `config.yaml`, with the format of the run directory first and a digest of the content last.

    Args:
        path: Path of the directory.
        config: Configuration to write.
        run_id: Id of the run, if the directory is one.
    """
    write_sealed(path / "config.yaml", as_yaml({"format": FORMAT, **config}), run_id)


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as `1e-3`, which jsonargparse reads as numbers and PyYAML as texts."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)?\.?\d*[eE][-+]?\d+$"), list("-+.0123456789")
)


def as_yaml(content: Mapping[str, Any]) -> str:
    """Formats options as YAML, with quotes around texts that the commands' parser would read as numbers."""
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_run_id(path: Path) -> str:
    """Reads the id of the run in a directory from `config.yaml`. Raises InputError if the file has none."""
    run_id = read_sealed(path / "config.yaml")[1]
    if run_id is None:
        raise InputError(f"the last line of {path / 'config.yaml'} has no run id; put the original file back")
    return run_id
