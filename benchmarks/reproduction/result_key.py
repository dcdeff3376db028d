"""Knows a run by what decides its result, whatever machine, folder or version of the code it ran with."""

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
_SINCE = ("server", "shared", "personal")  # decides, too, but recorded runs do not know it: it counts where it is given
# Defaults of options that recorded runs do not know, and how these trained: they leave a key as it was.
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
}  # before 0.3.0
_LENGTH = 12  # hexadecimal digits: 48 bits for some thousand runs


def result_key(config: Mapping[str, Any]) -> str:
    """Returns a hash of what decides the result of a configuration of one seed: the letter r and 12 hexadecimal digits.

    Classes count by their names, not by their modules, so that a module may move. Plan, engine, device, tracking, code
    and folders do not count: they change single sums by rounding. Training that is chaotic, as with a large learning
    rate, can make points of it (docs/reproduction/README.md, "What another machine gives").
    """
    decides = {name: _by_names(config.get(name)) for name in _DECIDES}
    decides |= {name: _by_names(config[name]) for name in _SINCE if config.get(name) is not None}
    return "r" + hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def class_name(section: Mapping[str, Any]) -> str:
    """Returns the name of the class of a section of a configuration, without its module."""
    return str(section["class_path"]).rpartition(".")[2]


def _by_names(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: part for key, part in value.items() if not (key in _ADDED and part == _ADDED[key])}
        named = {key: _by_names(_as_recorded(key, part)) for key, part in kept.items()}
        if isinstance(named.get("class_path"), str):
            named["class_path"] = class_name(named)
        return named
    return [_by_names(part) for part in value] if isinstance(value, list | tuple) else value


def _as_recorded(option: str, value: Any) -> Any:
    return _RECORDED_AS.get((option, value), value) if value is None or isinstance(value, str) else value
