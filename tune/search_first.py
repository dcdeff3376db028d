"""Searches every algorithm of a comparison before its runs: one study for each, with the same budget and rates."""

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lit_cfl.algorithms.mean_hooks import plain_kind
from lit_cfl.compare.arguments import SEARCH_TABLE, SEARCHES
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.search_table import COLUMNS
from lit_cfl.config.catalogue import classes, config_path
from lit_cfl.config.explain import mistake_in_value
from lit_cfl.config.files import read_config
from lit_cfl.config.variants import build
from lit_cfl.config.words import given_options, split_list
from lit_cfl.errors import InputError, Notice, join_ids, prefix_errors, suggest
from lit_cfl.experiment import Experiment, PlanOptions
from lit_cfl.metric_names import Row
from lit_cfl.options import ABOVE_0, FROM_1, bounded, require_options
from lit_cfl.progress.screen import Screen
from lit_cfl.storage.csv_log import write_rows
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.check import PreparedStudy, prepare
from lit_cfl.tune.cluster import connect_to_ray
from lit_cfl.tune.options import StudyRequest, parse_study
from lit_cfl.tune.record import DEFAULT, ERROR, FAILED_STATUS, SECONDS, STOPPED_STATUS, STUDY, TRIALS
from lit_cfl.tune.result import StudyResult, recorded_config
from lit_cfl.tune.search import run_study
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import as_plain, as_word, contains, corners, format_values, value_of
from lit_cfl.tune.study import Limits, Resources, Stopping, Study

_RATE, _CLUSTERS = "task.optimizer.lr", "algorithm.num_clusters"
_MULTIPLES = (0.1, 0.3, 1.0, 3.0)
_PACKAGED = Path(__file__).with_name("packaged_spaces.yaml")


@dataclass(frozen=True)
class SearchFirst:
    """How every algorithm of a comparison is searched before its runs.

    Args:
        trials: Trials of each algorithm, of which its own setting is the first.
        minutes: Core minutes of training of each algorithm, in place of `trials`: at least its own setting at each
            rate, then more trials until the minutes are spent; None = `trials`.
        seeds: Seeds of every trial, none of them the comparison's; empty = one above the comparison's.
        rates: Learning rates of all algorithms; empty = 0.1, 0.3, 1 and 3 times the first algorithm's.
        spaces: Options and their values by an algorithm's name, as in a study, or a YAML file of them. `points` among
            them lists settings to try first, and without options the only ones. Other algorithms have packaged spaces.
        stopping: When trials are stopped early, compared with those of the same algorithm.
        resources: Resources of each trial.
    """

    trials: int = bounded(16, FROM_1)
    minutes: float | None = bounded(None, ABOVE_0)
    seeds: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    spaces: dict[str, Any] = field(default_factory=dict)
    stopping: Stopping = field(default_factory=Stopping)
    resources: Resources = field(default_factory=Resources)

    @classmethod
    def of(cls, content: Any) -> "SearchFirst":
        """Builds it from plain values. Raises InputError for an option that does not fit."""
        if (wrong := mistake_in_value("search", content, cls)) is not None:
            raise InputError(wrong)
        groups = (("stopping", Stopping), ("resources", Resources))
        return cls(**content | {name: kind(**content[name]) for name, kind in groups if name in content})

    def __post_init__(self) -> None:
        require_options(self, "search.")


def read_search(groups: Sequence[Any], words: Sequence[str]) -> SearchFirst:
    """Reads the groups `search` of files, in order, and words `--search.<option>=VALUE`. Raises InputError."""
    given: dict[str, Any] = {}
    for group in groups:
        SearchFirst.of(group)
        given |= group
    for option, text in given_options(words):
        name, _, part = option.removeprefix("search.").partition(".")
        value = [parse_yaml(word) for word in split_list(text)] if name in ("seeds", "rates") else parse_yaml(text)
        before = given.get(name)
        given[name] = {**(before if isinstance(before, Mapping) else {}), part: value} if part else value
    return SearchFirst.of(given)


def plan_searches(comparison: Comparison, groups: Sequence[Any], words: Sequence[str]) -> Comparison:
    """Plans and checks the searches of a comparison, given as in `read_search`.

    Returns it with its `search`. Raises InputError.
    """
    search, names, after = read_search(groups, words), comparison.names, max(comparison.seeds) + 1
    seeds = search.seeds or [after]
    if both := sorted(set(seeds) & set(comparison.seeds)):
        raise InputError(
            f"search.seeds is {seeds}, but seed {both[0]} is the comparison's, whose runs must not choose anything; "
            f"give others: --search.seeds {after}"
        )
    if unknown := [name for name in search.spaces if name not in names]:
        near = suggest(unknown[0], names)
        raise InputError(f"search.spaces has {unknown[0]!r}{near}, but the algorithms here are {', '.join(names)}")
    rates = list(map(float, search.rates))
    with suppress(LookupError):  # a task of one's own may have no rate
        rate = value_of(comparison.first.to_dict(), _RATE)
        rates = rates or [float(f"{rate * factor:.6g}") for factor in _MULTIPLES]
    spaces = {name: _space(comparison, name, search.spaces.get(name), rates) for name in names}
    planned = replace(comparison, search=asdict(replace(search, seeds=seeds, rates=rates, spaces=spaces)))
    prepare_searches(planned)
    if search.minutes is None and search.trials <= len(rates) and any(one.keys() > {_RATE} for one in spaces.values()):
        rule = f"the first trials are those of the {len(rates)} learning rates"
        warnings.warn(f"search.trials is {search.trials}, but {rule}; give more to search other options", Notice, 2)
    return planned


