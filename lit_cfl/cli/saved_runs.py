"""Implements the commands on a finished run: `lit-cfl evaluate` and `lit-cfl assign`."""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from lit_cfl.client_scores import score_clients
from lit_cfl.config.live_options import guess_option, merge, option_names
from lit_cfl.config.own_code import no_code_from
from lit_cfl.config.parser import parse_run
from lit_cfl.data import FederatedData
from lit_cfl.errors import InputError, LineParser, suggest
from lit_cfl.evaluation import NAMES
from lit_cfl.experiment import Experiment
from lit_cfl.progress.console import new_console
from lit_cfl.progress.tables import assignment_table, print_agreement, score_table
from lit_cfl.runs.load_run import SavedRun, load_run
from lit_cfl.storage.config_file import require_config


def evaluate_run(arguments: Sequence[str]) -> int:
    """Scores a run's models on its own clients, or on newcomers after placing them: `lit-cfl evaluate`."""
    given, rest = _run_and_data("evaluate", "Scores the models of a run.", arguments)
    saved, console = load_run(given.run_dir), new_console()
    if rest:
        placed = saved.assign(_other_data(saved, rest))
        if placed.test is None:
            raise InputError(
                "there is nothing to score: no client was placed and also has test data; give clients with training "
                "and test data"
            )
        score_table(console, {"test, newcomers": placed.test})
        print_agreement(console, placed)
        again = " ".join(map(quote, [str(saved.path), *rest]))
        console.print(f"Their clusters: lit-cfl assign {again}", soft_wrap=True)
        return 0
    served, data = saved.served(), saved.data
    clients = data.population[served.index[data.population] >= 0]  # newcomers are scored once they are placed
    mine, engine = served.select(clients), saved.prepared.engine
    scores = {
        name: score_clients(engine, mine.models, mine.index, clients, data, split, own=mine.own, weights=mine.weights)
        for split, name in NAMES.items()
        if len(clients) and data.split(split).sizes.any()
    }
    score_table(console, scores)
    return 0


def assign_newcomers(arguments: Sequence[str]) -> int:
    """Shows the cluster that a run assigns to each client of other data: `lit-cfl assign`."""
    given, rest = _run_and_data("assign", "Finds a cluster for new clients.", arguments)
    if not rest:
        raise InputError(
            "say which clients are new: --data NAME, or options of the run's own data, such as --data.source FILE for "
            "a table or arrays, or --data.num_clients 8"
        )
    saved = load_run(given.run_dir)
    placed = saved.assign(_other_data(saved, rest), unlabelled=given.unlabelled)
    assignment_table(new_console(), saved.path, placed, saved.experiment.algorithm.closeness)
    return 0


def _run_and_data(command: str, description: str, arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Splits a command line into the command's own options and the options of the data."""
    if arguments and arguments[0].startswith("--data"):
        raise InputError(f"give the run first: lit-cfl {command} RUN_DIR {arguments[0]} ...")
    parser = LineParser(
        prog=f"lit-cfl {command}",
        description=description,
        allow_abbrev=False,
        usage="%(prog)s RUN_DIR [--data ...]",
        epilog="--data NAME and --data.<option> VALUE describe other clients, as for lit-cfl run. Clients "
        "drawn from the run's own data set may share examples with its training clients. For unseen clients, "
        "hold some out when you train (--data.newcomers), or name another source here.",
    )
    parser.add_argument("run_dir", help="directory of a run (of one seed)")
    if command == "assign":
        parser.add_argument(
            "--unlabelled",
            action="store_true",
            help="place the clients by their inputs alone; labels, if any, serve only for scores (FLUX, and other "
            "algorithms whose rule needs no labels)",
        )
    if "--run_dir" in arguments:
        raise InputError(f"the directory of the run needs no option: lit-cfl {command} RUN_DIR")
    given, rest = parser.parse_known_args(arguments)
    if rest and not rest[0].startswith("-"):
        raise InputError(
            f"lit-cfl {command} takes one run, but {given.run_dir} and {rest[0]} are two; call it for each (a table of "
            f"other clients is named by --data.source {rest[0]})"
        )
    _require_options_of_data(parser, Path(given.run_dir), rest)
    return given, rest


def _require_options_of_data(parser: LineParser, run: Path, words: Sequence[str]) -> None:
    """Refuses options other than `--data` and `--data.<option>`, and suggests a similar one."""
    wrong = [word.partition("=")[0] for word in words if word.startswith("--") and not word.startswith("--data")]
    if not wrong:
        return
    with no_code_from(run):
        names = list(option_names(Experiment, merge([require_config(run)], [])))
    meant = guess_option(wrong[0].removeprefix("--"), names)
    near = f" (did you mean --{meant}?)" if meant is not None and meant.startswith("data") else ""
    near = near or suggest(wrong[0], re.findall(r"--un\w+", parser.format_help()), cutoff=0.8)
    raise InputError(f"{wrong[0]} is not an option here{near}; only --data and --data.<option> are")


def _other_data(saved: SavedRun, options: Sequence[str]) -> FederatedData:
    """Builds the data of other clients from these options and the run's configuration."""
    own = [] if saved.experiment.data.partition_file is None else ["--data.partition_file", "null"]
    request = parse_run(["--config", str(saved.path / "config.yaml"), *own, *options], opened=saved.path)
    data = request.experiment.data
    data.newcomers = 0.0  # all of these clients are newcomers, regardless of the share that the run held out
    data.allow_unseen_labels = True  # the run's clients trained on labels that no new client may have
    return data.federated(saved.experiment.seeds[0])
