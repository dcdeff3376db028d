"""Errors whose message is for the user: it quotes the value and names the remedy, in one line."""

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from site import getsitepackages, getusersitepackages
from sysconfig import get_path
from threading import get_ident
from traceback import FrameSummary, extract_tb
from typing import Any, NoReturn

__all__ = ["DivergedError", "InputError", "Interrupted", "Notice", "SaveError", "WorkersLostError"]

# numbers of clients that are not followed by a name in brackets
_CLIENTS = re.compile(r"\bclients? \d+\b(, \d+\b)*(?! \(['\"])")

_LONGEST_RANGE = 10  # numbers of a range that a hint writes one by one
_MISSPELLED = 0.85  # a name at least this similar is meant, whatever else the word begins with
_BEGINNING = 4  # minimum number of letters that identify a name


class Notice(UserWarning):
    """A notice for the user that does not stop the run. The command line prints it as one line."""


@contextmanager
def collect_notices() -> Iterator[list[str]]:
    """Collects the texts of the notices that this thread gives within the block. Each is also shown, once."""
    texts: list[str] = []
    show, thread = warnings.showwarning, get_ident()

    def keep(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category is Notice and get_ident() == thread:  # those of trackers depend on the network and on timing
            if str(message) in texts:
                return
            texts.append(str(message))
        show(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice, append=True)  # after the caller's filters, which may silence notices
        warnings.showwarning = keep
        yield texts


class InputError(ValueError):
    """Input from the user that cannot be used. The command line prints only the message and exits with 2."""


class DivergedError(InputError):
    """Raised when a client's training loss or model has become NaN or infinite."""


@contextmanager
def prefix_errors(subject: str) -> Iterator[None]:
    """Prefixes the message of an InputError raised within the block with a subject, such as an option's name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{subject}: {error}") from error


@contextmanager
def note_on_error(what: Callable[[], str]) -> Iterator[None]:
    """Adds to each error raised within the block, except InputErrors, a note that says where it was raised.

    Args:
        what: Returns the words after "It was raised".
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        error.add_note(f"It was raised {what()}.")
        raise


@contextmanager
def name_clients(names: Sequence[str]) -> Iterator[None]:
    """Adds the clients' names to errors that mention their numbers: `client 6 ('Hospital 15')`.

    Args:
        names: Name of each client; an empty name, or one that is the number itself, is not added.
    """
    try:
        yield
    except Exception as error:  # any error of a run is raised again, with the names
        if isinstance(error, InputError):
            error.args = (with_client_names(str(error), names), *error.args[1:])
        elif hasattr(error, "__notes__"):
            error.__notes__ = [with_client_names(note, names) for note in error.__notes__]
        raise


def with_client_names(text: str, names: Sequence[str]) -> str:
    """Adds the names of clients to a message; see `name_clients`."""

    def named(number: re.Match[str]) -> str:
        client = int(number[0])
        name = names[client] if client < len(names) else ""
        return number[0] if name in ("", number[0]) else f"{number[0]} ({name!r})"

    return _CLIENTS.sub(lambda found: re.sub(r"\d+", named, found[0]), text)


def error_place(error: BaseException) -> str:
    """Returns ` (in FILE, line N)` of the user's code that raised an error; empty if no user code did."""
    place = find_user_frame(error)
    return "" if place is None else f" (in {place.filename}, line {place.lineno})"


def find_user_frame(error: BaseException) -> FrameSummary | None:
    """Finds the innermost line of the user's code in an error's traceback."""
    frames = reversed(extract_tb(error.__traceback__))
    return next((frame for frame in frames if not is_installed(frame.filename)), None)


@cache
def is_installed(file: str | Path) -> bool:
    """Returns whether a file of code is part of Lit-CFL, of Python, or of an installed package, so not the user's own.

    A package lists its files in the RECORD of its `.dist-info`, in whichever folder it was installed. An editable
    package does not list the files that the user edits.
    """
    if str(file).startswith("<frozen "):
        return True
    places = {Path(file).absolute(), Path(file).resolve()}
    known = [Path(__file__).parent, Path(get_path("stdlib")), Path(get_path("platstdlib"))]
    known += map(Path, [*getsitepackages(), getusersitepackages()])
    if any(place.is_relative_to(folder) for place in places for folder in known):
        return True
    return any(_is_recorded(place, Path(folder)) for place in places for folder in sys.path)


def _is_recorded(place: Path, folder: Path) -> bool:
    """Returns whether a package in a folder of `sys.path` lists this file, or files in it if it is a folder."""
    if not place.is_relative_to(folder):
        return False
    name, listed = place.relative_to(folder).as_posix(), _read_records(folder)
    return f"\n{name}," in listed or f"\n{name}/" in listed


@cache
def _read_records(folder: Path) -> str:
    records = folder.glob("*.dist-info/RECORD")
    return "\n" + "\n".join(record.read_text("utf-8", errors="replace") for record in records)


def short_error(error: BaseException) -> str:
    """Returns an error's class and the first sentence of its message."""
    sentence = str(error).splitlines()[0].partition(". ")[0] if str(error) else ""
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


def join_ids(clients: Sequence[object]) -> str:
    """Joins the ids of at most 20 clients (or other things) for a message."""
    return ", ".join(map(str, clients[:20])) + (", ..." if len(clients) > 20 else "")


def count_noun(number: float, noun: str) -> str:
    """Returns a number with its noun: `1 round`, `2 rounds`, `0.5 GPUs`."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun}{'s' * (number != 1)}"


def join_range(low: int, high: int) -> str:
    """Returns a range of whole numbers as text: `2 to 1,000`; one number if both are equal."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def write_point(number: str) -> str:
    """Returns the hint `; write 0.5` for a decimal comma such as 0,5, or for a percentage; empty for other texts."""
    if percent := re.fullmatch(r"(\d+(?:[.,]\d+)?)\s*%", number):
        return f"; write {float(percent[1].replace(',', '.')) / 100:g}"
    return f"; write {number.replace(',', '.')}" if re.fullmatch(r"[-+]?\d*,\d+", number) else ""


def suggest_share(percent: float) -> str:
    """Returns the hint `, such as 0.8` for a percentage such as 80; empty for other numbers."""
    return f", such as {percent / 100:g}" if 1 < percent <= 100 else ""


def spell_range(text: str) -> str:
    """Returns the numbers of a range such as 0-2, as typed for a list: `0 1 2`; empty for other texts."""
    parts = re.fullmatch(r"(\d{1,6})(?:-|:|\.\.+)(\d{1,6})", text)
    if parts is None or not int(parts[1]) < int(parts[2]):
        return ""
    first, last = int(parts[1]), int(parts[2])
    numbers = list(range(first, last + 1)) if last - first < _LONGEST_RANGE else [first, first + 1, "...", last]
    return " ".join(map(str, numbers))


def write_space(glued: str) -> str:
    """Returns the hint `; write a space after the colon: rounds: 5` for `rounds:5`; empty for other texts."""
    parts = re.fullmatch(r"\s*(\w+):([^\s:/]+)\s*", glued)
    return "" if parts is None else f"; write a space after the colon: {parts[1]}: {parts[2]}"


def suggest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Returns ` (did you mean ...?)` with the most similar known name; empty if none is similar.

    Args:
        word: Word that is not known.
        known: Names that are known.
        cutoff: Minimum similarity: 1 = equal, 0 = no letter in common.
    """
    lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    longer = [name for name in lower if len(word) >= _BEGINNING and name.startswith(word.lower())]
    close = longer if len(longer) == 1 else close  # for batch, suggests batch_size and not last_batch
    if not get_close_matches(word.lower(), lower, n=1, cutoff=_MISSPELLED):  # for r2_score, suggests r2 and not rmse
        close = sorted((name for name in lower if word.lower().startswith(f"{name}_")), key=len)[-1:] or close
    return f" (did you mean {lower[close[0]]}?)" if close else ""


def require_word(name: str, given: object, words: Sequence[str]) -> None:
    """Refuses a value that is not one of these words.

    Raises:
        InputError: with the value, the most similar word if there is one, and all words.
    """
    if given not in words:
        near = suggest(given, words) if isinstance(given, str) else ""
        raise InputError(f"{name} is {given!r}{near}; give one of {', '.join(words)}")


class SaveError(InputError):
    """Raised when a file cannot be written: the disk is full, or a limit was reached."""


class WorkersLostError(InputError):
    """Raised when Ray workers that train the same clients died repeatedly, probably for lack of memory."""


class LineParser(argparse.ArgumentParser):
    """Reports a wrong command line as a one-line InputError, without the usage text."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            message += suggest(choice[1], re.findall(r"[\w-]+", choice[2]))
        if message.startswith("unrecognized arguments: --"):
            known = list(dict.fromkeys(re.findall(r"--[\w-]+", self.format_help())))
            message += suggest(message.split()[2], known, 0.7) or f"; its options: {', '.join(known[:-1])}"
        wrong = re.fullmatch(r"argument (\S+): invalid (int|float) value: '(.*)'", message)
        if wrong is not None:
            option, kind, given = wrong.groups()
            number = "a whole number" if kind == "int" else "a number"
            raise InputError(f"{option}: {given!r} is not {number}{write_point(given) if kind == 'float' else ''}")
        raise InputError(f"{message}; see {self.prog} --help")


class Interrupted(BaseException):  # requested by the user or the scheduler
    """Raised on SIGINT or SIGTERM. Not an Exception, so that no handler mistakes it for a failure.

    Args:
        signum: Number of the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
