"""The pictures of a study, for its directory and its page, and the importance of its parameters.

Importance is PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023; for parameters of one algorithm among several Itakura et
al., KDD 2026), as Optuna computes it: how much the values of the best quarter of the trials differ from those of all
trials. Only finished trials count: the last figure of one that was stopped early is not its result.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial

from lit_cfl.metric_names import Row
from lit_cfl.pictures import files
from lit_cfl.pictures import search as figures
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.record import FINISHED_STATUS
from lit_cfl.tune.space_file import is_inside
from lit_cfl.tune.spaces import Space

METHOD = "PED-ANOVA"
FEWEST_TRIALS = 8  # minimum number of trials, so that the best quarter has two
NO_IMPORTANCE = (
    f"Importance of the parameters: unknown; it needs {FEWEST_TRIALS} finished trials with settings in the search "
    "space, whose scores differ"
)
EVALUATOR = PedAnovaImportanceEvaluator(target_quantile=0.25)


def list_figures(
    rows: Sequence[Row], parameters: Sequence[str], objective: Objective, shares: Mapping[str, float]
) -> dict[str, Callable[[], Figure | None]]:
    """Returns functions that draw a study's figures, by name; each returns None if its figure would be empty.

    Args:
        rows: Rows of the trained trials by number.
        parameters: Names of the values that a trial may have.
        objective: Objective by which trials are compared.
        shares: Importance of each parameter.
    """
    search = figures.Search(rows, objective.metric, parameters, objective.best, TRAFFIC)
    costed = [row for row in search.of(FINISHED_STATUS) if row.get(TRAFFIC) is not None]
    return {
        "history": lambda: figures.history(search),
        "importance": lambda: figures.importance(shares, METHOD),
        "pareto": lambda: figures.pareto(search, objective.front(costed)),
        "slices": lambda: figures.slices(search),
    }


def draw(
    path: Path,
    rows: Sequence[Row],
    parameters: Sequence[str],
    objective: Objective,
    shares: Mapping[str, float],
    guard: DrawingGuard,
) -> None:
    """Writes the study's pictures into a folder; skips those that would be empty or that cannot be drawn.

    Args:
        path: Folder of the pictures; earlier ones are removed.
        rows, parameters, objective, shares: Arguments of `list_figures`.
        guard: Handles pictures that cannot be drawn.
    """
    if all(row.get(objective.metric) is None or not isfinite(row[objective.metric]) for row in rows):
        return
    if guard("pictures", lambda: _empty_folder(path)) is not None:
        for name, make in list_figures(rows, parameters, objective, shares).items():
            guard(f"pictures/{name}", partial(_write, path / name, make))


def _write(path: Path, make: Callable[[], Figure | None]) -> None:
    figure = make()
    if figure is not None:
        files.write_figure(figure, path, ["png"])


def _empty_folder(path: Path) -> Path:
    """Makes the folder, or removes the pictures that were drawn into it before."""
    path.mkdir(exist_ok=True)
    for file in path.glob("*.png"):
        file.unlink()
    return path


def importance(rows: Sequence[Row], space: Space, objective: Objective) -> dict[str, float]:
    """Computes each parameter's importance, as shares with sum 1, highest first; empty if there are too few trials.

    Args:
        rows: Rows of trained trials; unfinished ones, and settings outside the space, are left out.
        space: Search space.
        objective: Objective by which trials are compared.

    Returns:
        The share of each parameter; empty with fewer than eight trials, or if no parameter mattered.
    """
    study = build_study(rows, space, objective)
    if len(study.get_trials(states=(TrialState.COMPLETE,))) < FEWEST_TRIALS:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that few trials make it imprecise, as the docs say
        found = get_param_importances(study, evaluator=EVALUATOR, normalize=False)
    total = sum(found.values())
    return {key: float(value / total) for key, value in found.items()} if total > 0 else {}


def build_study(rows: Sequence[Row], space: Space, objective: Objective) -> optuna.Study:
    """Builds an Optuna study from the finished trials inside the space, under their trial numbers.

    All other numbers are failed trials of this study.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=objective.directions[0])
    trials: list[FrozenTrial] = []
    for row in rows:
        own = space.of_setting(row)
        values = {key: row[key] for key in own}
        if row["status"] == FINISHED_STATUS and isfinite(row[objective.metric]) and is_inside(values, space):
            trials += [create_trial(state=TrialState.FAIL) for _ in range(len(trials), int(row["trial_id"]))]
            trials.append(create_trial(params=values, distributions=own, value=float(row[objective.metric])))
    study.add_trials(trials)
    return study
