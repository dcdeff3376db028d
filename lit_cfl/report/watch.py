"""Writes a page again and again while a run, a comparison or a study goes on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from lit_cfl.errors import InputError
from lit_cfl.report.assemble import Maker
from lit_cfl.report.blocks import Page
from lit_cfl.storage.lock import wait_until_free

SECONDS = 5  # between two looks
_POLL = 0.5


def watch(
    maker: Maker,
    write: Callable[[Page, int | None], None],
    paths: Sequence[Path],
    console: Console,
    check: Callable[[], None],
    seconds: float = SECONDS,
) -> None:
    """Writes the page whenever a file has changed, until no process works on any of the directories.

    Args:
        maker: of the page.
        write: writes it; is told after how many seconds it loads itself again, None = it is the last.
        paths: of the directories.
        console: for people.
        check: called again and again; may raise to end it.
        seconds: between two looks.
    """
    before: object = None
    told = False
    while True:
        working = any(map(_worked_on, paths))
        now = _state(paths)
        if now != before or not working:
            page = _made(maker)
            if page is not None:
                write(page, SECONDS if working else None)
                if not told:
                    console.print("Watching; the page loads itself again. Ctrl-C ends this, and not the run.")
                    told = True
                console.print(f"{time.strftime('%H:%M:%S')} written", style="dim", highlight=False)
            before = now
        if not working:
            console.print("No process works there any more: this was the last time.")
            return
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            check()
            time.sleep(_POLL)


def _made(maker: Maker) -> Page | None:
    """Makes the page; None where there is nothing yet, or a file is just being replaced."""
    try:
        return maker.make()
    except InputError:
        if not any(map(_worked_on, maker.paths)):
            raise
        return None


def _worked_on(path: Path) -> bool:
    """Tells whether a process holds the directory, or a run inside it."""
    locks = [path, *(file.parent for pattern in ("*/.lock", "*/*/.lock") for file in path.glob(pattern))]
    for folder in locks:
        try:
            if not wait_until_free(folder, 0):
                return True
        except OSError:  # somebody else's directory: nobody can tell
            continue
    return False


def _state(paths: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Lists sizes and times of the files that pages are made of."""
    found = {}
    for path in paths:
        for pattern in ("**/*.csv", "**/*.json", "**/*.yaml", "**/*.npz", "**/SHA256SUMS"):
            for file in path.glob(pattern):
                try:
                    about = file.stat()
                except OSError:  # it was just replaced
                    continue
                found[str(file)] = (about.st_size, about.st_mtime_ns)
    return found
