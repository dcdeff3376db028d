"""Builds variants of a configured experiment: parses it with some options changed, as `lit-cfl run` does."""

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from lit_cfl.config.build import ConfiguredExperiment
from lit_cfl.config.catalogue import config_path
from lit_cfl.config.files import append_to_path, read_config, read_folders, valid_anywhere
from lit_cfl.config.parser import parse_content
from lit_cfl.config.words import require_words
from lit_cfl.errors import InputError

Config = Mapping[str, Any]  # content of an experiment's file


def load_experiment(config: str | Path | Config, words: Sequence[str] = ()) -> ConfiguredExperiment:
    """Builds the experiment of `lit-cfl run --config CONFIG WORDS`, without a baseline.

    Args:
        config: A file, the name of a packaged configuration, or its content, such as `Experiment.to_dict()`.
        words: Further options, such as `["--rounds", "5"]`.

    Raises:
        InputError: there is no such file, or an option cannot be used.
    """
    require_words(words)
    return build(base_config(str(config) if isinstance(config, Path) else config), words)


def base_config(base: str | Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Reads an experiment's configuration as plain values that are valid in any folder, without its baseline.

    Args:
        base: A file, the name of a packaged configuration, or the configuration itself.
        folder: Folder of the user's own classes, and of a relative `base`; None = the current one.

    Raises:
        InputError: there is no such file, or its content is not an experiment.
    """
    if isinstance(base, str):
        near = None if folder is None else folder / base
        file = str(near) if near is not None and near.is_file() else config_path(base)
        code = append_to_path(["--config", file])
        content = read_config(file)
    elif isinstance(base, Mapping):
        code, content = append_to_path([]), deepcopy(dict(base))
    else:
        raise InputError(f"{base!r:.60} is not an experiment; give a file, the name of a configuration, or its content")
    own = [] if folder is None else [str(folder.resolve())]
    content["code"] = list(dict.fromkeys([*content.get("code", []), *own, *code]))
    return valid_anywhere(content) | {"baseline": None}


def build(config: Config, words: Sequence[str] = ()) -> ConfiguredExperiment:
    """Builds the experiment of a configuration with some options changed. Raises InputError for invalid options.

    Its `code` is that of the configuration, since the current folder of a worker is a temporary folder of Ray's.
    """
    for folder in (*read_folders("this configuration", config), str(Path().resolve())):
        if folder not in sys.path:
            sys.path.append(folder)
    return parse_content(config, words)
