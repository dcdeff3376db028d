"""Builds the section of a study: trials, history, importance of parameters, traffic, results on new seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from lit_cfl.errors import count_noun
from lit_cfl.metric_names import Row
from lit_cfl.pictures.figure import Table, finite_number
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.search import TRIAL_STYLES
from lit_cfl.report.blocks import Block, Code, Section, Text
from lit_cfl.report.run_files import attempt
from lit_cfl.scores import CLASSIFIER, read_scores
from lit_cfl.storage.csv_log import read_table
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.pictures import NO_IMPORTANCE, importance, list_figures
from lit_cfl.tune.record import CLIENTS, DEFAULT, FINISHED_STATUS, STUDY, TABLE, describe_uneven
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import Space, format_values

_MOST_ERRORS = 5
_IN_WORDS = {"stopped": "stopped early"}
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
    def parameters(self) -> list[str]:
        """Names of the searched parameters, in the order of the space, as in the study's folder of pictures."""
        of_space = () if self.space is None else self.space.distributions()
        return list(dict.fromkeys([*of_space, *(key for row in self.rows for key in row["values"])]))


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
    names = list(space.distributions()) if space else []
    read = attempt(problems, table, lambda: _rows(table, names)) if table.exists() else None
    if not read:
        problems.append(f"{path} has no trial yet.")
    return SavedStudy(path, content, space, objective or Objective(), read or [], list(dict.fromkeys(problems)))


def _rows(table: Path, names: Sequence[str]) -> list[Row]:
    rows = read_table(table, text=("trial_id", "repeats"))
    return [row | {"values": {name: row[name] for name in names if row.get(name) is not None}} for row in rows]


def _scores(trial: Path) -> Any:
    try:
        return read_scores(json.loads(next(trial.rglob("summary.json")).read_text("utf-8")))
    except (StopIteration, OSError, ValueError):
        return None


def section(study: SavedStudy, name: str, guard: DrawingGuard) -> Section:
    """Builds the section of a study."""
    trained, objective = study.trained, study.objective
    shares = guard("importance", lambda: _shares(study)) or {}
    made = list_figures(trained, study.parameters, objective, shares)
    figures = [figure for what, make in made.items() if (figure := guard(what, make)) is not None]
    blocks: list[Block] = [*_summary(study), *(replace(figure, name=f"{name}-{figure.name}") for figure in figures)]
    repeated = _repeats_table(study)
    if repeated is not None:
        blocks.insert(len(_summary(study)), repeated)
    elif study.content.get("num_repeats", 1):
        blocks.insert(len(_summary(study)), Text(_NOT_REPEATED.format(quote(str(study.path)))))
    if not shares and any(row["status"] == FINISHED_STATUS for row in trained):
        blocks.append(Text(f"{NO_IMPORTANCE}."))
    best = study.path / "best.yaml"
    if best.exists():
        blocks.append(Code(best.read_text("utf-8"), "The best trial's experiment (best.yaml)", folded=True))
    if study.content:
        text = yaml.safe_dump(dict(study.content), sort_keys=False, allow_unicode=True)
        blocks.append(Code(text, "The study (study.yaml)", folded=True))
    path = study.path
    if best.exists():
        row = objective.best([row for row in trained if row["status"] == FINISHED_STATUS])
        trial = f"lit-cfl report {quote(str(path / 'trials' / str(row['trial_id'])))}\n" if row else ""
        more = f"lit-cfl tune --resume {quote(str(path))} --limits.trials {len(trained) + 10}"
        commands = f"{trial}lit-cfl run --config {quote(str(best))}\n{more}"
        blocks.append(Code(commands, "Commands: the best trial's page, its experiment again, more trials"))
    return Section(f"Search {study.content.get('name', path.name)}", blocks)


def _shares(study: SavedStudy) -> Mapping[str, float]:
    """Computes the importance of parameters, leaving out finished trials that lack the metric."""
    metric = study.objective.metric
    known_rows = [
        row for row in study.trained if row["status"] != FINISHED_STATUS or finite_number(row.get(metric)) is not None
    ]
    return {} if study.space is None else importance(known_rows, study.space, study.objective)


def headline(study: SavedStudy) -> str:
    """Summarises the result in a sentence or two."""
    finished = [row for row in study.trained if row["status"] == FINISHED_STATUS]
    best, metric = study.objective.best(finished), study.objective.metric
    trials = f"{count_noun(len(study.trained), 'trial')}, {len(finished)} of them finished"
    if best is None:
        return f"{trials}; none has a {metric} yet."
    default = ", the base's own setting" if best["origin"] == DEFAULT else ""
    values = format_values(best["values"])
    return f"{trials}. The best, {best['trial_id']}{default}, has {metric} {best[metric]:.4f}: {values}."


def _summary(study: SavedStudy) -> list[Block]:
    counts = {status: sum(row["status"] == status for row in study.trained) for status in TRIAL_STYLES}
    ended = ", ".join(f"{count} {_IN_WORDS.get(status, status)}" for status, count in counts.items() if count)
    again = len(study.rows) - len(study.trained)
    more = f"; {count_noun(again, 'setting')} had been tried before" if again else ""
    finished = {str(row["trial_id"]): row.get(CLIENTS) for row in study.trained if row["status"] == FINISHED_STATUS}
    uneven = None if study.space is None or study.space.changes_data else describe_uneven(finished)
    failed = [f"{row['trial_id']}: {row['error']}" for row in study.trained if row["error"]][:_MOST_ERRORS]
    return [
        Text(
            f"{count_noun(len(study.trained), 'trial')}: {ended or 'none'}{more}. Judged by {study.objective.metric}."
        ),
        *([Text(f"Failed: {'; '.join(failed)}.")] if failed else []),
        *([Text(f"Note: {uneven}.")] if uneven else []),
    ]


def _repeats_table(study: SavedStudy) -> Table | None:
    try:
        rows = read_table(study.path / "repeats" / "results.csv")
        cells = [[str(row["algorithm"]), *(_spread(row, split) for split in ("test", "val"))] for row in rows]
        last = rows[-1]
        gain = f"{last['difference']:.4f} ({last['difference_low']:.4f} to {last['difference_high']:.4f})"
        note = f"Means and standard deviations. Paired difference on test data: {gain}." if len(rows) > 1 else ""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Table("The best and the default setting on new seeds", ["", "test", "val"], cells, note=note)


def _spread(row: Row, split: str) -> str:
    deviation = row[f"{split}_sd"]
    return f"{row[f'{split}_mean']:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")
