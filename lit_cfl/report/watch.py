"""Writes a page again and again while a run, a comparison or a study goes on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from lit_cfl.errors import InputError, Interrupted
from lit_cfl.report.assemble import Maker
from lit_cfl.report.blocks import Page
from lit_cfl.report.options import SECONDS
from lit_cfl.storage.lock import is_held

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

    Directories that are not there yet are waited for. Where a signal ends it, the page is written once more, for it
    should not load itself again for ever.

    Args:
        maker: of the page.
        write: writes it; is told after how many seconds it loads itself again, None = it is the last.
        paths: of the directories.
        console: for people.
        check: called again and again; may raise to end it.
        seconds: between two looks.
    """
    _wait_for(paths, console, check)
    before: object = None
    page: Page | None = None
    while True:
        working = any(map(_worked_on, paths))
        now = _state(paths)
        if now != before or not working:
            made = _made(maker)
            if made is not None:
                write(made, SECONDS if working else None)
                if page is None:
                    console.print("Watching; the page loads itself again. Ctrl-C ends this, and not the run.")
                page = made
                console.print(f"{time.strftime('%H:%M:%S')} written", style="dim")
            before = now
        if not working:
            console.print("No process works there any more: this was the last time.")
            return
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                check()
                time.sleep(_POLL)
        except Interrupted:
            if page is not None:
                write(page, None)
            raise


def _wait_for(paths: Sequence[Path], console: Console, check: Callable[[], None]) -> None:
    """Waits until each directory holds something: a run makes its own some seconds after its start."""
    told = False
    while missing := [str(path) for path in paths if not path.is_dir() or not any(path.iterdir())]:
        if not told:
            console.print(f"Waiting for {', '.join(missing)}. Ctrl-C ends this.", soft_wrap=True)
            told = True
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
    return any(map(is_held, locks))


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
