"""The page's last section: configuration, differences between runs, environment, and commands."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_cfl.report.blocks import Block, Code, Section, Table, as_yaml
from lit_cfl.report.sources import Group
from lit_cfl.runs.resume import flat_options

_SAID_APART = ("seeds", "format", "code")


def section(groups: Sequence[Group], command: Sequence[str]) -> Section:
    """Builds the section on the configuration, the environment and the commands; `command` regenerates the page."""
    blocks: list[Block] = [*_differing(groups)]
    for group in groups:
        contents = {"Configuration": group.first.config, "Environment": group.first.environment}
        blocks += [as_yaml(found, f"{what} of {group.name}") for what, found in contents.items() if found]
    from_files = [one for one in groups if one.first.config and not one.first.config.get("made_in_python")]
    again = "\n".join(map(_repeats, from_files))
    if again:
        blocks.append(Code(again, "Commands that repeat the runs" if len(groups) > 1 else "Command that repeats it"))
    blocks.append(Code(shlex.join(command), "Command that made this page"))
    return Section("Settings", blocks)


def _differing(groups: Sequence[Group]) -> list[Table]:
    """Makes the table of the options that differ between the groups; no table if all are equal."""
    known = [(group.name, _options(group)) for group in groups if group.first.config]
    names = list(dict.fromkeys(name for _, options in known for name in options))
    seeds = [", ".join(str(run.seed) for run in group.runs) for group in groups if group.first.config]
    rows: list[list[str | None]] = [["seeds", *seeds]] if len(set(seeds)) > 1 else []
    for name in names:
        values = [options.get(name) for _, options in known]
        if any(value != values[0] for value in values[1:]):
            rows.append([name, *(None if value is None else str(value) for value in values)])
    return [Table("Options that differ", ["option", *(name for name, _ in known)], rows)] if rows else []


def _options(group: Group) -> dict[str, Any]:
    found = flat_options({key: value for key, value in group.first.config.items() if key not in _SAID_APART})
    return {name: value for name, value in found.items() if not name.startswith("baseline")}


def _repeats(group: Group) -> str:
    path = group.path if (group.path / "config.yaml").exists() else group.first.path
    baseline = path / "baseline" / "config.yaml" if group.first.path.name == "baseline" else path / "config.yaml"
    file: Path = baseline if baseline.exists() else group.first.path / "config.yaml"
    return shlex.join(["lit-cfl", "run", "--config", str(file)])
