"""The whole space is checked before anything starts: one bad corner would otherwise show after hours."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment, Prepared
from tune.candidate import Config, build
from tune.objective import require_validation
from tune.spaces import Space


def check_space(base: Config, space: Space, seeds: list[int] | None = None) -> list[Experiment]:
    """Builds the base and every corner of the space, and asks each algorithm about the base's clients.

    Returns:
        the base's experiment, then one for each corner.

    Raises:
        InputError: an option that is not there (with the nearest that is), a value that is refused, data without a
            validation part.
    """
    default = build(base)
    seeds = seeds or default.seeds
    prepared = replace(default, seeds=seeds).prepare(seeds[0])
    require_validation(prepared)
    return [default, *(_corner(base, space, point, prepared) for point in space.corners())]


def _corner(base: Config, space: Space, point: Mapping[str, Any], prepared: Prepared) -> Experiment:
    try:
        experiment = build(base, space.words(point))
        if experiment.config is not None and experiment.config["data"] == prepared.experiment.described()["data"]:
            experiment.algorithm.check(prepared.engine.at(0, prepared.data))
    except InputError as error:
        raise InputError(f"space: {_in_words(point)}: {error}") from error
    return experiment


def _in_words(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in point.items())


def first_clustering_round(corners: list[Experiment]) -> int:
    """The latest first clustering round in the space: no trial may be stopped before it."""
    return max(experiment.algorithm.first_clustering_round() for experiment in corners)