def _space(comparison: Comparison, name: str, given: Any, rates: Sequence[float]) -> dict[str, Any]:
    """Returns the space of one algorithm: its options with the common learning rates, or `points` alone."""
    remedy = f"give its space: --search.spaces.{name} FILE"
    if given is None:
        kind = plain_kind(comparison.experiments[name].algorithm)
        if classes("algorithms").get(kind.__name__) is not kind:
            raise InputError(f"no space is packaged for {name}, whose class {kind.__name__} is your own; {remedy}")
        given = parse_yaml(_PACKAGED.read_text("utf-8"))[kind.__name__]
        is_open = name in comparison.open_clusters
        given = {option: values for option, values in given.items() if option != _CLUSTERS or is_open}
    if isinstance(given, str):
        with prefix_errors(f"search.spaces.{name}"):
            given = read_config(config_path(given))
    if not isinstance(given, Mapping) or "algorithm" in given:
        raise InputError(
            f"search.spaces.{name} is {given!r:.60}; write options and their values, as in a study's space"
        )
    if given.keys() == {"points"}:
        return dict(given)
    if not given and not rates:
        raise InputError(f"{name} has no option to search, since its task has no {_RATE}; {remedy}")
    return ({_RATE: {"choice": list(rates)}} if rates else {}) | dict(given)


def prepare_searches(comparison: Comparison) -> dict[str, PreparedStudy]:
    """Checks all searches of a comparison. Returns them by the algorithms' names. Raises InputError."""
    found = {}
    for name in comparison.names:
        try:
            found[name] = prepare(_study(comparison, name), Path(name), comparison.first)
        except InputError as error:  # which names options of a study
            message = re.sub(r"\blimits\.(?=trials)|(?<=--)(?=resources)", "search.", str(error)).replace("base.", "")
            raise InputError(f"search of {name}: {message}") from error
    return found


def _study(comparison: Comparison, name: str) -> Study:
    """Makes the study of one algorithm, whose base is its own setting."""
    search, experiment = SearchFirst.of(comparison.search), comparison.experiments[name]
    space, plan = dict(search.spaces[name]), experiment.plan or PlanOptions()
    points, trials = space.pop("points", None), search.trials
    if not space:
        space = _choices(points)
        trials = min(trials, len(points) + 1)
    elif points is None:
        points = _own_setting_at(search.rates, space, experiment.to_dict())
        points = points if search.minutes is not None else points[: trials - 1]
        trials = min(trials, len(points) + 1) if space.keys() == {_RATE} else trials
    return Study(
        base=experiment.to_dict() | {"seeds": search.seeds},
        space=space,
        name=experiment.name,
        points=points,
        seeds=search.seeds,
        stopping=search.stopping,
        resources=replace(search.resources, cpus=max(search.resources.cpus, plan.threads or 1)),
        limits=Limits(trials=trials if search.minutes is None else len(points) + 1),
        num_repeats=0,
    )


def _choices(points: Any) -> dict[str, Any]:
    """Makes the space that has nothing but the values in a list of settings."""
    if not isinstance(points, list) or not points or not all(isinstance(point, Mapping) for point in points):
        raise InputError(f"points is {points!r:.60}; write a list of settings, such as [{{algorithm.eta_g: 0.1}}]")
    values: dict[str, dict[str, Any]] = {}
    for option, value in (pair for point in points for pair in point.items()):
        values.setdefault(option, {})[as_word(value)] = value
    return {option: {"choice": list(found.values())} for option, found in values.items()}


