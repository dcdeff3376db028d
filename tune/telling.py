"""Tells how each trial ended, and which was begun again, while a study goes on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from lit_cfl.tune.reporting import ERROR, FINISHED, ROUNDS
from lit_cfl.tune.spaces import Space, in_words

_listeners: list[Callable[[str], None]] = []  # of the studies that this process runs, the innermost last


@contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block a line is said of each trial that ends."""
    _listeners.append(say)
    try:
        yield
    finally:
        _listeners.pop()


class TellOfTrials(Callback):
    """Says a line of each trial that ends. Ray keeps it in its records, so it does not hold whom it tells.

    Args:
        space: of the trials.
        metric: that they are judged by.
        total: how many there will be.
    """

    def __init__(self, space: Space, metric: str, total: int) -> None:
        self._space, self._metric, self._total = space, metric, total

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if trial.last_result.get(ROUNDS) is not None:  # else the study ended before it was begun
            self._tell(trials, trial, failed=False)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        rounds = _rounds(trial.last_result)
        _say(f"{trial.trial_id}: its worker died after {rounds} rounds; it goes on from its last save")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._tell(trials, trial, failed=True)

    def _tell(self, trials: list[Trial], trial: Trial, failed: bool) -> None:
        over = sum(one.status in (Trial.TERMINATED, Trial.ERROR) or one is trial for one in trials)
        values = in_words(self._space.values_of(trial.config))
        how = outcome(trial.last_result, self._metric, failed)
        _say(f"{over}/{self._total} {trial.trial_id} {how} ({values})")


def _say(line: str) -> None:
    for say in _listeners[-1:]:
        say(line)


def _rounds(told: Mapping[str, Any]) -> int:
    return int(told.get(ROUNDS, 0))


def outcome(told: Mapping[str, Any], metric: str, failed: bool) -> str:
    """How a trial ended.

    Args:
        told: what Ray Tune was told of it last.
        metric: that it is judged by.
        failed: whether its worker died once too often.
    """
    rounds = _rounds(told)
    if failed or told.get(ERROR):
        why = str(told.get(ERROR) or "its worker died").splitlines()[0]
        return f"failed after {rounds} rounds: {why}"
    return f"{'finished' if told.get(FINISHED) else f'stopped after {rounds} rounds'}: {metric} {told[metric]:.4f}"
