"""Implements the commands that train or score."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from lit_cfl import progress
from lit_cfl.cli import data_summary
from lit_cfl.config.parser import RunRequest, parse_data, parse_run
from lit_cfl.data import FederatedData
from lit_cfl.errors import InputError, Interrupted, LineParser, SaveError
from lit_cfl.evaluation import NAMES, score_clients
from lit_cfl.progress import dry_run
from lit_cfl.progress.console import new_console
from lit_cfl.runs.load_run import SavedRun, load_run
from lit_cfl.runs.run import ResumeMode, run
from lit_cfl.runs.run_directory import default_run_directory
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.given_paths import given_directory


def run_experiment(arguments: Sequence[str]) -> int:
    """Runs an experiment and its baseline: `lit-cfl run`."""
    request = parse_run(arguments)
    options, experiment = request.options, request.experiment
    screen = progress.Screen(options.quiet, options.json)
    for notice in request.notices:
        screen.say(f"Note: {notice}.")
    if options.dry_run:
        dry_run.show(screen.aside, experiment)
        return 0
    path, mode = _where(request)
    again = f"lit-cfl run --resume {quote(str(path))}"
    try:
        with interruptible() as check, screen.callbacks(check, len(experiment.seeds) > 1) as callbacks:
            finished = run(experiment, path, callbacks, mode)
    except Interrupted as stop:
        screen.say(f"Interrupted; every whole round is saved. Go on with: {again}")
        return 128 + stop.signum
    except SaveError as error:
        if (path / "config.yaml").exists():
            raise SaveError(f"{error}. The last checkpoint is intact: make room, then go on with: {again}") from error
        raise SaveError(f"{error}. Nothing was trained yet: make room, then give the same command again") from error
    screen.close(finished)
    return 0


def _where(request: RunRequest) -> tuple[Path, ResumeMode]:
    options = request.options
    if options.resume is None:
        if options.run_dir is None:
            return default_run_directory(request.experiment.name), "new"
        return given_directory(options.run_dir, "--run_dir"), "new"
    return given_directory(options.resume, "--resume"), "new_plan" if options.new_plan else "resume"


def show_data(arguments: Sequence[str]) -> int:
    """Shows how the data are divided among clients, before anything is trained: `lit-cfl data`."""
    if "--check-hub" in arguments:
        from lit_cfl.datamodules.hub import check_hub

        return check_hub()
    given, console = parse_data(arguments), new_console()
    folder = Path("runs") / f"{given.name}-data" if given.out is None else given_directory(given.out, "--out")
    data = given.module.federated(given.seed)
    data_summary.show(console, type(given.module).__name__, data, given.module.shift)
    for path in data_summary.write(folder, data):
        console.print(f"{'written':<18} {path}", soft_wrap=True)
    return 0


def evaluate_run(arguments: Sequence[str]) -> int:
    """Scores the run's own clients with their models, or newcomers after they were placed: `lit-cfl evaluate`."""
    given, rest = _run_and_data("evaluate", "Scores the models of a run.", arguments)
    saved, console = load_run(given.run_dir), new_console()
    if rest:
        placed = saved.assign(_other_data(saved, rest))
        if placed.test is None:
            raise InputError("none of these clients could be placed and has test data: nothing to score")
        progress.score_table(console, {"test, newcomers": placed.test})
        return 0
    served, data = saved.served(), saved.data
    clients = data.population[served.index[data.population] >= 0]  # newcomers are scored once they are placed
    scores = {
        name: score_clients(saved.prepared.engine, served.models, served.index[clients], clients, data, split)
        for split, name in NAMES.items()
        if len(clients) and data.split(split).sizes.any()
    }
    progress.score_table(console, scores)
    return 0


def assign_newcomers(arguments: Sequence[str]) -> int:
    """Shows which cluster each client of other data belongs to, and how sure that is: `lit-cfl assign`."""
    given, rest = _run_and_data("assign", "Finds a cluster for new clients.", arguments)
    if not rest:
        raise InputError(
            "say which clients are new: --data NAME, or options of the run's own, such as --data.num_clients 8"
        )
    saved = load_run(given.run_dir)
    placed = saved.assign(_other_data(saved, rest))
    progress.assignment_table(new_console(), saved.path, placed, saved.experiment.algorithm.closeness)
    return 0


def _run_and_data(command: str, description: str, arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Reads the run's directory, and leaves the options of the data."""
    if arguments and arguments[0].startswith("--data"):
        raise InputError(f"give the run first: lit-cfl {command} RUN_DIR {arguments[0]} ...")
    parser = LineParser(
        prog=f"lit-cfl {command}",
        description=description,
        allow_abbrev=False,
        usage="%(prog)s RUN_DIR [--data ...]",
        epilog="--data NAME and --data.<option> VALUE describe other clients, as for lit-cfl run. Divided from "
        "the run's own images, they may have some that it was trained on: for clients that it has not seen give "
        "--data.newcomers to the run, or another source here.",
    )
    parser.add_argument("run_dir", help="directory of a run (of one seed)")
    return parser.parse_known_args(arguments)


def _other_data(saved: SavedRun, options: Sequence[str]) -> FederatedData:
    """Builds the data that these options describe, on top of the run's own; all their clients count as newcomers."""
    wrong = [word for word in options if word.startswith("--") and not word.startswith("--data")]
    if wrong:
        raise InputError(f"{wrong[0]} is no option here; only --data and --data.<option> are")
    own = [] if saved.experiment.data.partition_file is None else ["--data.partition_file", "null"]
    request = parse_run(["--config", str(saved.path / "config.yaml"), *own, *options], opened=saved.path)
    data = request.experiment.data.federated(saved.experiment.seeds[0])
    mine, theirs = saved.prepared.data.examples, data.examples
    if mine.input_shape != theirs.input_shape or mine.num_labels != theirs.num_labels:
        raise InputError(
            f"the run's examples have shape {mine.input_shape} and {mine.num_labels} labels, "
            f"these {theirs.input_shape} and {theirs.num_labels}: its models cannot take them"
        )
    return data
