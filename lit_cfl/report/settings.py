"""The page's last section: configuration, differences between runs, environment, and commands."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.report.blocks import Block, Code, Section, Table
from lit_cfl.report.sources import Group
from lit_cfl.runs.resume import flat_options

_SAID_APART = ("seeds", "format", "code")


def section(groups: Sequence[Group], command: Sequence[str]) -> Section:
    """Builds the section on the configuration, the environment and the commands.

    Args:
        groups: All groups of the page.
        command: Command that regenerates the page.
    """
    blocks: list[Block] = []
    differing = _differing(groups)
    if differing is not None:
        blocks.append(differing)
    for group in groups:
        config = group.first.config
        if config:
            text = yaml.safe_dump(json.loads(json.dumps(config, default=str)), sort_keys=False, allow_unicode=True)
            blocks.append(Code(text, f"Configuration of {group.name}", folded=True))
    environment = _environment(groups)
    if environment is not None:
        blocks.append(environment)
    from_files = [one for one in groups if one.first.config and not one.first.config.get("made_in_python")]
    again = "\n".join(map(_repeats, from_files))
    if again:
        blocks.append(Code(again, "Commands that repeat the runs" if len(groups) > 1 else "Command that repeats it"))
    blocks.append(Code(shlex.join(command), "Command that made this page"))
    return Section("Settings", blocks)


def _differing(groups: Sequence[Group]) -> Table | None:
    """Lists the options that differ between the groups; None if all are equal."""
    known = [(group.name, _options(group)) for group in groups if group.first.config]
    if len(known) < 2:
        return None
    names = list(dict.fromkeys(name for _, options in known for name in options))
    seeds = [", ".join(str(run.seed) for run in group.runs) for group in groups if group.first.config]
    rows: list[list[str | None]] = [["seeds", *seeds]] if len(set(seeds)) > 1 else []
    for name in names:
        values = [options.get(name) for _, options in known]
        if any(value != values[0] for value in values):
            rows.append([name, *(None if value is None else str(value) for value in values)])
    if not rows:
        return None
    return Table("Options that differ", ["option", *(name for name, _ in known)], rows)


def _options(group: Group) -> dict[str, Any]:
    found = flat_options({key: value for key, value in group.first.config.items() if key not in _SAID_APART})
    return {name: value for name, value in found.items() if not name.startswith("baseline")}


def _environment(groups: Sequence[Group]) -> Table | None:
    found: dict[str, dict[str, str]] = {}
    for group in groups:
        for run in group.runs:
            for name, value in _flat_environment(run.environment).items():
                found.setdefault(name, {}).setdefault(value, group.name)
    rows = [[name, "; ".join(values)] for name, values in found.items() if name not in ("run_id", "scores")]
    return Table("Environment", ["", ""], rows, folded=True) if rows else None


def _flat_environment(environment: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in environment.items():
        if isinstance(value, Mapping):
            flat |= {str(key): "not installed" if own is None else str(own) for key, own in value.items()}
        else:
            flat[name] = ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return flat


def _repeats(group: Group) -> str:
    path = group.path if (group.path / "config.yaml").exists() else group.first.path
    baseline = path / "baseline" / "config.yaml" if group.first.path.name == "baseline" else path / "config.yaml"
    file: Path = baseline if baseline.exists() else group.first.path / "config.yaml"
    return shlex.join(["lit-cfl", "run", "--config", str(file)])
