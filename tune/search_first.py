"""Searches every algorithm of a comparison before its runs: one study for each, with the same budget and rates."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lit_cfl.algorithms.mean_hooks import plain_kind
from lit_cfl.compare.arguments import SEARCH_TABLE, SEARCHES
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.search_table import COLUMNS
from lit_cfl.config.catalogue import classes
from lit_cfl.config.explain import mistake_in_value
from lit_cfl.config.files import read_config
from lit_cfl.config.variants import build
from lit_cfl.config.words import given_options, split_list
from lit_cfl.errors import InputError, Notice, count_noun, join_ids, suggest
from lit_cfl.experiment import Experiment, PlanOptions
from lit_cfl.metric_names import Row
from lit_cfl.progress.screen import Screen
from lit_cfl.storage.csv_log import write_rows
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.check import PreparedStudy, prepare, use_loaded_data
from lit_cfl.tune.cluster import connect_to_ray
from lit_cfl.tune.options import StudyRequest, parse_study
from lit_cfl.tune.record import (
    DEFAULT,
    ERROR,
    FAILED_STATUS,
    FINISHED_STATUS,
    SECONDS,
    STOPPED_STATUS,
    STUDY,
    TRIALS,
)
from lit_cfl.tune.result import StudyResult, recorded_config
from lit_cfl.tune.search import run_study
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import as_plain, as_word, contains, corners, format_values, value_of
from lit_cfl.tune.study import Limits, Resources, Stopping, Study

_RATE, _CLUSTERS = "task.optimizer.lr", "algorithm.num_clusters"
_MULTIPLES = (0.1, 0.3, 1.0, 3.0)
_TRIALS = 16
_STATUSES = (FINISHED_STATUS, STOPPED_STATUS, FAILED_STATUS)
_PACKAGED = Path(__file__).with_name("packaged_spaces.yaml")
_RENAMED = (
    ("limits.core_minutes", "search.minutes"),
    ("limits.", "search."),
    ("--resources.", "--search.resources."),
    ("base.device", "device"),
)  # options of a study, and what a comparison calls them


@dataclass(frozen=True)
class SearchFirst:
    """How every algorithm of a comparison is searched before its runs.

    Args:
        trials: Trials of each algorithm, of which its own setting is the first; None = 16, or as many as `minutes`
            allow.
        minutes: Core minutes of training of each algorithm, after which no further trial starts; None = no limit.
        seeds: Seeds of every trial, none of them the comparison's; empty = one above the comparison's.
        rates: Learning rates of all algorithms; empty = 0.1, 0.3, 1 and 3 times the first algorithm's.
        spaces: Options and their values by an algorithm's name, as in a study, or a YAML file of them. `points` among
            them lists settings to try first, and without options the only ones. Other algorithms have packaged spaces.
        stopping: When trials are stopped early, compared with those of the same algorithm.
        resources: Resources of each trial.
    """

    trials: int | None = None
    minutes: float | None = None
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
        kinds = {"stopping": Stopping, "resources": Resources}
        return cls(**content | {name: kind(**content[name]) for name, kind in kinds.items() if name in content})


def read_search(groups: Sequence[Any], words: Sequence[str]) -> SearchFirst:
    """Reads the options of a search.

    Args:
        groups: Groups `search` of the experiment's files, in order.
        words: Words `--search.<option>=VALUE`, which replace the files' options.

    Raises:
        InputError: an option does not fit.
    """
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


def plan_searches(
    comparison: Comparison, groups: Sequence[Any], words: Sequence[str], open_clusters: Sequence[str]
) -> Comparison:
    """Plans and checks the searches of a comparison. Returns it with its `search`.

    Args:
        comparison: The comparison, whose experiments are the algorithms' own settings.
        groups, words: See `read_search`.
        open_clusters: Names of the algorithms whose number of clusters is not given.

    Raises:
        InputError: one of the searches could not run.
    """
    search, names = read_search(groups, words), comparison.names
    seeds = search.seeds or [max(comparison.seeds) + 1]
    if both := sorted(set(seeds) & set(comparison.seeds)):
        raise InputError(
            f"search.seeds is {seeds}, but seed {both[0]} is the comparison's, whose runs must not choose anything; "
            f"give others: --search.seeds {max(comparison.seeds) + 1}"
        )
    if unknown := [name for name in search.spaces if name not in names]:
        raise InputError(
            f"search.spaces: no algorithm here is called {unknown[0]!r}{suggest(unknown[0], names)}; give one of "
            f"{', '.join(names)}"
        )
    rates = list(map(float, search.rates)) or _rates_around(_rate_of(comparison.first))
    spaces = {
        name: _space(name, one, search.spaces.get(name), rates, name in open_clusters)
        for name, one in comparison.experiments.items()
    }
    planned = replace(comparison, search=asdict(replace(search, seeds=seeds, rates=rates, spaces=spaces)))
    prepare_searches(planned)
    return planned


def _rate_of(experiment: Experiment) -> float | None:
    with suppress(LookupError):
        return float(value_of(experiment.to_dict(), _RATE))
    return None


def _rates_around(rate: float | None) -> list[float]:
    return [] if rate is None else [float(f"{rate * factor:.6g}") for factor in _MULTIPLES]


def _space(
    name: str, experiment: Experiment, given: Any, rates: Sequence[float], open_clusters: bool
) -> dict[str, Any]:
    """Returns the space of one algorithm: its options with the common learning rates, or `points` alone."""
    own = f"--search.spaces.{name} FILE"
    if isinstance(given, str):
        given = read_config(given)
    elif given is None:
        kind = plain_kind(experiment.algorithm)
        if classes("algorithms").get(kind.__name__) is not kind:
            raise InputError(f"{name} has no packaged space, since {kind.__name__} is your own class; give one: {own}")
        given = parse_yaml(_PACKAGED.read_text("utf-8"))[kind.__name__]
        given = {option: what for option, what in given.items() if option != _CLUSTERS or open_clusters}
    if not isinstance(given, Mapping) or "algorithm" in given:
        raise InputError(
            f"search.spaces.{name} is {given!r:.60}; write options and their values, such as "
            "{algorithm.eta_g: {uniform: [0, 1]}}"
        )
    if given.keys() == {"points"}:
        return dict(given)
    common = {} if _rate_of(experiment) is None else {_RATE: {"choice": list(rates)}}
    if not given and not common:
        raise InputError(f"{name} has nothing to search, since its task has no {_RATE}; give its space: {own}")
    return common | dict(given)


def prepare_searches(comparison: Comparison) -> dict[str, PreparedStudy]:
    """Checks all searches of a comparison. Returns them by the algorithms' names. Raises InputError."""
    found = {}
    for name in comparison.names:
        with _in_words_of_comparisons(name):
            found[name] = prepare(_study(comparison, name), Path(name), comparison.first)
    return found


