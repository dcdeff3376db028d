"""Keeps the whole configuration of every recorded run, so that its key is found again when options change.

A key is a hash of all options that decide a result, also of those at their defaults. Next to each `runs.csv`, a line of
`configs.jsonl.xz` has a run's key and its whole configuration, as the classes of that time completed it. `python -m
experiments record-configs` adds the configurations of new runs; it never changes a line.
"""

import json
import lzma
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from experiments.cells import Setting
from experiments.ledger import Ledger
from experiments.result_key import compute_key

FILE = "configs.jsonl.xz"
# The data of this configuration are in a file, whose folder on the machine of the runs was hashed into their keys. The
# folder is not known, so these 300 keys cannot be computed again; `which-method` finds the runs by their commands.
KEYS_WITH_A_FOLDER = "which_method/writers_mnist"
_SEED = "--seed"
Configs = dict[str, Mapping[str, Any]]  # configurations by the keys of runs
Option = tuple[str, ...]  # keys of a configuration that lead to an option's value


def read_configs(folder: Path) -> Configs:
    """Returns the recorded configurations of a folder by key; none if it has no file."""
    file = folder / FILE
    lines = lzma.decompress(file.read_bytes()).decode().splitlines() if file.exists() else []
    return {entry["run"]: entry["config"] for entry in map(json.loads, lines)}


def record_configs(folder: Path) -> int:
    """Adds the configurations of runs that the file lacks; returns their number."""
    known = read_configs(folder)
    missing = {key: row["command"] for key, row in Ledger.read(folder).rows.items() if key not in known}
    if missing:
        _write_configs(folder, known | dict(_build_configs(missing)))
    return len(missing)


def _write_configs(folder: Path, configs: Configs) -> None:
    lines = [json.dumps({"run": key, "config": configs[key]}, sort_keys=True) for key in sorted(configs)]
    unfinished = folder / f".{FILE}.unfinished"
    unfinished.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))
    unfinished.replace(folder / FILE)


def _build_configs(commands: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each run's key and configuration; commands that differ in the seed alone are parsed once."""
    groups: dict[Setting, dict[int, str]] = defaultdict(dict)
    for key, command in commands.items():
        setting, seed = parse_command(command)
        groups[setting][seed] = key
    for setting, keys in groups.items():
        for seed, config in setting.configs(list(keys)).items():
            yield keys[seed], {name: part for name, part in config.items() if name != "code"}  # folders of a machine


def parse_command(command: str) -> tuple[Setting, int]:
    """Returns the setting and the seed of a recorded command."""
    words = shlex.split(command)[2:]
    place = words.index(_SEED)
    redraw = words[place + 2] if words[place + 2 :] else None
    return Setting("", "", "", "", words[1], tuple(words[2:place]), (), redraw), int(words[place + 1])


def rebuild_configs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each recorded run's key and its configuration, as today's classes complete its command.

    Parsing a command takes a tenth of a second. So a section is parsed once for all runs whose recorded sections differ
    only in values that their commands give; these values are filled in. Every configuration's file is parsed.
    """
    recorded, sections = read_configs(folder), dict[str, Any]()
    rows = Ledger.read(folder).rows
    for key in sorted(rows.keys() & recorded.keys()):
        setting, seed = parse_command(rows[key]["command"])
        given = [path for path in _list_given(setting, recorded[key]) if _is_plain(_get(recorded[key], path))]
        blank = _fill(recorded[key], dict.fromkeys(given, "?"))
        signs = {name: f"{name} {json.dumps(part, sort_keys=True)}" for name, part in blank.items()}
        if not {setting.config, *signs.values()} <= sections.keys():
            (today,) = setting.configs([seed]).values()
            sections |= {setting.config: None} | {sign: today.get(name) for name, sign in signs.items()}
        parts = {name: sections[sign] for name, sign in signs.items()}
        yield key, _fill(parts, {path: _get(recorded[key], path) for path in given})


def _list_given(setting: Setting, config: Mapping[str, Any]) -> Iterator[Option]:
    """Yields the path of each option that a setting's command gives, as far as the configuration has it."""
    yield ("seeds",)
    for word in (*setting.words, setting.redraw or ""):
        if word.startswith("--"):
            part, path = config, list[str]()
            for name in word.removeprefix("--").split("."):
                if "class_path" in part:
                    part, path = part["init_args"], [*path, "init_args"]
                if name not in part:
                    break
                part, path = part[name], [*path, name]
            else:
                yield tuple(path)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping) and "class_path" not in str(value)


def _get(part: Any, path: Option) -> Any:
    for name in path:
        part = part[name]
    return part


def _fill(config: Mapping[str, Any], values: Mapping[Option, Any]) -> dict[str, Any]:
    """Returns a copy of a configuration with other values of options, as far as it has these options."""
    filled = deepcopy(dict(config))
    for path, value in values.items():
        part = filled
        for name in path[:-1]:
            part = part.get(name) or {}
        if path[-1] in part:
            part[path[-1]] = value
    return filled


def find_changed_keys(folder: Path) -> list[str]:
    """Returns the recorded keys that are not found again: from the recorded configuration, or from today's classes."""
    recorded, commands = read_configs(folder), {key: row["command"] for key, row in Ledger.read(folder).rows.items()}
    missing = sorted(commands.keys() ^ recorded.keys())

    def expected(key: str) -> str:
        return compute_key(recorded[key]) if KEYS_WITH_A_FOLDER in commands[key] else key

    changed = [key for key, config in recorded.items() if compute_key(config) != expected(key)]
    changed += [key for key, config in rebuild_configs(folder) if compute_key(config) != expected(key)]
    return missing + changed
