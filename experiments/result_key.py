"""Identifies a run by what determines its result, regardless of machine, folder and version of the code."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from experiments.changed_options import ADDED, EXPERIMENT, RECORDED_AS, REMOVED

_DECIDES = (
    "data",
    "task",
    "algorithm",
    "local",
    "evaluation",
    "stop",
    "rounds",
    "cohort_size",
    "selection",
    "selection_seed",
    "dropout",
    "seeds",
)
# These options also determine results, but count only if they are set, since older recorded runs do not have them.
_SINCE = ("server", "shared", "personal")
_LENGTH = 12  # hexadecimal digits: 48 bits suffice for some thousand runs


def compute_key(config: Mapping[str, Any]) -> str:
    """Returns a hash of what determines a result: the letter r and 12 hexadecimal digits.

    The configuration has one seed. Classes count by name, not by module, so that a module may move. Plan, engine,
    device, tracking, code and folders do not count: they change sums only by rounding. If training is chaotic, as with
    a large learning rate, rounding can grow to percentage points (experiments/docs/reproduction/README.md, "What
    another machine gives"). Options that were added, removed or renamed are counted as `changed_options` says.
    """
    config = {**REMOVED.get(EXPERIMENT, {}), **config}
    decides = {name: _normalise(config.get(name), name) for name in _DECIDES}
    decides |= {name: _normalise(config[name], name) for name in _SINCE if config.get(name) is not None}
    return "r" + hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def get_class_name(section: Mapping[str, Any]) -> str:
    """Returns the class name in a section of a configuration, without the module."""
    return str(section["class_path"]).rpartition(".")[2]


def _normalise(value: Any, owner: str) -> Any:
    """Returns a value as it was recorded.

    Args:
        value: Value of a configuration.
        owner: Name of the section, or of the class, that has the value as an option.
    """
    if isinstance(value, list | tuple):
        return [_normalise(part, owner) for part in value]
    if not isinstance(value, Mapping):
        return value
    if isinstance(value.get("class_path"), str):
        name = get_class_name(value)
        value = {**value, "class_path": name}
        if name in REMOVED:
            value["init_args"] = value.get("init_args", {})
        return {option: _normalise_option(option, part, name) for option, part in value.items()}
    kept = {option: part for option, part in value.items() if not (option in ADDED and part == ADDED[option])}
    found = {**REMOVED.get(owner, {}), **kept}
    return {option: _normalise_option(option, part, owner) for option, part in found.items()}


def _normalise_option(option: str, value: Any, owner: str) -> Any:
    if option == "source" and isinstance(value, str) and value.startswith("/"):
        value = value.rpartition("/")[2]  # a file of the user's, which may be in another folder on another machine
    if value is None or isinstance(value, str):
        return RECORDED_AS.get((option, value), value)
    return _normalise(value, owner if option == "init_args" else option)
