"""Identifies a run by what determines its result, regardless of machine, folder and version of the code."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

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
# Options that older recorded runs lack, with the values that these runs used. At these values they do not change a key.
_ADDED = {
    "starting_weights": "net",
    "last_batch": "keep",
    "lr_schedule": None,
    "fine_tune": None,
    "scores": None,
    "per_client": False,
    "class_counts": False,
    "batch_norm": False,
    "augment": None,
    "max_clusters": 10,
}
_RECORDED_AS = {
    ("weights", "drawn_first"): "first",
    ("global_update", "sequential_by_draw"): "sequential",
    ("shift_threshold", None): 0.2,
}  # how values were recorded before 0.3.0
_LENGTH = 12  # hexadecimal digits: 48 bits suffice for some thousand runs


def compute_key(config: Mapping[str, Any]) -> str:
    """Returns a hash of what determines a result: the letter r and 12 hexadecimal digits.

    The configuration has one seed. Classes count by name, not by module, so that a module may move. Plan, engine,
    device, tracking, code and folders do not count: they change sums only by rounding. If training is chaotic, as with
    a large learning rate, rounding can grow to percentage points (docs/reproduction/README.md, "What another machine
    gives").
    """
    decides = {name: _normalise(config.get(name)) for name in _DECIDES}
    decides |= {name: _normalise(config[name]) for name in _SINCE if config.get(name) is not None}
    return "r" + hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def get_class_name(section: Mapping[str, Any]) -> str:
    """Returns the class name in a section of a configuration, without the module."""
    return str(section["class_path"]).rpartition(".")[2]


def _normalise(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: part for key, part in value.items() if not (key in _ADDED and part == _ADDED[key])}
        named = {key: _normalise(_use_recorded_value(key, part)) for key, part in kept.items()}
        if isinstance(named.get("class_path"), str):
            named["class_path"] = get_class_name(named)
        return named
    return [_normalise(part) for part in value] if isinstance(value, list | tuple) else value


def _use_recorded_value(option: str, value: Any) -> Any:
    return _RECORDED_AS.get((option, value), value) if value is None or isinstance(value, str) else value
