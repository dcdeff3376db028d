"""Writes and reads `config.yaml` of a run directory: the format and the options. Imports nothing heavy."""

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.given_paths import suggest_directory
from lit_cfl.storage.yaml_files import parse_yaml

FORMAT = 1  # of a run directory: a number in config.yaml and checkpoint.pt


class OtherFormatError(InputError):
    """Raised when a file of a run directory has another format than this version reads."""


def require_format(path: Path, found: object) -> None:
    """Raises OtherFormatError if the number in a file of a run is not our format; None = the file has no number."""
    if found != FORMAT:
        number = "no format number" if found is None else f"format {found}"
        raise OtherFormatError(
            f"{path} has {number}, but this version of Lit-CFL reads format {FORMAT}; start a new run in another "
            "directory, or use the version that wrote this one"
        )


def stored_config(path: Path) -> dict[str, Any] | None:
    """Reads `config.yaml` of a run directory; None if there is none.

    Raises:
        InputError: the file holds no configuration, or belongs to a run of another format.
    """
    file = path / "config.yaml"
    if not file.exists():
        return None
    try:
        config = parse_yaml(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
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


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Writes `config.yaml` into a directory, with the format of the run directory first."""
    write_text(path / "config.yaml", as_yaml({"format": FORMAT, **config}))


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as `1e-3`, which jsonargparse reads as numbers and PyYAML as texts."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)?\.?\d*[eE][-+]?\d+$"), list("-+.0123456789")
)


def as_yaml(content: Mapping[str, Any]) -> str:
    """Formats options as YAML, with quotes around texts that the commands' parser would read as numbers."""
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
