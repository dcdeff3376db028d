"""Lists how options have changed since runs were recorded, so that the key of a recorded run is still found.

A key (`result_key`) is a hash of all options that decide a result, also of those at their defaults. A change of the
options would change every key, although the same experiment still gives the same result. Each commit that changes
options fills in one of these tables, until `tests/test_recorded_keys.py` passes again:

* an option, or a whole class or section with options, is new: `ADDED`, with the value that all runs before it used;
* an option is removed: `REMOVED`, with the default that it had;
* a value, or a class, has another name: `RECORDED_AS`;
* a recorded command gives an option, or a value, that is no longer accepted: `REWORDED`. The tables and protocols keep
  the recorded words, by which their runs are found; experiments are built with the words of today.

A recorded run that used another value than the default of a removed option can only be trained by a class that still
behaves so. If such a class `Published` derives from `IFCA`, and the option was called `order`, then
`RECORDED_AS["class_path", "Published"] = "IFCA"` and `REMOVED["Published"] = REMOVED["IFCA"] | {"order": "code"}` give
its runs the recorded keys.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

EXPERIMENT = "Experiment"  # owner of the options at the top of a configuration

# Options that older recorded runs lack, with the values that these runs used. At these values they do not change a key.
ADDED: Mapping[str, Any] = {
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
    **dict.fromkeys(("time", "time_column", "classes", "clusters")),
}

# Options that today's classes no longer have, with their old defaults, by the class or section (`local`, `evaluation`,
# EXPERIMENT) that had them: {"FedProx": {"straggler_work": "partial"}, "local": {"on_divergence": "stop"}}.
_GROUPS = {"centers": "clustered", "cold_start": "nearest", "cold_start_at": "selection", "group_start": "cluster_mean"}
REMOVED: Mapping[str, Mapping[str, Any]] = {
    "AdaCFL": {"criterion_weights": "examples"},
    "CFL": {"criterion_weights": "examples", "gamma_max": None},
    "LayerCFL": {
        "criterion_weights": "examples",
        "gamma_max": None,
        "eps2_on": "whole",
        "layer_score": "silhouette",
    },
    "FeSEM": {"cluster_on": "all"},
    "PublishedFeSEM": {"cluster_on": "all"},
    "FedDrift": {"max_clusters": None},
    "FedGroup": _GROUPS,
    "FedGrouProx": _GROUPS,
    "FlexCFL": _GROUPS,
    "IFCA": {"assign_with_l2": False},
    "PACFL": {"subspace": "all"},
    "StoCFL": {"representation": "observed", "merged_model": "larger", "global_update": "parallel"},
    "PublishedStoCFL": {"merged_model": "larger"},
    "Dirichlet": {"max_tries": 100},
    "FedProxFEMNIST": {"images_per_label": 4000},
    "Incremental": {"release": "nominal"},
    "PublishedIncremental": {"release": "shrinking"},
    "LabelDrift": {"period": None},
    "SwapPart": {"part_abort": "pair"},
}

# Today's values that were recorded as other values, by the option, or by `class_path` for the name of a class.
PUBLISHED = {
    f"Published{name}": name for name in ("FeSEM", "FedGrouProx", "FedGroup", "FlexCFL", "IFCA", "PACFL", "StoCFL")
}
RECORDED_AS: Mapping[tuple[str, Any], Any] = {
    ("weights", "drawn_first"): "first",
    ("global_update", "sequential_by_draw"): "sequential",
    ("shift_threshold", None): 0.2,
    **{("class_path", today): recorded for today, recorded in PUBLISHED.items()},
    ("class_path", "PublishedIncremental"): "Incremental",
}

# Words of recorded commands that are no longer accepted, and the words with which the same experiment is built today:
# {"--algorithm.straggler_work partial": ""}.
REWORDED: Mapping[str, str] = {
    "'[{class_path: Incremental, init_args: {participants: all, release: shrinking}}]'": (
        "'[{class_path: experiments.published_shifts.PublishedIncremental, init_args: {participants: all}}]'"
    ),
}

# Options of algorithms that only their variants in `published.py` still have; of some, only one value.
_OF_VARIANTS = (
    *("weights drawn_first", "assign_with_l2", "start_partition same", "shift_metric sorted_counts", "angles vectors"),
    *("subspace", "centers", "cold_start", "cold_start_at", "group_start", "global_update", "representation"),
)


def reword(words: Sequence[str], algorithm: str) -> list[str]:
    """Returns the words with which an experiment is built today, for those of a recorded command.

    Args:
        words: Words of the command, without the configuration.
        algorithm: Class name of the configuration's algorithm.
    """
    text = f" {shlex.join(words)} "
    for recorded, today in REWORDED.items():
        text = text.replace(f" {recorded} ", f" {today} ")
    found = shlex.split(text)
    if not any(f" --algorithm.{option} " in text for option in _OF_VARIANTS):
        return found
    if "--algorithm" not in found:
        found = ["--algorithm", algorithm, *found]
    last = len(found) - found[::-1].index("--algorithm")
    return [*found[:last], f"experiments.published.Published{found[last]}", *found[last + 1 :]]
