"""Finds the directory of a resumed study. Imports nothing heavy."""

from collections.abc import Sequence
from pathlib import Path

from lit_cfl.errors import InputError
from lit_cfl.storage.given_paths import resolve_directory

STUDY = "study.yaml"  # file in the directory of a study


def find_resumed_directory(arguments: Sequence[str]) -> Path | None:
    """Finds the directory after `--resume`; None for a new study."""
    words = list(arguments)
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--resume"), None)
    if at is None:
        return None
    return resolve_directory(words[at].partition("=")[2] or "".join(words[at + 1 : at + 2]), "--resume")


def require_study_file(path: Path) -> Path:
    """Returns the study file in a directory. Raises InputError if there is none."""
    file = path / STUDY
    if not file.is_file():
        raise InputError(f"{file} is not there, so {path} holds no study to resume; give the directory of one")
    return file
