"""The words of a command line: each value joined to its option, and configuration files first."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lit_cfl.errors import InputError

FLAGS = ("new_plan", "tiny", "dry-run", "quiet", "json")  # options without a value
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d*([eE][-+]?\d+)?|[-+]?\.?(inf|nan)", re.IGNORECASE)


def require_words(words: object) -> None:
    """Raises InputError unless the words of a command line are a list of texts."""
    if isinstance(words, str) or not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise InputError(f"words is {words!r}; give a list of words, such as ['--rounds', '50']")


def arrange(words: Sequence[str]) -> list[str]:
    """Joins each option and its value, as in `--rounds=3`, and moves `--config` before all other options.

    The parser would otherwise take `-1e-3` for an option, and replace options by the values of a later file. Several
    values stay separated by spaces: `--seeds 0 1 2` becomes `--seeds=0 1 2`.
    """
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        values: list[str] = []
        if word.startswith("--") and "=" not in word and word.removeprefix("--") not in FLAGS:
            most = 1 if word == "--config" else len(rest)
            while rest and len(values) < most and is_value(rest[0]):
                values.append(rest.pop(0))
        found.append(f"{word}={' '.join(values)}" if values else word)
    return sorted(found, key=lambda word: not word.startswith("--config="))


def is_value(word: str) -> bool:
    """Returns whether a word is a value, such as a negative number, and not an option."""
    is_number = bool(_NUMBER.fullmatch(word)) and any(character.isdigit() or character in "fFnN" for character in word)
    return not word.startswith("-") or is_number


def given_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each option of arranged words, without dashes, with its value, which is empty if there is none."""
    for word in words:
        if word.startswith("--"):
            option, _, value = word.removeprefix("--").partition("=")
            yield option, value


def flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the options in a part of a file with their dotted names; a class comes before its arguments."""
    if not isinstance(value, dict) or "dict_kwargs" in value or (not value and path):
        yield path, value
        return
    if "class_path" in value:
        if not set(value) <= {"class_path", "init_args"} or not isinstance(value.get("init_args", {}), dict):
            yield path, value  # to be explained as a whole
            return
        yield path, value["class_path"]
    for name, part in (value.get("init_args", {}) if set(value) <= {"class_path", "init_args"} else value).items():
        yield from flatten(f"{path}.{name}".lstrip("."), part)


def has_empty_group(value: Any) -> bool:
    """Returns whether a part of a file has an option with nothing in it, which a parser drops, known or not."""
    return isinstance(value, dict) and (not value or any(map(has_empty_group, value.values())))


def split_list(text: str) -> list[str]:
    """Splits `0 1 2`, `0,1,2` and `[0, 1, 2]` into their entries."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):  # brackets inside belong to an entry, as in linear[-1]
        text = text[1:-1]
    return [entry for entry in re.split(r"[\s,]+", text) if entry]
