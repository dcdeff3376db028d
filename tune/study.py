"""A study, as its file describes it: base, search space, objective, and limits."""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError
from lit_cfl.options import ABOVE_0, FROM_0, FROM_1, Bounds, bounded, require_options
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.config_file import as_yaml
from lit_cfl.storage.given_paths import require_folder_name
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.space_file import parse_points, parse_space
from lit_cfl.tune.spaces import Space

_DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class Resources:
    """Resources of one trial while it runs.

    Args:
        cpus: Cores, above 0; also PyTorch's threads, unless the base sets `plan.threads`.
        gpus: Share of a GPU, 0 or more; 0.25 = four trials on each, with a quarter of its memory each.
    """

    cpus: float = bounded(1.0, ABOVE_0)
    gpus: float = bounded(0.0, FROM_0)

    def __post_init__(self) -> None:
        require_options(self, "resources.")

    @property
    def threads(self) -> int:
        """The number of PyTorch threads in a trial."""
        return max(1, ceil(self.cpus))


@dataclass(frozen=True)
class Limits:
    """Limits of a study and of its trials.

    Args:
        trials: Number of trials; None = 20, or all of a grid.
        minutes: Minutes after which running trials are stopped; None = no limit.
        trial_minutes: Minutes after which a trial has failed, looked at after each round of its first seed; None = no
            limit.
        target: Score of a finished trial that ends the study; None = never.
        concurrent: Maximum number of trials at the same time; None = as many as the resources allow.
    """

    trials: int | None = bounded(None, FROM_1)
    minutes: float | None = bounded(None, ABOVE_0)
    trial_minutes: float | None = bounded(None, ABOVE_0)
    target: float | None = bounded(None, Bounds("a number, such as 0.95", isfinite))
    concurrent: int | None = bounded(None, FROM_1)

    def __post_init__(self) -> None:
        require_options(self, "limits.")


@dataclass(frozen=True)
class Stopping:
    """Early stopping of bad trials. With a second metric or a grid, no trial is stopped.

    Args:
        eta: At each rung, a trial continues if it is among the best 1/eta of its algorithm's trials; 1 = always.
        first: First rung in rounds, each further one is `eta` times as far; None = a quarter of the rounds, and not
            before an algorithm's clusters have trained.
    """

    eta: float = bounded(4.0, Bounds("1 (no trial is stopped) or more", FROM_1.hold))
    first: int | None = bounded(None, FROM_1)

    def __post_init__(self) -> None:
        require_options(self, "stopping.")


@dataclass(frozen=True)
class Study:
    """A search over an experiment's options.

    Args:
        base: Experiment: a file, the name of a packaged configuration, or the experiment itself.
        space: Search space: dotted names of options, each with one of uniform, loguniform, randint, lograndint,
            choice, grid.
        name: Name of the study and of its directory.
        points: Own settings that are tried right after the base's, each with a value for every parameter that matters;
            None = none.
        metric: Column `val/...` of `metrics.csv`; None = `val/weighted_` of the task's first score.
        second_metric: `traffic/mib` = search for the Pareto-optimal settings in both; None = one objective.
        seeds: Seeds of every trial; None = the base's.
        search_seed: Seed of the search itself.
        searcher: Sampler of Optuna, such as TPESampler: its class, or class_path and init_args; None = random search.
        stopping: When trials are stopped early.
        scheduler: Scheduler of Ray Tune that stops trials in place of `stopping`, such as
            ray.tune.schedulers.MedianStoppingRule: its class, or class_path and init_args; None = none.
        resources: Resources of each trial.
        limits: Limits at which the study ends.
        num_repeats: Number of new seeds for the best trial and the default setting at the end, 0 or more.
    """

    base: str | dict[str, Any]
    space: dict[str, Any]
    name: str = "study"
    points: list[dict[str, Any]] | None = None
    metric: str | None = None
    second_metric: str | None = None
    seeds: list[int] | None = None
    search_seed: int = 0
    searcher: str | dict[str, Any] | None = None
    stopping: Stopping = field(default_factory=Stopping)
    scheduler: str | dict[str, Any] | None = None
    resources: Resources = field(default_factory=Resources)
    limits: Limits = field(default_factory=Limits)
    num_repeats: int = 5

    def __post_init__(self) -> None:
        require_folder_name(self.name, "name")
        if self.num_repeats < 0:
            raise InputError(f"num_repeats is {self.num_repeats}; give 0 or more")
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise InputError(f"seeds is {self.seeds}; give one or more different numbers, such as [0, 1, 2]")
        if self.metric is not None and self.metric.startswith("test/"):
            raise InputError(
                f"metric is {self.metric!r}, but choosing trials by test data would make the final test score too "
                f"good; use val/{self.metric[5:]} (the best trial is scored on test data once, at the end)"
            )
        Objective(second=self.second_metric)

    @property
    def whole_base(self) -> dict[str, Any]:
        """The base's configuration. Raises InputError if the base is given by name only."""
        if not isinstance(self.base, dict):
            raise InputError(f"base is {self.base!r}; read it first, with lit_cfl.config.variants.base_config")
        return self.base

    @property
    def num_trials(self) -> int:
        """The number of trials to train, unless the space is a grid."""
        return self.limits.trials or _DEFAULT_TRIALS

    @cached_property
    def search_space(self) -> Space:
        """The parsed search space."""
        return parse_space(self.space)

    @cached_property
    def own_settings(self) -> list[dict[str, Any]]:
        """The parsed `points`: settings that the user wants to be tried."""
        return parse_points(self.points or [], self.search_space)

    @property
    def may_stop(self) -> bool:
        """Whether a trial may be stopped early: neither with a second metric nor in a grid."""
        return self.second_metric is None and not self.search_space.grid

    def first_rung(self, rounds: int, first_clustering_round: int) -> int:
        """Returns the first round in which a trial may be stopped.

        Args:
            rounds: Rounds of a whole trial.
            first_clustering_round: The latest first clustering round of all algorithms.

        Raises:
            InputError: the first rung comes before the clusters of an algorithm have trained.
        """
        # right after the clustering, clusters may still share a model (FL+HC, CFL)
        least = min(rounds, first_clustering_round + 2) if first_clustering_round else 1
        first = max(least, -(-rounds // 4)) if self.stopping.first is None else self.stopping.first
        if first < least:
            raise InputError(
                f"stopping.first is {first}, but an algorithm of this study clusters only in round "
                f"{first_clustering_round + 1}; give {least} or more"
            )
        return first

    def write(self, path: Path) -> None:
        """Writes the study file."""
        write_text(path, as_yaml(asdict(self)))
