"""Checks, before a run is resumed, that configuration, plan, data and checkpoint are those of the original run."""

import json
from collections.abc import Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.digests import digest_of, find_changed
from lit_cfl.storage.given_paths import expand_home

if TYPE_CHECKING:  # a report that only compares configurations does not load Lightning
    from lit_cfl.experiment import Experiment

_PLAN_OPTIONS = ("engine", "device", "precision", "deterministic", "plan")
NOT_SET = "(not set)"  # text in place of the value of an option that a configuration does not have
_CHANGES_NOTHING = "plan.rows_mib:"  # this option only limits memory


def read_finished_summary(path: Path, rounds: int) -> dict[str, Any] | None:
    """Reads `summary.json` of a finished run; None if rounds remain, or the file is missing or damaged.

    Raises:
        InputError: see `stored_config`.
    """
    file = path / "summary.json"
    if not file.exists() or stored_config(path) is None or find_changed(path, [file.name]):
        return None
    try:
        summary: dict[str, Any] = json.loads(file.read_text("utf-8"))
        over = summary["round"] >= rounds or summary["stopped"]
    except (ValueError, KeyError, TypeError):  # a damaged file is written again
        return None
    return summary if over else None


def with_own_partition(experiment: "Experiment", path: Path, saved: Mapping[str, Any] | None) -> "Experiment":
    """Returns the experiment with the run's copy of the partition in place of the configured partition file.

    Args:
        experiment: Configured experiment.
        path: Run directory.
        saved: Content of the run's checkpoint, with the digest of the copy; None = no checkpoint, so that the copy is
            used only if the file is gone.
    """
    given, own = experiment.data.partition_file, path / "partition.npz"
    if given is None:
        return experiment
    if saved is None:
        intact = own.exists() and not expand_home(given).exists()
    else:
        intact = digest_of(own) == saved["digests"]["partition.npz"]
    if not intact:
        return experiment
    data = copy(experiment.data)
    data.partition_file = own
    return replace(experiment, data=data)


def with_stored_code(experiment: "Experiment", stored: Mapping[str, Any]) -> "Experiment":
    """Returns the experiment with the recorded folders of the user's own code."""
    return experiment.with_options(code=stored["code"]) if "code" in stored else experiment


def with_stored_plan(experiment: "Experiment", stored: Mapping[str, Any]) -> "Experiment":
    """Returns the experiment with the recorded plan.

    Args:
        stored: Recorded configuration.

    Raises:
        InputError: this machine cannot run the recorded plan, or it is not a plan.
    """
    if not stored.get("plan"):
        return experiment
    try:
        recorded = experiment.with_options(plan=stored["plan"])
        recorded.choose_own_plan()
    except (InputError, TypeError) as error:
        plan = ", ".join(f"{name} {value}" for name, value in stored["plan"].items())
        raise InputError(
            f"the run was started under plan {plan}, which this machine cannot run: {error}. "
            "With --new_plan it continues under a plan for this machine, but rounds differently (docs/resuming.md)"
        ) from error
    return recorded


def require_agreement(path: Path, stored: Mapping[str, Any], now: Mapping[str, Any], new_plan: bool) -> None:
    """Checks that a resumed run has the recorded configuration, except for more rounds and, on request, another plan.

    Raises:
        InputError: the differences, as `option: recorded -> requested`.
    """
    found = disagreements(stored, now, {"rounds"}, new_plan)
    if found:
        raise InputError(
            f"{path} was started with a different configuration: {'; '.join(found)}. Leave these unchanged, or start "
            "a new run with --run_dir (if only the plan differs, --new_plan continues it)"
        )
    if now["rounds"] < stored.get("rounds", 0):
        raise InputError(
            f"{path} was started with {stored['rounds']} rounds, but rounds is {now['rounds']}; "
            f"give {stored['rounds']} or more"
        )


def disagreements(stored: Mapping[str, Any], now: Mapping[str, Any], ignored: Set[str], new_plan: bool) -> list[str]:
    """Lists the options that differ and affect a run's results, as `option: recorded -> requested`.

    Args:
        ignored: Options that may differ.
        new_plan: Allow another plan.
    """
    free = {*ignored, "code", "data_commit", "pictures", *(_PLAN_OPTIONS if new_plan else ())}
    return [
        line
        for line in differences(stored, now)
        if line.partition(".")[0].partition(":")[0] not in free and not line.startswith(_CHANGES_NOTHING)
    ]


def require_recorded_config(path: Path, saved: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Checks that `config.yaml` is the one that a checkpoint was saved with.

    A checkpoint is saved before `config.yaml` when options change, so it also knows the configuration before.

    Raises:
        InputError: the differences, as `option: in the checkpoint -> in the file`.
    """
    if not differences(json.loads(saved["config before"]), stored):
        return
    if found := differences(json.loads(saved["config"]), stored):
        raise edited_config(path, found)


def edited_config(path: Path, found: Sequence[str]) -> InputError:
    """Makes the error that `config.yaml` has other options, each given as `option: recorded -> in the file`."""
    return InputError(
        f"{path / 'config.yaml'} is not the file that the run was saved with: {'; '.join(found)}. Put the original "
        "back (options are changed on the command line; an edited copy can be given to --config, for a new run)"
    )


def require_same_digests(path: Path, recorded: Mapping[str, str], fingerprint: Mapping[str, str]) -> None:
    """Raises InputError, with both digests, if an entry of `PreparedRun.fingerprint` is not the recorded one."""
    for what, now in fingerprint.items():
        then = recorded[what]
        if then != now:
            differs = "different data, or another division of them" if what == "partition" else f"a different {what}"
            raise InputError(
                f"{path} was made with {differs} (SHA-256 {then[:12]}, now {now[:12]}); give the same "
                "data, model and optimizer, with the same weight files"
            )


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lists `option: stored -> now` for each option that differs, by dotted name."""
    before, after = flat_options(stored), flat_options(now)
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name, NOT_SET)} -> {after.get(name, NOT_SET)}" for name in names]


def flat_options(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the options of a configuration by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):  # an empty one holds no option: `init_args: {}` is the same as no `init_args`
            flat |= flat_options(value, f"{name}.")
        else:
            flat[name] = json.loads(json.dumps(value, default=str))  # tuples and lists are the same to YAML
    return flat