def _own_setting_at(rates: Sequence[float], space: Mapping[str, Any], own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists an algorithm's own setting at each other rate of a space with these rates, so that it tries all of them.

    A value outside the space is replaced by the first one of the space.
    """
    if space.get(_RATE) != {"choice": list(rates)}:
        return []
    point: dict[str, Any] = {}
    for p in parse_space(space).parameters:
        point[p.key] = corners(p.distribution)[0]
        with suppress(LookupError):
            if contains(p.distribution, as_plain(value := value_of(own, p.option))):
                point[p.key] = value
    with suppress(LookupError):  # a task without a rate: the study refuses the rates that are given
        rates = [rate for rate in rates if rate != value_of(own, _RATE)]
    return [point | {_RATE: rate} for rate in rates]


def search_first(comparison: Comparison, path: Path, num_cpus: int | None, screen: Screen) -> Comparison:
    """Runs or resumes the searches of a comparison in its directory, and writes their table.

    Returns:
        The comparison of the best settings, which is recorded. An algorithm without a finished trial is left out.

    Raises:
        InputError: a search cannot run, or no trial has finished.
        Interrupted: SIGINT or SIGTERM arrived; the searches can be resumed.
    """
    _ = comparison.first.data.examples  # loaded here, for all searches and runs
    search, rows, best = SearchFirst.of(comparison.search), list[Row](), dict[str, Experiment]()
    with connect_to_ray(None, search.resources):
        for name, own in comparison.experiments.items():
            study, result = _search(comparison, name, path / SEARCHES / name, num_cpus, screen)
            rows.append(_row(name, study, result))
            if result.best is not None:
                changes = {"name": own.name, "seeds": list(comparison.seeds), "tracking": own.to_dict()["tracking"]}
                found = build(recorded_config(result.path / TRIALS / result.best["trial_id"]) | changes)
                best[name] = comparison.first.with_options(**found.to_dict())  # equal data are loaded once
    write_rows(path / SEARCH_TABLE, COLUMNS, rows)
    if not best:
        raise InputError(f"none of the searches in {path / SEARCHES} has a finished trial: {rows[0]['error']}")
    winners = replace(comparison, experiments=best, searched=_notes(search, rows))
    winners.write(path)
    return winners


def _search(
    comparison: Comparison, name: str, path: Path, num_cpus: int | None, screen: Screen
) -> tuple[Study, StudyResult]:
    """Runs or resumes the search of one algorithm until its budget is spent. Returns the study and its results."""
    search, trials = SearchFirst.of(comparison.search), None
    while True:
        begun = (path / STUDY).is_file()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # the comparison has announced the user's own classes
            study = parse_study(["--resume", str(path)]).study if begun else _study(comparison, name)
        at_once = None if num_cpus is None else max(1, int(num_cpus / study.resources.cpus))
        study = replace(study, limits=Limits(trials=trials or study.limits.trials, concurrent=at_once))
        say = (lambda line: None) if screen.quiet else (lambda line: screen.say(f"{name}: {line}"))
        result = run_study(StudyRequest(study, path, begun), say, comparison.first)
        done, spent, budget = len(result.trained), _core_seconds(study, result), 60 * (search.minutes or 0)
        # the searcher may find no further setting, and trials that fail at once would never spend the budget
        if done < study.num_trials or not 0 < spent < budget or search.spaces[name].keys() == {"points"}:
            return study, result
        trials = done + max(1, int((budget - spent) * done / spent))


def _core_seconds(study: Study, result: StudyResult) -> float:
    return study.resources.cpus * sum(row[SECONDS] or 0.0 for row in result.trained)


def _row(name: str, study: Study, result: StudyResult) -> Row:
    """Makes the row of an algorithm in `search.csv`."""
    trained, metric, best = result.trained, result.objective.metric, result.best
    row: Row = {"algorithm": name, "trials": len(trained), "rounds": sum(one["rounds"] for one in trained)}
    row |= {kind: sum(one["status"] == kind for one in trained) for kind in (STOPPED_STATUS, FAILED_STATUS)}
    row |= {"core_seconds": _core_seconds(study, result), "metric": metric, "own": trained[0][metric]}
    row["error"] = next((one[ERROR] for one in trained if one[ERROR]), None)
    if best is None:
        return row
    values = {option: best[option] for option in study.search_space.distributions() if best.get(option) is not None}
    short = {option.removeprefix("algorithm.").removeprefix("task.optimizer."): values[option] for option in values}
    own = " (the first trial)" if best["origin"] == DEFAULT else ""
    row |= {"best": best[metric], "setting": f"{format_values(short)}{own}", "trial": best["trial_id"]}
    return row | {"rate": best.get(_RATE)}


def _notes(search: SearchFirst, rows: Sequence[Row]) -> list[str]:
    """Describes the searches below the table of the comparison."""
    budget = f"at most {search.trials} trials" if search.minutes is None else f"{search.minutes:g} core minutes"
    seeds = join_ids(search.seeds)
    notes = [f"Settings: the best of {budget} each, on validation data and other seeds ({seeds}); see {SEARCH_TABLE}."]
    for row in rows:
        name, rate = row["algorithm"], row.get("rate")
        if row.get("best") is None:
            notes.append(f"{name} is left out, as no trial of its search has finished: {row['error']}.")
        elif len(search.rates) > 2 and rate in (min(search.rates), max(search.rates)):
            notes.append(f"{name} chose a learning rate at an end of the list, {rate:g}; --search.rates adds others.")
    return notes
