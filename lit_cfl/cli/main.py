"""The command line. Heavy imports wait until a command needs them: help and lists answer at once."""

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import version

from lit_cfl.errors import InputError, LineParser, Notice

_PYTHONS_FORMAT = warnings.formatwarning
_EPILOG = """\
start here:
  lit-cfl run --config quickstart      real digits, 40 clients, about 20 seconds
  lit-cfl list algorithms              what there is to choose from
  lit-cfl run --help                   every option of an experiment
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 1 where some runs failed, 2 for input that cannot be used."""
    words = list(sys.argv[1:] if arguments is None else arguments)
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
        commands.add_argument(name, nargs="?", help=command.__doc__, metavar=name)
    warnings.formatwarning = _one_line
    try:
        if not words or words[0].startswith("-"):
            parser.parse_args(words or ["--help"])
            return 0
        return _command(words[0])(words[1:])
    except InputError as error:
        print(f"lit-cfl: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A notice without the place in our code that gave it; other warnings as Python shows them."""
    return f"Note: {message}.\n" if category is Notice else _PYTHONS_FORMAT(message, category, filename, lineno, line)


def _command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"there is no command {name!r}{hint}. The commands: {', '.join(COMMANDS)}")
    return COMMANDS[name]


@contextmanager
def loading(arguments: Sequence[str]) -> Iterator[None]:
    """Says on standard error, while PyTorch is imported, that this takes a while; not to programs."""
    if "torch" in sys.modules or {"--help", "-h", "--quiet", "--json"}.intersection(arguments):
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


def run_command(arguments: Sequence[str]) -> int:
    """run an experiment and its baseline"""
    with loading(arguments):
        from lit_cfl.cli.commands import run_experiment

    return run_experiment(arguments)


def compare_command(arguments: Sequence[str]) -> int:
    """run several algorithms on the same clients over several seeds, into one table"""
    with loading(arguments):
        from lit_cfl.compare.command import compare

    return compare(arguments)


def tune_command(arguments: Sequence[str]) -> int:
    """search an experiment's options with Ray Tune"""
    with loading(arguments):
        from lit_cfl.tune.command import search

    return search(arguments)


def launch_command(arguments: Sequence[str]) -> int:
    """send a run or a search to a Ray cluster"""
    from lit_cfl.tune.launch import launch

    return launch(arguments)


def dashboard_command(arguments: Sequence[str]) -> int:
    """make a W&B workspace with a panel for every metric"""
    from lit_cfl.tracking.dashboard import dashboard

    return dashboard(arguments)


def evaluate_command(arguments: Sequence[str]) -> int:
    """score a run's models on its own clients, or on others"""
    from lit_cfl.cli.commands import evaluate_run

    return evaluate_run(arguments)


def assign_command(arguments: Sequence[str]) -> int:
    """find a cluster for new clients"""
    from lit_cfl.cli.commands import assign_newcomers

    return assign_newcomers(arguments)


def data_command(arguments: Sequence[str]) -> int:
    """show how a configuration divides its data: a table and pictures"""
    from lit_cfl.cli.commands import show_data

    return show_data(arguments)


def list_command(arguments: Sequence[str]) -> int:
    """list algorithms, data, nets, tasks or configs"""
    from lit_cfl.config import catalogue

    parser = LineParser(prog="lit-cfl list", description="What there is to choose from.")
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


def doctor_command(arguments: Sequence[str]) -> int:
    """say what this machine has for a run, for a bug report"""
    from lit_cfl.cli.doctor import doctor

    return doctor(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run_command,
    "compare": compare_command,
    "tune": tune_command,
    "launch": launch_command,
    "dashboard": dashboard_command,
    "evaluate": evaluate_command,
    "assign": assign_command,
    "data": data_command,
    "list": list_command,
    "doctor": doctor_command,
}


if __name__ == "__main__":
    sys.exit(main())
