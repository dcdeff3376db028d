"""The section of a study: its trials, history, importance, what costs what, and the best on new seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from lit_cfl.metric_names import Row
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.panels import BLUE, ORANGE, SKY, VERMILLION, Curve, Panel, Points, Style
from lit_cfl.report.blocks import Block, Code, Figure, Section, Table, Text
from lit_cfl.report.over_rounds import cut_note, thin
from lit_cfl.report.run_files import attempt, known
from lit_cfl.scores import CLASSIFIER, recorded_scores
from lit_cfl.statistics import interval, paired_difference
from lit_cfl.storage.digests import read_sealed
from lit_cfl.storage.lock import is_held
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.importance import METHOD, importance
from lit_cfl.tune.objective import TRAFFIC, Objective
from lit_cfl.tune.pictures import pareto_front
from lit_cfl.tune.record import FAILED_STATUS, FINISHED_STATUS, ROUNDS, RUNNING, STOPPED_STATUS, read_record
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import Space, in_words
from lit_cfl.tune.study import recorded_id
from lit_cfl.tune.study_directory import STUDY

_MOST_TRIALS, _MOST_SLICES = 500, 12
_INTERRUPTED = "interrupted"  # a trial that began, in a study that no process works on
_STYLES = {
    FINISHED_STATUS: Style(BLUE, marker="o", size=4),
    STOPPED_STATUS: Style(SKY, marker="v", size=4),
    RUNNING: Style("#999999", marker="D", size=4),
    _INTERRUPTED: Style("#999999", marker="D", size=4),
    FAILED_STATUS: Style(VERMILLION, marker="X", size=4),
    "best so far": Style(ORANGE),
    "Pareto front": Style(ORANGE, marker="s", size=5),
}


@dataclass(frozen=True)
class SavedStudy:
    """What the directory of a study holds.

    Args:
        path: of it.
        content: of `study.yaml`.
        space: that is searched; None where it cannot be read.
        objective: that trials are judged by.
        rows: of the trials, by number: status, values of the setting, and figures.
        problems: what is missing or damaged, in sentences.
    """

    path: Path
    content: Mapping[str, Any]
    space: Space | None
    objective: Objective
    rows: Sequence[Row]
    problems: Sequence[str]

    @property
    def trained(self) -> list[Row]:
        """The trials that were trained; the others repeat a setting."""
        return [row for row in self.rows if row["repeats"] is None]

    @property
    def parameters(self) -> list[str]:
        """The names of all values that a trial may have."""
        return list(dict.fromkeys(key for row in self.rows for key in row["values"]))


def read_study(path: Path) -> SavedStudy:
    """Reads the directory of a study, as far as it can be read."""
    problems: list[str] = []
    file = path / STUDY
    content = attempt(problems, file, lambda: dict(parse_yaml(read_sealed(file)[0]))) or {}
    study_id = attempt(problems, file, lambda: recorded_id(path)) if content else None
    trials = sorted(part for part in path.glob("trials/*/") if (part / "trial.json").exists())
    running = RUNNING if is_held(path) else _INTERRUPTED
    rows = [_row(problems, trial, study_id, running) for trial in trials]
    scores = next(filter(None, (_scores(trial) for trial in trials)), CLASSIFIER)
    objective = attempt(
        problems, file, lambda: Objective.of(content.get("metric"), scores, content.get("second_metric"))
    )
    space = attempt(problems, file, lambda: parse_space(content["space"])) if content else None
    found = [row for row in rows if row is not None]
    if not found:
        problems.append(f"{path} has no trial yet.")
    return SavedStudy(path, content, space, objective or Objective(), found, list(dict.fromkeys(problems)))


def _row(problems: list[str], trial: Path, study_id: str | None, running: str) -> Row | None:
    if study_id is None:
        return None
    record = attempt(problems, trial / "trial.json", lambda: read_record(trial, study_id))
    if record is None:
        return None
    status = running if record.status == RUNNING else record.status
    row: Row = {"trial_id": record.trial_id, "status": status, "origin": record.origin}
    row |= {"repeats": record.repeats, "values": record.values, "error": record.told.get("error")}
    numbers = {key: number for key, value in record.told.items() if (number := known(value)) is not None}
    return row | record.values | numbers


def _scores(trial: Path) -> Any:
    try:
        return recorded_scores(json.loads(next(trial.rglob("summary.json")).read_text("utf-8")))
    except (StopIteration, OSError, ValueError):
        return None


def section(study: SavedStudy, name: str, guard: DrawingGuard) -> Section:
    """Makes the section of a study."""
    trained, objective = study.trained, study.objective
    figures: list[Figure | None] = [
        guard("history", lambda: _history(study, name)),
        guard("importance", lambda: _importance(study, name)),
        guard("Pareto front", lambda: _pareto(study, name)),
        *(guard("values of the parameters", lambda: _slices(study, name)) or []),
    ]
    blocks: list[Block] = [*_summary(study), *(figure for figure in figures if figure is not None)]
    repeated = _repeated(study)
    if repeated is not None:
        blocks.insert(len(_summary(study)), repeated)
    if trained:
        blocks.append(_trials(study))
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
        commands = f"{trial}lit-cfl run --config {quote(str(best))}\nlit-cfl tune --resume {quote(str(path))}"
        blocks.append(Code(commands, "Commands: the best trial's page, its experiment again, more trials"))
    return Section(f"Search {study.content.get('name', path.name)}", blocks)


def headline(study: SavedStudy) -> str:
    """Says in a sentence what came out."""
    finished = [row for row in study.trained if row["status"] == FINISHED_STATUS]
    best, metric = study.objective.best(finished), study.objective.metric
    counted = f"{len(study.trained)} trials, {len(finished)} of them finished"
    if best is None:
        return f"{counted}; none has a {metric} yet."
    return f"{counted}. The best, {best['trial_id']}, has {metric} {best[metric]:.4f}: {in_words(best['values'])}."


def _summary(study: SavedStudy) -> list[Block]:
    counts = {status: sum(row["status"] == status for row in study.trained) for status in _STYLES}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    again = len(study.rows) - len(study.trained)
    more = f"; {again} settings had been tried before" if again else ""
    return [Text(f"{len(study.trained)} trials: {told or 'none'}{more}. Judged by {study.objective.metric}.")]


def _value(row: Row, study: SavedStudy) -> float | None:
    return known(row.get(study.objective.metric))


def _history(study: SavedStudy, name: str) -> Figure | None:
    rows = [row for row in study.trained if _value(row, study) is not None]
    if not rows:
        return None
    points = [_points(status, [row for row in rows if row["status"] == status], study) for status in _STYLES]
    best, so_far = [], []
    for row in study.trained:
        so_far.append(row)
        top = study.objective.best([one for one in so_far if one["status"] == FINISHED_STATUS])
        if top is not None:
            best.append((int(row["trial_id"]), float(top[study.objective.metric])))
    curve = []
    if best:
        x = [value for number, _ in best for value in (number, number)][1:]
        y = [value for _, height in best for value in (height, height)][:-1]
        curve = [Curve("best so far", x, y)]
    metric = study.objective.metric
    return Figure(
        f"{name}-history",
        "History of the search",
        Panel("", "trial", metric, curve, [part for part in points if part.x]),
        f"Each trial's last {metric}; those that were stopped early ran fewer rounds.",
        f"Scatter plot of {len(rows)} trials"
        + (f"; the best so far goes from {best[0][1]:.4g} to {best[-1][1]:.4g}." if best else "."),
        _STYLES,
        _trials(study, "History: values"),
    )


def _points(status: str, rows: Sequence[Row], study: SavedStudy, key: str = "trial_id") -> Points:
    x = [float(row[key]) for row in rows]
    y = [float(row[study.objective.metric]) for row in rows]
    return Points(status, x, y, notes=[_note(row, study) for row in rows])


def _note(row: Row, study: SavedStudy) -> str:
    values = "\n".join(f"{key} {_short(value)}" for key, value in row["values"].items())
    return f"trial {row['trial_id']}, {row.get(ROUNDS, 0):g} rounds\n{study.objective.metric} " + (
        f"{row[study.objective.metric]:.4f}\n{values}"
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _importance(study: SavedStudy, name: str) -> Figure | None:
    problems: list[str] = []
    shares: Mapping[str, float] = {}
    space = study.space
    if space is not None:
        told = [row for row in study.trained if row["status"] != FINISHED_STATUS or _value(row, study) is not None]
        shares = attempt(problems, study.path, lambda: importance(told, space, study.objective)) or {}
    if not shares:
        return None
    order = sorted(shares, key=shares.__getitem__)
    place = {key: k for k, key in enumerate(order)}
    lines = [Curve("importance", [0.0, shares[key]], [place[key], place[key]]) for key in order]
    dots = Points("importance", [shares[key] for key in order], [place[key] for key in order],
                  notes=[f"{key}\n{shares[key]:.3f}" for key in order])  # fmt: skip
    told_shares = ", ".join(f"{key} {shares[key]:.2f}" for key in reversed(order))
    return Figure(
        f"{name}-importance",
        "Importance of the parameters",
        Panel("", f"share ({METHOD})", "", lines, [dots], y_ticks={float(k): key for key, k in place.items()}),
        "Each parameter's share in what makes the best quarter of the finished trials the best; rough with few trials.",
        f"Dot plot of importance: {told_shares}.",
        {"importance": Style(BLUE, size=4)},
        Table("Importance: values", ["parameter", "share"], [[k, f"{shares[k]:.3f}"] for k in reversed(order)], True),
        height=max(220, 90 + 30 * len(order)),
    )


def _pareto(study: SavedStudy, name: str) -> Figure | None:
    rows = [
        row
        for row in study.trained
        if row["status"] == FINISHED_STATUS and _value(row, study) is not None and known(row.get(TRAFFIC)) is not None
    ]
    if len({row[TRAFFIC] for row in rows}) < 2:
        return None
    front = sorted(pareto_front(rows, study.objective), key=lambda row: float(row[TRAFFIC]))
    metric = study.objective.metric
    dots = [
        _points(FINISHED_STATUS, [row for row in rows if row not in front], study, TRAFFIC),
        _points("Pareto front", front, study, TRAFFIC),
    ]
    line = Curve("Pareto front", [float(row[TRAFFIC]) for row in front], [float(row[metric]) for row in front])
    listed = [[row["trial_id"], f"{row[TRAFFIC]:.4g}", f"{row[metric]:.4f}", in_words(row["values"])] for row in front]
    ids = ", ".join(row["trial_id"] for row in front)
    return Figure(
        f"{name}-pareto",
        "What it costs: Pareto front",
        Panel("", "traffic, MiB", metric, [line], [part for part in dots if part.x]),
        "Finished trials by traffic; no other one is at least as good in both than those on the front.",
        f"Scatter plot of {len(rows)} trials by traffic and {metric}; on the front: {ids}.",
        _STYLES,
        Table("Pareto front: values", ["trial", "MiB", metric, "setting"], listed, folded=True),
    )


def _slices(study: SavedStudy, name: str) -> list[Figure]:
    rows = [row for row in study.trained if _value(row, study) is not None]
    figures: list[Figure] = []
    for number, key in enumerate(study.parameters):
        own = [row for row in rows if row["values"].get(key) is not None]
        values = [row["values"][key] for row in own]
        if len({str(value) for value in values}) < 2 or len(figures) == _MOST_SLICES:
            continue
        numeric = all(known(value) is not None for value in values)
        words = [] if numeric else sorted({str(value) for value in values})
        placed = [row | {"at": row["values"][key] if numeric else words.index(str(row["values"][key]))} for row in own]
        points = [_points(s, [row for row in placed if row["status"] == s], study, "at") for s in _STYLES]
        figures.append(
            Figure(
                f"{name}-slice-{number}",
                key,
                Panel(
                    "",
                    key,
                    study.objective.metric,
                    points=[part for part in points if part.x],
                    x_ticks={float(k): word for k, word in enumerate(words)},
                ),
                f"Trials by their value of {key}.",
                f"Scatter plot of {len(own)} trials by {key} and {study.objective.metric}.",
                _STYLES,
                height=280,
            )
        )
    return figures


def _trials(study: SavedStudy, title: str = "Trials") -> Table:
    keys, metric = study.parameters, study.objective.metric
    rows = [
        [row["trial_id"], row["status"], row["origin"], *(_cell(row["values"].get(key)) for key in keys),
         _cell(row.get(ROUNDS)), _cell(row.get(TRAFFIC)), _cell(_value(row, study)), row.get("error")]
        for row in study.trained
    ]  # fmt: skip
    head = ["trial", "status", "origin", *keys, "rounds", "MiB", metric, "error"]
    kept = [k for k in range(len(head)) if k < 3 or any(row[k] is not None for row in rows)]
    shown = [[rows[n][k] for k in kept] for n in thin(len(rows), _MOST_TRIALS)]
    note = cut_note(len(shown), len(rows), "trials")
    return Table(title, [head[k] for k in kept], shown, folded=True, note=note)


def _cell(value: object) -> str | None:
    return None if value is None else _short(value)


def _repeated(study: SavedStudy) -> Table | None:
    file = study.path / "repeats" / "repeats.json"
    try:
        found = json.loads(file.read_text("utf-8"))
        names, rows = (study.objective.metric, study.objective.test), []
        values: dict[str, list[dict[int, float | None]]] = {}
        for setting, summaries in found.items():
            values[setting] = [{int(s): known(one.get(name)) for s, one in summaries.items()} for name in names]
            cells = [str(interval([v for v in own.values() if v is not None])) for own in values[setting]]
            rows.append([setting, len(summaries), *cells])
        gain = paired_difference(values["best"][1], values["default"][1])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    note = f"Means and 95 % intervals. Best minus default on test data, seed by seed: {gain}."
    return Table("The best and the default setting on new seeds", ["", "seeds", *names], rows, note=note)
