"""Builds the section of a study: trials, history, importance of parameters, traffic, results on new seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from lit_cfl.compare.arguments import SEARCHES
from lit_cfl.errors import count_noun
from lit_cfl.metric_names import Row
from lit_cfl.pictures.figure import finite_number
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.run_files import attempt
from lit_cfl.report.blocks import Block, Code, Section, Text, as_yaml
from lit_cfl.report.overview import read_comparison
from lit_cfl.scores import CLASSIFIER, Scores, read_scores
from lit_cfl.storage.csv_log import read_table
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.pictures import METHOD, NO_IMPORTANCE, importance, list_figures
from lit_cfl.tune.record import (
    BEST,
    CLIENTS,
    DEFAULT,
    FAILED_STATUS,
    FINISHED_STATUS,
    REPEATS,
    STUDY,
    TABLE,
    describe_uneven,
)
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import Space, format_values

_MOST_ERRORS = 5
_NOT_REPEATED = (
    "The best and the default setting have not been trained on new seeds yet. If the study was interrupted, "
    "resume it with: lit-cfl tune --resume {}"
)


@dataclass(frozen=True)
class SavedStudy:
    """The content of a study's directory.

    Args:
        path: Path of the study.
        content: Content of `study.yaml`.
        space: Search space; None if it cannot be read.
        objective: Objective by which trials are compared.
        rows: Rows of the trials by number: status, values of the setting, and figures.
        problems: Sentences about anything missing or damaged.
    """

    path: Path
    content: Mapping[str, Any]
    space: Space | None
    objective: Objective
    rows: Sequence[Row]
    problems: Sequence[str]

    @property
    def trained(self) -> list[Row]:
        """The trained trials, without trials that only repeat a setting."""
        return [row for row in self.rows if row["repeats"] is None]

    @property
    def finished(self) -> list[Row]:
        """The trained trials that ran to their end and have the metric."""
        known = [row for row in self.trained if finite_number(row.get(self.objective.metric)) is not None]
        return [row for row in known if row["status"] == FINISHED_STATUS]

    @property
    def parameters(self) -> list[str]:
        """Names of the searched parameters, in the order of the space."""
        return [] if self.space is None else list(self.space.distributions())


def read_study(path: Path) -> SavedStudy:
    """Reads the directory of a study, skipping unreadable files."""
    problems: list[str] = []
    file, table = path / STUDY, path / TABLE
    content = attempt(problems, file, lambda: dict(parse_yaml(file.read_text("utf-8")))) or {}
    scores = next(filter(None, map(_scores, sorted(path.glob("trials/*/")))), CLASSIFIER)
    objective = attempt(
        problems, file, lambda: Objective.of(content.get("metric"), scores, content.get("second_metric"))
    )
    space = attempt(problems, file, lambda: parse_space(content["space"])) if content else None
    read = attempt(problems, table, lambda: read_table(table, text=("trial_id", "repeats"))) if table.exists() else None
    if not read:
        problems.append(f"{table}: no trial has ended yet.")
    return SavedStudy(path, content, space, objective or Objective(), read or [], list(dict.fromkeys(problems)))


def _scores(trial: Path) -> Scores | None:
    return attempt([], trial, lambda: read_scores(json.loads(next(trial.rglob("summary.json")).read_text("utf-8"))))


def section(study: SavedStudy, name: str, guard: DrawingGuard) -> Section:
    """Builds the section of a study.

    Args:
        study: The study.
        name: Anchor of the section on the page, with which the figures' names begin.
        guard: Handles figures that cannot be drawn.
    """
    blocks, path, best = _summary(study), study.path, study.path / BEST
    if (path / REPEATS / "results.csv").exists():
        said, tables, problems = read_comparison(path / REPEATS, study.objective.scores[0])
        blocks += [*map(Text, said), *tables, *map(Text, problems)]
    elif study.content.get("num_repeats", 1):
        blocks.append(Text(_NOT_REPEATED.format(quote(str(path)))))
    figures = list_figures(study.trained, study.parameters, study.objective)
    drawn = (guard(what, make) for what, make in figures.items())
    blocks += [replace(figure, name=f"{name}-{figure.name}") for figure in drawn if figure is not None]
    shares = guard("importance", lambda: study.space and importance(study.finished, study.space, study.objective))
    if shares:
        listed = ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
        blocks.append(Text(f"Importance ({METHOD}): {listed}."))
    elif study.finished:
        blocks.append(Text(f"{NO_IMPORTANCE}."))
    if best.exists():
        blocks.append(Code(best.read_text("utf-8"), f"The best trial's experiment ({BEST})", folded=True))
    if study.content:
        blocks.append(as_yaml(study.content, f"The study ({STUDY})"))
    if best.exists():
        row = study.objective.best(study.finished)
        trial = f"lit-cfl report {quote(str(path / 'trials' / str(row['trial_id'])))}\n" if row else ""
        commands = f"{trial}lit-cfl run --config {quote(str(best))}"
        what = "the best trial's page, its experiment again"
        if path.parent.name != SEARCHES:  # the runs of a comparison have the best setting so far
            commands += f"\nlit-cfl tune --resume {quote(str(path))} --limits.trials {len(study.trained) + 10}"
            what += ", more trials"
        blocks.append(Code(commands, f"Commands: {what}"))
    return Section(f"Search {study.content.get('name', path.name)}", blocks)


def headline(study: SavedStudy) -> str:
    """Summarises the result in a sentence or two."""
    best, metric = study.objective.best(study.finished), study.objective.metric
    trials = f"{count_noun(len(study.trained), 'trial')}, {len(study.finished)} of them finished"
    if best is None:
        return f"{trials}; none has a {metric} yet."
    default = ", the base's own setting" if best["origin"] == DEFAULT else ""
    values = format_values({key: best[key] for key in study.parameters if best.get(key) is not None})
    return f"{trials}. The best, {best['trial_id']}{default}, has {metric} {best[metric]:.4f}: {values}."


def _summary(study: SavedStudy) -> list[Block]:
    statuses = [row["status"] for row in study.trained]
    ended = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    again = len(study.rows) - len(study.trained)
    more = f"; {count_noun(again, 'setting')} had been tried before" if again else ""
    uneven = describe_uneven({str(row["trial_id"]): row.get(CLIENTS) for row in study.finished})
    failed = [f"{row['trial_id']}: {row['error']}" for row in study.trained if row["status"] == FAILED_STATUS]
    lines = [f"{count_noun(len(study.trained), 'trial')}: {ended or 'none'}{more}. Judged by {study.objective.metric}."]
    if failed:
        lines.append(f"Failed: {'; '.join(failed[:_MOST_ERRORS])}.")
    if uneven and study.space is not None and not study.space.changes_data:
        lines.append(f"Note: {uneven}.")
    return [Text(line) for line in lines]
