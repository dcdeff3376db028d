"""Lists and negative numbers on a command line: `0 1 2`, `0,1,2` and `[0, 1, 2]` are the same list."""

import json
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from lit_cfl.config import catalogue
from lit_cfl.config.option_index import IndexedOption
from lit_cfl.config.option_tree import UnknownOption, holds_texts, is_list, is_nested_list, takes_text

LookUp = Callable[[str], IndexedOption | UnknownOption | None]
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d*([eE][-+]?\d+)?|[-+]?\.?(inf|nan)", re.IGNORECASE)
_PLAIN = re.compile(r"[\w./+-]+")


def with_lists(words: Sequence[str], look_up: LookUp) -> list[str]:
    """Rewrites lists as YAML, and `--option -1` as `--option=-1`, which the parser would otherwise misread.

    Args:
        words: Words of a command line.
        look_up: Finds an option by its dotted name.
    """
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            found.append(word)
            continue
        option, joined, value = word.partition("=")
        values = [value] if joined else []
        while rest and not joined and is_value(rest[0]):
            values.append(rest.pop(0))
        found += _write_option(option, values, bool(joined), look_up(option.removeprefix("--")))
    return found


def is_value(word: str) -> bool:
    """Returns whether a word is a value, such as a negative number, and not an option."""
    return not word.startswith("-") or (len(word) > 1 and is_number(word))


def is_number(word: str) -> bool:
    """Returns whether a word is a number, in YAML or in Python."""
    return bool(_NUMBER.fullmatch(word)) and any(character.isdigit() or character in "fFnN" for character in word)


def split_list(words: Sequence[str]) -> list[str]:
    """Splits `0 1 2`, `0,1,2` and `[0, 1, 2]` into their entries."""
    text = " ".join(words).strip()
    if text.startswith("[") and text.endswith("]"):  # brackets inside belong to an entry, as in linear[-1]
        text = text[1:-1]
    return [entry for entry in re.split(r"[\s,]+", text) if entry]


def lone_words(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Lists the words that are neither an option nor an option's value, as in `lit-cfl data MNIST`.

    Args:
        words: Words of a command line, with lists as in YAML.
        flags: Names of the options without a value.
    """
    found = []
    before = ""
    for word in words:
        takes_value = before.startswith("--") and "=" not in before and before.removeprefix("--") not in flags
        if is_value(word) and not takes_value:
            found.append(word)
        before = "" if is_value(word) else word
    return found


def describe_lone_word(word: str) -> str:
    """Describes a lone word in one line, with the option to which it may belong."""
    if word.endswith((".csv", ".npz")):
        return f"{word!r} has no option before it; write --data.source {word}"
    if Path(word).is_file():
        return f"{word!r} has no option before it; write --config {word}"
    options = {"--algorithm": "algorithms", "--config": "configs", "--data": "data"}
    meant = {name.lower(): f"{option} {name}" for option, kind in options.items() for name in catalogue.names(kind)}
    close = get_close_matches(word.lower(), meant, n=1, cutoff=0.7)
    written = meant[close[0]] if close else "its option before it, such as --data MNIST or --config quickstart"
    return f"{word!r} has no option before it; write {written}"


def _write_option(
    option: str, values: list[str], joined: bool, known: IndexedOption | UnknownOption | None
) -> list[str]:
    if _is_typed_list(values, known):
        return [f"{option}={_as_yaml(values, known if isinstance(known, IndexedOption) else None)}"]
    if joined or (values and values[0].startswith("-")):
        return [f"{option}={values[0]}", *values[1:]]
    return [option, *values]


def _is_typed_list(values: Sequence[str], known: IndexedOption | UnknownOption | None) -> bool:
    """Returns whether an option's values are a list that is not written in YAML."""
    if not values or values[0].lstrip().startswith("{") or (len(values) == 1 and values[0].lstrip().startswith("[")):
        return False
    entries = split_list(values)
    if isinstance(known, IndexedOption) and known.annotation:
        single = len(values) == 1 and "," not in values[0] and takes_text(known, values[0])
        return is_list(known) and not single and values[0] not in ("null", "None")
    # an option of a class that is not indexed, such as the betas of an optimizer
    foreign = not isinstance(known, UnknownOption)
    return foreign and len(entries) > 1 and all(map(is_number, entries))


def _as_yaml(values: Sequence[str], known: IndexedOption | None) -> str:
    if known is not None and is_nested_list(known):
        return f"[{', '.join(f'[{_entries(split_list([value]), known)}]' for value in values)}]"
    return f"[{_entries(split_list(values), known)}]"


def _entries(entries: Sequence[str], known: IndexedOption | None) -> str:
    plain = known is None or not holds_texts(known)
    return ", ".join(entry if plain and _PLAIN.fullmatch(entry) else json.dumps(entry) for entry in entries)
