"""`lit-cfl report`: writes the page, figures for a paper, and the page again and again while a run goes on."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from lit_cfl.errors import Interrupted
from lit_cfl.progress.console import new_console
from lit_cfl.report.assemble import Maker
from lit_cfl.report.blocks import Page
from lit_cfl.report.options import read_arguments
from lit_cfl.report.page import as_html
from lit_cfl.report.paper import write_figures
from lit_cfl.report.watch import watch
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically


def report(arguments: Sequence[str]) -> int:
    """Writes the page of some directories. Returns 128 + the signal where one ended it."""
    given, console = read_arguments(arguments), new_console()
    out = Path(given.out)
    paths = [Path(path) for path in given.directories]
    maker = Maker(paths, ["lit-cfl", "report", *arguments], not given.no_data)
    try:
        with interruptible() as check:
            if given.watch:
                watch(maker, lambda page, seconds: _write(page, out, seconds), paths, console, check)
                return 0
            _once(maker, out, None if given.figures is None else Path(given.figures), console)
    except Interrupted as stop:
        return 128 + stop.signum
    return 0


def _once(maker: Maker, out: Path, figures: Path | None, console: Console) -> None:
    with console.status("reading") as status:
        maker.say = lambda text: status.update(Text(text))
        page = maker.make()
    _write(page, out)
    if figures is not None:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("drawing figures", total=len(page.figures))
            write_figures(page, figures, lambda: progress.advance(task))
        console.print(f"Figures: {figures}", soft_wrap=True)
    console.print(f"Page: {out}", soft_wrap=True)


def _write(page: Page, out: Path, reload_seconds: int | None = None) -> None:
    with name_write_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lambda file: file.write(as_html(page, reload_seconds)))
