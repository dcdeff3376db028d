"""Opening a study that somebody began: its file is checked, and no code is loaded from its directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.config.files import recorded_folders
from lit_cfl.config.own_code import announce_classes, inside
from lit_cfl.errors import InputError
from lit_cfl.storage.digests import read_sealed

STUDY = "study.yaml"  # in the directory of a study


def opened_directory(arguments: Sequence[str]) -> Path | None:
    """The directory after `--resume`; None where a new study is begun."""
    words = list(arguments)
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--resume"), None)
    return None if at is None else Path(words[at].partition("=")[2] or "".join(words[at + 1 : at + 2]))


def require_intact(path: Path) -> None:
    """Checks that a study's file is as it was written, and tells which code of the user's own opening it loads.

    Raises:
        InputError: there is no such file, it was changed, or it names code that lies in the directory itself.
    """
    file = path / STUDY
    if not file.is_file():
        raise InputError(f"{file} is not there, so {path} holds no study to resume; give the directory of one")
    study = yaml.safe_load(read_sealed(file)[0])
    folders = [*recorded_folders(file, study["base"]), str(Path().resolve())]
    announce_classes(path, [study], [folder for folder in folders if not inside(folder, path)])


def recorded_id(path: Path) -> str:
    """The id of the study in a directory. Raises InputError where its file is damaged, or is of no study."""
    study_id = read_sealed(path / STUDY)[1]
    if study_id is None:
        raise InputError(f"{path / STUDY} is of no study: its last line names none; put the original back")
    return study_id


def without_code_inside(base: dict[str, Any], path: Path) -> dict[str, Any]:
    """The base of a study that is opened, without folders of code in or below its directory."""
    return base | {"code": [folder for folder in base["code"] if not inside(folder, path)]}
