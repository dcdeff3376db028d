"""`lit-cfl dashboard`: a W&B workspace with a panel for every metric of `docs/results.md`."""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError, LineParser
from lit_cfl.metric_names import RATE, metric_columns, tuned_columns
from lit_cfl.scores import CLASSIFIER, Scores, read_scores


def sections(scores: Scores) -> dict[str, tuple[str, ...]]:
    """Lists the metrics by section, for a task with these scores; leaves out the round, which is the x-axis."""
    metrics = (*metric_columns(scores), *tuned_columns(scores), RATE)
    losses = tuple(name for name in metrics if name.endswith(("/loss", "/discrepancy", "/lr")))
    of_scores = (name for name in metrics if name.startswith(("val/", "test/")) and name not in losses)
    return {
        "Accuracy" if scores == CLASSIFIER else "Scores": tuple(of_scores),
        "Loss": losses,
        "Clusters": tuple(name for name in metrics if name.startswith(("clusters/", "clients/"))),
        "Traffic": tuple(name for name in metrics if name.startswith("traffic/")),
        "Local work": tuple(name for name in metrics if name.startswith("local/")),
        "Time": tuple(name for name in metrics if name.startswith("time/")),
        "Shift": tuple(name for name in metrics if name.startswith("shift/")),
        "Of single algorithms": (
            *("clusters/inertia", "clusters/objective", "clusters/entropy", "clusters/chosen"),
            *("shift/detected", "shift/migrated"),
        ),
    }


_OPEN = ("Accuracy", "Scores", "Clusters")
_PROJECT = "lit-cfl"  # the default of tracking.project


def dashboard(arguments: Sequence[str]) -> int:
    """Makes a workspace in a W&B project and prints its address."""
    parser = LineParser(
        prog="lit-cfl dashboard",
        description="Makes a W&B workspace with a panel for every metric of a run.",
        allow_abbrev=False,
    )
    parser.add_argument("--project", default=_PROJECT, help="the project of your runs (default: %(default)s)")
    parser.add_argument("--entity", help="user or team (default: the one that is logged in)")
    parser.add_argument("--name", default="Lit-CFL", help="name of the workspace (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="only print the panels; needs no account")
    parser.add_argument("--run", metavar="RUN_DIR", help="a finished run whose scores to show (default: accuracy)")
    given = parser.parse_args(list(arguments))
    scores = CLASSIFIER if given.run is None else _scores_of(Path(given.run))
    if given.list:
        for section, metrics in sections(scores).items():
            print(f"{section}: {', '.join(metrics)}")
        return 0
    print(_save_workspace(given.project, given.entity, given.name, scores))
    return 0


def _scores_of(path: Path) -> Scores:
    try:
        return read_scores(json.loads((path / "summary.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"--run {path} is not a finished run: its summary.json cannot be read ({error})") from error


def workspace(project: str, entity: str, name: str, scores: Scores = CLASSIFIER) -> Any:
    """Builds the workspace without saving it: sections of line plots over rounds.

    Raises:
        InputError: wandb-workspaces is not installed.
    """
    try:
        panels = import_module("wandb_workspaces.reports.v2")
        workspaces = import_module("wandb_workspaces.workspaces")
    except ModuleNotFoundError as error:
        raise InputError('the dashboard needs wandb-workspaces: pip install "lit-cfl[dashboard]"') from error
    shown = [
        workspaces.Section(
            name=section,
            panels=[panels.LinePlot(title=metric, x="round", y=[metric]) for metric in metrics],
            is_open=section in _OPEN,
        )
        for section, metrics in sections(scores).items()
    ]
    return workspaces.Workspace(project=project, entity=entity, name=name, sections=shown)


def _save_workspace(project: str, entity: str | None, name: str, scores: Scores) -> str:
    """Saves the workspace; returns its address."""
    import wandb

    try:
        made = workspace(project, entity or wandb.Api().default_entity or "", name, scores)
        made.save()
    except InputError:
        raise
    except Exception as error:  # wandb raises several kinds, and `requests` its own
        where = f"{entity}/{project}" if entity else project
        raise InputError(
            f"W&B refused a workspace for {where} ({str(error) or type(error).__name__}); log in with `wandb login` or "
            "set WANDB_API_KEY, check the network (WANDB_BASE_URL for a server of your own), and name a --project "
            "that holds a run"
        ) from error
    return str(made.url)
