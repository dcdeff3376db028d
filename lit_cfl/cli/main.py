"""Finds the command in a command line, and runs it. Defers heavy imports, so that the help appears at once."""

import argparse
import atexit
import errno
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

from lit_cfl.config import catalogue
from lit_cfl.config.files import read_config
from lit_cfl.errors import InputError, LineParser, Notice, suggest
from lit_cfl.storage.given_paths import expand_home

_OF_A_PATH = (  # system errors caused by a path that the user gave
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EROFS,
)
_PYTHONS_FORMAT = warnings.formatwarning
_EPILOG = """\
start here:
  lit-cfl run --config quickstart      real digits, 40 clients, about 10 seconds
  lit-cfl list algorithms              the available algorithms
  lit-cfl run --help                   every option of an experiment
"""


@contextmanager
def loading(arguments: Sequence[str]) -> Iterator[None]:
    """Shows on standard error that PyTorch is being loaded, unless help, `--quiet` or `--json` is asked for."""
    silent = {"-h", "--help", "--quiet", "--json"}.intersection(arguments) or any(".help" in word for word in arguments)
    if "torch" in sys.modules or silent:
        yield
        return
    from rich.console import Console

    console, text = Console(stderr=True), "loading PyTorch and Lightning"
    if console.is_terminal and console.is_interactive and not os.environ.get("CI"):
        with console.status(text):
            yield
    else:
        console.print(text)
        yield


class Command(NamedTuple):
    """A command with the module that implements it, which is imported when the command runs.

    Args:
        module: Module that implements the command.
        function: Name of its function, which takes the words after the command and returns the exit code.
        help: Description of the command.
        announced: Announce that the import takes a while; see `loading`.
    """

    module: str
    function: str
    help: str
    announced: bool = False

    def run(self, words: Sequence[str]) -> int:
        """Runs the command and returns its exit code. Refuses missing and invalid files before PyTorch is loaded."""
        for file in catalogue.config_files(words):
            read_config(catalogue.config_path(file))
        collects = gc.isenabled() and "torch" not in sys.modules
        if collects:
            gc.disable()  # saves a sixth of the loading time
        try:
            with loading(words) if self.announced else nullcontext():
                function: Callable[[Sequence[str]], int] = getattr(import_module(self.module), self.function)
        finally:
            if collects:
                gc.freeze()  # later collections skip the imported modules: a tenth of a short run's time
                atexit.register(gc.unfreeze)  # otherwise some libraries report leaks at the end
                gc.enable()
        return function(words)


COMMANDS = {
    "run": Command("lit_cfl.cli.run_command", "run_experiment", "run an experiment and its baseline", True),
    "compare": Command(
        "lit_cfl.compare.command",
        "compare",
        "run several algorithms on the same clients over several seeds, into one table",
        True,
    ),
    "tune": Command("lit_cfl.tune.command", "search", "search an experiment's options with Ray Tune", True),
    "launch": Command("lit_cfl.tune.launch", "launch", "send a run or a search to a Ray cluster"),
    "report": Command("lit_cfl.report.command", "report", "show runs, comparisons and studies on one page", True),
    "evaluate": Command(
        "lit_cfl.cli.saved_runs", "evaluate_run", "score a run's models on its own clients, or on others"
    ),
    "assign": Command("lit_cfl.cli.saved_runs", "assign_newcomers", "find a cluster for new clients"),
    "data": Command(
        "lit_cfl.cli.data_summary", "show_data", "show how a configuration divides its data: a table and pictures"
    ),
    "list": Command(
        "lit_cfl.cli.main", "list_catalogue", "list algorithms, data, partitions, skews, shifts, nets, tasks or configs"
    ),
    "doctor": Command("lit_cfl.cli.doctor", "doctor", "print versions and hardware, for a bug report"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0, 1 if some runs failed, 2 for invalid input, 128 + n after signal n.

    Args:
        arguments: The command and its words; None = those of this process, which then ends with the command.
    """
    if arguments is not None:
        return _run(list(arguments))
    codes: list[int] = []
    atexit.register(_end_at_once, codes)  # registered first, and therefore called last
    try:
        codes.append(_run(sys.argv[1:]))
    except KeyboardInterrupt:  # raised before the command handles signals itself, such as while PyTorch is loaded
        print("lit-cfl: interrupted", file=sys.stderr)
        codes.append(128 + signal.SIGINT)
    return codes[0]


def _end_at_once(codes: Sequence[int]) -> None:
    """Ends this process without deleting all modules, which would take up to 2 seconds.

    Args:
        codes: The exit code; empty = an exception ended the command, and Python ends the process as usual.
    """
    if codes:
        with suppress(OSError):  # if flushing fails, Python ends the process and reports the error
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


def _run(words: list[str]) -> int:
    parser = LineParser(
        prog="lit-cfl",
        description="Clustered federated learning on PyTorch Lightning.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="lit-cfl [--version] COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"lit-cfl {version('lit-cfl')}")
    commands = parser.add_argument_group("commands")
    for name, command in COMMANDS.items():
        commands.add_argument(name, nargs="?", help=command.help, metavar=name)
    warnings.formatwarning = _note_formatter()
    try:
        if not words or words[0].startswith("-"):
            parser.parse_args(words or ["--help"])
            return 0
        if words[0] not in COMMANDS:
            near = suggest(words[0], COMMANDS, cutoff=0.6)
            raise InputError(f"there is no command {words[0]!r}{near}. Known commands: {', '.join(COMMANDS)}")
        return COMMANDS[words[0]].run([_with_home(word) for word in words[1:]])
    except SystemExit as ended:  # a parser has printed its help
        return ended.code if isinstance(ended.code, int) else 0
    except InputError as error:
        print(f"lit-cfl: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _OF_A_PATH or error.filename is None:
            raise
        print(f"lit-cfl: error: {error.filename} cannot be read or written ({error.strerror})", file=sys.stderr)
        return 2


def _with_home(word: str) -> str:
    """Expands `~/` in `--option=~/x`, which a shell does not expand."""
    option, joined, value = word.partition("=")
    return f"{option}={expand_home(value)}" if option.startswith("--") and joined and value.startswith("~/") else word


def _note_formatter() -> Callable[..., str]:
    """Makes a formatter that shows each notice once, without its source line, and other warnings as Python does."""
    shown: set[str] = set()  # a separate record: Python's own is cleared whenever a library changes a warning filter

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is not Notice:
            return _PYTHONS_FORMAT(message, category, filename, lineno, line)
        is_new = str(message) not in shown
        shown.add(str(message))
        return f"Note: {message}.\n" if is_new else ""

    return format_warning


def list_catalogue(arguments: Sequence[str]) -> int:
    """Prints the available classes and configurations, of one kind or of all kinds."""
    parser = LineParser(prog="lit-cfl list", description="Lists the available classes and configurations.")
    parser.add_argument("kind", nargs="?", choices=catalogue.KINDS, help="one kind only (default: all)")
    kind = parser.parse_args(list(arguments)).kind
    for one in [kind] if kind else catalogue.KINDS:
        print(f"{one}:")
        for entry in catalogue.entries(one):
            print(f"  {entry.name:<20} {entry.line}")
            if entry.paper:
                print(f"  {'':<20} {entry.paper}")
            if entry.config:
                print(f"  {'':<20} lit-cfl run --config {entry.config}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
