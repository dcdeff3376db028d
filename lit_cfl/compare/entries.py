"""The compared algorithms: entries of `--algorithms`, and the options of each. Imports nothing heavy."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lit_cfl.config import catalogue
from lit_cfl.config.files import append_to_path, read_config
from lit_cfl.config.named_configs import config_path
from lit_cfl.config.option_tree import class_of
from lit_cfl.errors import InputError, nearest

Section = Mapping[str, Any]  # class_path, init_args
OF_AN_ENTRY = ("server", "shared", "personal")  # options of the experiment that may differ between entries
RESERVED = ("pictures", "compare.yaml", "results.md", "results.csv", "results.tex", "runs.csv")


@dataclass(frozen=True)
class ComparedAlgorithm:
    """One algorithm of a comparison.

    Args:
        name: Name of the entry's folder, options and row of the table.
        section: class and arguments, as under `algorithm:` in a configuration.
        words: further options, as `--algorithm.<option> VALUE`.
        code: folders of the user's own classes.
    """

    name: str
    section: Section
    words: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def given(self, option: str) -> bool:
        """Returns whether the user has set this option."""
        flag = f"--algorithm.{option}"
        return option in self.section.get("init_args", {}) or any(w.partition("=")[0] == flag for w in self.words)


def read_entries(words: Sequence[str], own: Section | None) -> list[ComparedAlgorithm]:
    """Reads the entries of `--algorithms`.

    Args:
        words: each `[NAME=]WHAT`: a class, a packaged configuration, or a file that has an `algorithm:`, or is one.
        own: the experiment's own algorithm; its class alone stands for it with its arguments.

    Raises:
        InputError: an unknown file, a name twice, or one that names no folder.
    """
    entries = [_entry(word, own) for word in words]
    for number, entry in enumerate(entries):
        _require_name(entry.name)
        if entry.name.lower() in [other.name.lower() for other in entries[:number]]:
            raise InputError(
                f"--algorithms has {entry.name} twice; give each a name of its own: A={words[number]} B={words[number]}"
            )
    return entries


def with_options(
    entries: Sequence[ComparedAlgorithm], words: Sequence[str]
) -> tuple[list[ComparedAlgorithm], list[str]]:
    """Gives each entry its options `--NAME.option VALUE`: those of its algorithm, or of `OF_AN_ENTRY`.

    Returns:
        the entries with their options, and the words that are left.
    """
    own: dict[str, list[str]] = {entry.name: [] for entry in entries}
    by_name = {entry.name: entry for entry in entries}
    left: list[str] = []
    target = left
    for word in words:
        if word.startswith("--"):
            name = max((name for name in own if word.startswith(f"--{name}.")), key=len, default=None)
            target = left if name is None else own[name]
            word = word if name is None else _flag(by_name[name], word.removeprefix(f"--{name}."))
        target.append(word)
    return [replace(entry, words=tuple(own[entry.name])) for entry in entries], left


def _flag(entry: ComparedAlgorithm, option: str) -> str:
    """Returns the flag of an entry's option as `lit-cfl run` knows it."""
    head = re.split(r"[.=]", option)[0]
    known = class_of(entry.section["class_path"], "algorithms") if head in OF_AN_ENTRY else None
    of_algorithm = head not in OF_AN_ENTRY or (known is not None and head in known.options)
    return f"--algorithm.{option}" if of_algorithm else f"--{option}"


def require_names(entries: Sequence[ComparedAlgorithm], words: Sequence[str], options: Sequence[str]) -> None:
    """Refuses algorithm names that are experiment options, and options of algorithms that are not compared.

    Args:
        entries: Entries of the comparison.
        words: Words that belong to no entry.
        options: dotted names of the options of experiments.
    """
    names = [entry.name for entry in entries]
    heads = {option.partition(".")[0] for option in options}
    taken = [name for name in names if name in heads]
    if taken:
        raise InputError(f"{taken[0]!r} is an option of experiments; give the algorithm another name, NAME=...")
    for word in words:
        head, dot, _ = word.removeprefix("--").partition(".")
        if word.startswith("--") and dot and head not in heads:
            known = ", ".join(names)
            raise InputError(f"{word}: no algorithm here is called {head!r}{nearest(head, names)}; there are {known}")


def section(written: Any, where: str) -> Section:
    """Reads an algorithm of a configuration: its class alone, or with arguments."""
    if isinstance(written, str):
        return {"class_path": written}
    if not isinstance(written, dict) or not isinstance(written.get("class_path"), str):
        raise InputError(f"{where} names no algorithm; it needs algorithm: with class_path: (and init_args:)")
    return written


def _entry(word: str, own: Section | None) -> ComparedAlgorithm:
    name, what = "", word
    if "=" in word and not Path(word).is_file():
        name, _, what = word.partition("=")
    if Path(what).is_file() or what in catalogue.configs() or "/" in what or what.endswith(".yaml"):
        file = config_path(what)
        found, code = _section_of_file(file), tuple(append_to_path(["--config", file]))
    else:
        mine = own is not None and what in (own["class_path"], _short(own["class_path"]))
        found, code = own if mine and own is not None else {"class_path": what}, ()
    return ComparedAlgorithm(name or _short(found["class_path"]), found, code=code)


def _section_of_file(file: str) -> Section:
    whole = read_config(file)
    return section(whole.get("algorithm", whole), file)


def _short(class_path: str) -> str:
    return class_path.rpartition(".")[2]


def _require_name(name: str) -> None:
    plain = name and Path(name).name == name and name[0] not in ".-" and name.isprintable()
    if not plain or name.lower() in RESERVED:
        raise InputError(f"{name!r} cannot be a name of an algorithm here: it is to be a folder; choose another NAME=")