@contextmanager
def _in_words_of_comparisons(name: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        text = str(error)
        for old, new in _RENAMED:
            text = text.replace(old, new)
        raise InputError(f"search of {name}: {text}") from error


def _study(comparison: Comparison, name: str) -> Study:
    """Makes the study of one algorithm from the record of the comparison's search."""
    search, experiment = SearchFirst.of(comparison.search), comparison.experiments[name]
    space, options = dict(search.spaces[name]), experiment.to_dict()
    points = space.pop("points", None)
    trials = search.trials or (_TRIALS if search.minutes is None else None)
    if not space:
        space, needed = _choices(points), len(points) + 1
        trials = needed if trials is None else min(trials, needed)  # too few are refused
    elif points is None:
        points = _own_setting_at(search.rates, space, options)[: trials and trials - 1]
    plan = experiment.plan or PlanOptions()
    return Study(
        base=options | {"seeds": search.seeds},
        space=space,
        name=experiment.name,
        points=points,
        seeds=search.seeds,
        stopping=search.stopping,
        resources=replace(search.resources, cpus=max(search.resources.cpus, plan.threads or 1)),
        limits=Limits(trials=trials, core_minutes=search.minutes),
        num_repeats=0,
    )


def _choices(points: Any) -> dict[str, Any]:
    """Makes the space that has nothing but the values in a list of settings."""
    if not isinstance(points, list) or not points or not all(isinstance(point, Mapping) for point in points):
        raise InputError(f"points is {points!r:.60}; write a list of settings, such as [{{algorithm.eta_g: 0.1}}]")
    options = dict.fromkeys(option for point in points for option in point)
    values = {option: [point[option] for point in points if option in point] for option in options}
    return {option: {"choice": list({as_word(one): one for one in found}.values())} for option, found in values.items()}


def _own_setting_at(
    rates: Sequence[float], space: Mapping[str, Any], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Lists the algorithm's own setting at each other learning rate, so that every algorithm tries every rate.

    A value outside the space is replaced by the first one of the space.
    """
    own = {p.key: corners(p.distribution)[0] for p in parse_space(space).parameters}
    for p in parse_space(space).parameters:
        with suppress(LookupError):
            value = value_of(options, p.option)
            own[p.key] = value if contains(p.distribution, as_plain(value)) else own[p.key]
    others = [rate for rate in rates if rate != value_of(options, _RATE)]
    return [own | {_RATE: rate} for rate in others] if space.get(_RATE) == {"choice": list(rates)} else []


def search_first(comparison: Comparison, path: Path, num_cpus: int | None, screen: Screen) -> Comparison:
    """Runs or resumes the searches of a comparison, and writes their table.

    Args:
        comparison: The comparison, whose files are written.
        path: Directory of the comparison.
        num_cpus: Cores to use; None = all.
        screen: Shows the progress.

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
            request = _request(comparison, name, path / SEARCHES / name, num_cpus)

            def say(line: str, name: str = name) -> None:
                if not screen.quiet:
                    screen.say(f"{name}: {line}")

            with _in_words_of_comparisons(name):
                result = run_study(request, say, comparison.first)
            rows.append(_row(name, request.study, result))
            if result.best is not None:
                options = own.to_dict() | {"seeds": list(comparison.seeds)}
                changes = {option: options[option] for option in ("name", "seeds", "tracking")}
                best[name] = build(recorded_config(result.path / TRIALS / result.best["trial_id"]) | changes)
                use_loaded_data(best[name], comparison.first)
    write_rows(path / SEARCH_TABLE, COLUMNS, rows)
    if not best:
        raise InputError(f"none of the searches in {path / SEARCHES} has a finished trial: {rows[0]['error']}")
    found = replace(comparison, experiments=best, searched=_notes(search, rows))
    found.write(path)
    return found


def _request(comparison: Comparison, name: str, path: Path, num_cpus: int | None) -> StudyRequest:
    """Returns the study of one algorithm: a new one, or the recorded one, whose trials continue."""
    if (path / STUDY).is_file():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # the comparison has announced the user's own classes
            request = parse_study(["--resume", str(path)])
    else:
        request = StudyRequest(_study(comparison, name), path)
    study = request.study
    at_once = None if num_cpus is None else max(1, int(num_cpus / study.resources.cpus))
    return replace(request, study=replace(study, limits=replace(study.limits, concurrent=at_once)))


def _row(name: str, study: Study, result: StudyResult) -> Row:
    """Makes the row of an algorithm in `search.csv`."""
    trained, metric, best = result.trained, result.objective.metric, result.best
    counts = {status: sum(row["status"] == status for row in trained) for status in _STATUSES}
    rounds = sum(row["rounds"] * (row["seeds"] if row["status"] == FINISHED_STATUS else 1) for row in trained)
    row: Row = {"algorithm": name, "trials": len(trained), **counts, "rounds": rounds}
    row |= {"core_seconds": study.resources.cpus * sum(row[SECONDS] or 0.0 for row in trained), "metric": metric}
    row |= {"own": trained[0][metric], "error": next((one[ERROR] for one in trained if one[ERROR]), None)}
    if best is None:
        return row
    values = {option: best[option] for option in study.search_space.distributions() if best.get(option) is not None}
    short = {option.removeprefix("algorithm.").removeprefix("task.optimizer."): values[option] for option in values}
    own = " (its own setting)" if best["origin"] == DEFAULT else ""
    row |= {"best": best[metric], "setting": f"{format_values(short)}{own}", "trial": best["trial_id"]}
    return row | {"rate": best.get(_RATE)}


def _notes(search: SearchFirst, rows: Sequence[Row]) -> list[str]:
    """Describes the searches for the table of the comparison."""
    seeds, budgets = f"seed{'s' if len(search.seeds) > 1 else ''} {join_ids(search.seeds)}", []
    if search.trials or search.minutes is None:
        budgets.append(f"{count_noun(search.trials or _TRIALS, 'trial')}")
    if search.minutes is not None:
        budgets.append(f"{search.minutes:g} core minutes")
    notes = [
        f"Options were searched first, on validation data under {seeds}, with {' or '.join(budgets)} for each "
        f"algorithm; see {SEARCH_TABLE}."
    ]
    for row in rows:
        if row.get("best") is None:
            of = count_noun(row["trials"], "trial")
            notes.append(f"{row['algorithm']} is left out: none of its {of} has finished ({row['error']}).")
        elif len(search.rates) > 1 and row["rate"] in (min(search.rates), max(search.rates)):
            end = "smallest" if row["rate"] == min(search.rates) else "largest"
            notes.append(f"{row['algorithm']} chose the {end} learning rate; --search.rates may give more of them.")
    return notes
