"""Finds the command in a command line, and runs it. Defers heavy imports, so that help and lists appear at once."""

import argparse
import atexit
import errno
import gc
import locale
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

from lit_cfl.cli import early_checks
from lit_cfl.cli.help_cache import is_help, show_help
from lit_cfl.config import catalogue
from lit_cfl.config.named_configs import config_files, config_path, copy_piped_configs
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
    """Shows on standard error that PyTorch is being loaded, unless `--help`, `--quiet` or `--json` is given."""
    if "torch" in sys.modules or is_help(arguments) or {"--quiet", "--json"}.intersection(arguments):
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disables garbage collection while modules are loaded, which saves a sixth of the loading time."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # later garbage collections skip the imported modules
        atexit.register(gc.unfreeze)  # otherwise some libraries report leaks at the end
        gc.enable()


class Command(NamedTuple):
    """A command with the module that implements it, which is imported when the command runs.

    Args:
        module: Module that implements the command.
        function: Name of its function, which takes the words after the command and returns the exit code.
        help: Description of the command.
        announced: Announce that the import takes a while; see `loading`.
        check: Function of `lit_cfl.cli.early_checks` that is called before the import; None = no check.
    """

    module: str
    function: str
    help: str
    announced: bool = False
    check: str | None = None

    def run(self, words: Sequence[str]) -> int:
        """Runs the command and returns its exit code. Refuses misspelt words before PyTorch is loaded."""
        words = copy_piped_configs(words)
        for name in config_files(words):
            config_path(name)
        if self.check is not None:
            refuse: Callable[[Sequence[str]], None] = getattr(early_checks, self.check)
            refuse(words)
        return show_help(self.function, words, lambda: self._call(words)) if is_help(words) else self._call(words)

    def _call(self, words: Sequence[str]) -> int:
        """Imports the command's module, and calls its function."""
        with loading(words) if self.announced else nullcontext(), _no_collection():
            function: Callable[[Sequence[str]], int] = getattr(import_module(self.module), self.function)
        return function(words)


COMMANDS = {
    "run": Command(
        "lit_cfl.cli.run_command", "run_experiment", "run an experiment and its baseline", True, "check_run"
    ),
    "compare": Command(
        "lit_cfl.compare.command",
        "compare",
        "run several algorithms on the same clients over several seeds, into one table",
        True,
        "check_compare",
    ),
    "tune": Command(
        "lit_cfl.tune.command", "search", "search an experiment's options with Ray Tune", True, "check_tune"
    ),
    "launch": Command("lit_cfl.tune.launch", "launch", "send a run or a search to a Ray cluster"),
    "report": Command(
        "lit_cfl.report.command", "report", "show runs, comparisons and studies on one page", True, "check_report"
    ),
    "evaluate": Command(
        "lit_cfl.cli.saved_runs",
        "evaluate_run",
        "score a run's models on its own clients, or on others",
        check="check_saved_run",
    ),
    "assign": Command(
        "lit_cfl.cli.saved_runs", "assign_newcomers", "find a cluster for new clients", check="check_saved_run"
    ),
    "data": Command(
        "lit_cfl.cli.data_summary",
        "show_data",
        "show how a configuration divides its data: a table and pictures",
        check="check_data",
    ),
    "list": Command(
        "lit_cfl.cli.main", "list_catalogue", "list algorithms, data, partitions, skews, shifts, nets, tasks or configs"
    ),
    "doctor": Command("lit_cfl.cli.doctor", "doctor", "print versions and hardware, for a bug report"),
}


_HINTS = {
    "help": "there is no command 'help'; give lit-cfl --help, or lit-cfl COMMAND --help",
    "resume": "there is no command 'resume'; resume with lit-cfl run --resume DIR (or compare, tune --resume DIR)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0, 1 if some runs failed, 2 for invalid input, 128 + n after signal n.

    Args:
        arguments: The command and its words; None = those of this process, which then ends with the command.
    """
    if arguments is not None:
        return _run(list(arguments))
    _read_and_write_utf8()
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
        return _command(words[0]).run([_with_home(word) for word in words[1:]])
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


def _read_and_write_utf8() -> None:
    """Restarts this process in UTF-8 mode if the locale has another encoding, since configuration files are UTF-8.

    Otherwise, libraries that read them and Ray's processes would use the locale's encoding.
    """
    if locale.getencoding().lower().replace("-", "") != "utf8" and not sys.flags.utf8_mode:
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONUTF8": "1"})  # noqa: S606  # this very command


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


def _command(name: str) -> Command:
    if name in _HINTS:
        raise InputError(_HINTS[name])
    if name not in COMMANDS:
        raise InputError(
            f"there is no command {name!r}{suggest(name, COMMANDS, cutoff=0.6)}. Known commands: {', '.join(COMMANDS)}"
        )
    return COMMANDS[name]


def list_catalogue(arguments: Sequence[str]) -> int:
    """Prints the available classes and configurations, of one kind or of all kinds."""
    parser = LineParser(prog="lit-cfl list", description="Lists the available classes and configurations.")
    parser.add_argument("kind", nargs="?", choices=catalogue.KINDS, help="one kind only (default: all)")
    _require_kinds(arguments)
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


def _require_kinds(words: Sequence[str]) -> None:
    """Raises InputError for a word that is not one of `catalogue.KINDS`."""
    for word in words:
        if word in catalogue.KINDS or word.startswith("-"):
            continue
        for kind, help_of in catalogue.HELP.items():
            name = next((name for name in catalogue.names(kind) if name.lower() == word.lower()), None)
            if name is not None:
                raise InputError(
                    f"lit-cfl list takes a kind, such as {kind}, not {word!r}; see lit-cfl run {help_of} {name}"
                )
        known = [*catalogue.KINDS, *(name for kind in catalogue.HELP for name in catalogue.names(kind))]
        raise InputError(
            f"there is no list {word!r}{suggest(word, known, cutoff=0.6)}. Known lists: {', '.join(catalogue.KINDS)}"
        )


if __name__ == "__main__":
    sys.exit(main())
