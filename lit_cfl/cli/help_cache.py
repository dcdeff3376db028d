"""Caches help texts, so that printing one does not load PyTorch and Lightning."""

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size

from lit_cfl.errors import InputError, SaveError
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.cache_folder import cache_folder

_OURS = Path(__file__).parents[1]
_DESCRIBED = ("torch", "lightning", "jsonargparse", "docstring-parser")  # packages on which help texts depend
_ASKS = re.compile(r"-h|--help|--[\w.]+\.help")
_INSTALLED = re.compile(r"\w+|(lit_cfl|torch|lightning)\.[\w.]+")  # names of classes that are not the user's


def show_help(command: str, words: Sequence[str], make: Callable[[], int]) -> int:
    """Prints the cached help text if it matches the installed files; otherwise makes and caches it.

    Args:
        command: Name of the command.
        words: The words after it.
        make: Prints the help text, and returns the exit code or raises SystemExit with it.

    Returns:
        The exit code.
    """
    kept = _place(command, words)
    stamp = "" if kept is None else _stamp()
    if kept is not None:
        with suppress(OSError, UnicodeDecodeError):
            made_from, _, text = kept.read_text("utf-8").partition("\n")
            if made_from == stamp:
                sys.stdout.write(text)
                return 0
    printed, code = StringIO(), 0
    try:
        with redirect_stdout(printed):
            code = make()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    sys.stdout.write(printed.getvalue())
    if kept is not None and code == 0:
        with suppress(OSError, SaveError):  # if the help cannot be cached, the next call makes it again
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, f"{stamp}\n{printed.getvalue()}")
    return code


def is_help(words: Sequence[str]) -> bool:
    """Returns whether a command's arguments ask for help."""
    return any(_ASKS.fullmatch(word.partition("=")[0]) for word in words)


def _place(command: str, words: Sequence[str]) -> Path | None:
    """Returns the cache file of a help text; None if it may show a user's class, or if there is no cache folder."""
    options = [word.partition("=") for word in words]
    named = [value if joined else head for head, joined, value in options if joined or not head.startswith("-")]
    only_help = all(_ASKS.fullmatch(head) for head, _, _ in options if head.startswith("-"))
    if not only_help or not all(_INSTALLED.fullmatch(name) for name in named):
        return None
    with suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing home folder does not matter for help
        folder = cache_folder()
        question = json.dumps([command, *words, get_terminal_size().columns])
        return None if folder is None else folder / "help" / f"{sha256(question.encode()).hexdigest()[:24]}.txt"
    return None


def _stamp() -> str:
    """Returns a digest of what help texts depend on: Python, our files, and the versions of a few packages."""
    found: list[object] = [sys.version, *map(_version, _DESCRIBED)]
    for part in (_OURS, _OURS / "datamodules", _OURS / "tune"):  # the last two may be symbolic links
        for folder, _, names in os.walk(part):
            for name in sorted(names):
                if name.endswith(".py"):
                    entry = os.stat(os.path.join(folder, name))
                    found.append([os.path.join(folder, name), entry.st_size, entry.st_mtime_ns])
    return sha256(json.dumps(found).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
