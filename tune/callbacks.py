"""Callbacks of Ray Tune that stop a study: on request, at its target, and when the disk is full."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import Any

from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial

from lit_cfl.errors import SaveError, count_noun
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.atomic_writes import is_full_disk
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.record import FINISHED, FULL_DISK, NUMBER, ROUNDS, STUDY, trial_id

_checks: list[Callable[[], None]] = []  # checks of the studies running in this process, the innermost last
_LEAST_MIB = 20


class _FullDisk(BaseException):
    """Raised to end a study whose disk is full. BaseException, so that Ray does not attribute it to a trial.

    Args:
        reason: Reason why a file could not be written.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def stoppable(path: Path) -> Iterator[None]:
    """Makes `stop_if_requested` end the study if a signal arrives during the block, or the disk is full.

    Args:
        path: Path of the study.

    Raises:
        Interrupted: a signal arrived.
        SaveError: the disk is full, or a file could not be written.
    """

    def require_room() -> None:
        if shutil.disk_usage(path).free < _LEAST_MIB * 2**20:
            raise _FullDisk(f"the disk of {path} is full")

    before = len(_checks)
    try:
        is_main = threading.current_thread() is threading.main_thread()  # other threads may not handle signals
        signals = interruptible() if is_main else nullcontext(lambda: None)
        with signals as check, full_disk_ends_study():
            _checks.extend([check, require_room])
            yield
    except _FullDisk as full:
        raise SaveError(_how_to_go_on(full.reason, path)) from full.__cause__
    finally:
        del _checks[before:]


def _how_to_go_on(reason: str, path: Path) -> str:
    again = (
        f"resume with: lit-cfl tune --resume {quote(str(path))}"
        if (path / STUDY).exists()
        else "give the command again"
    )
    return f"{reason}; free some disk space, then {again}"


@contextmanager
def full_disk_ends_study() -> Iterator[None]:
    """Ends the study if the block fails because the disk is full."""
    try:
        yield
    except (OSError, SaveError) as error:
        if not is_full_disk(error):
            raise
        raise _FullDisk(str(error)) from error


def stop_if_requested() -> None:
    """Ends the study if a signal has arrived or its disk is full."""
    for check in _checks:
        check()


class StudyCallback(Callback):
    """Ends a study on request, and reports workers that died.

    Args:
        say: Prints a line.
        after_step: Called after each step of Ray, in which a trial may have ended.
    """

    def __init__(self, say: Callable[[str], None], after_step: Callable[[], None]) -> None:
        self._say, self._after_step = say, after_step

    def __reduce__(self) -> tuple[type[Callback], tuple[()]]:
        return Callback, ()  # pickles nothing for Ray's records, which are never read

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        stop_if_requested()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._after_step()

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        rounds = count_noun(trial.last_result.get(ROUNDS, 0), "round")
        self._say(f"{name_of(trial)}: its worker died after {rounds}; the trial continues from its last checkpoint")


def name_of(trial: Trial) -> str:
    """Returns our name of a trial of Ray Tune, such as `0003`."""
    return trial_id(int(trial.config[NUMBER]))


class EndOfStudy(Stopper):
    """Ends a study once a finished trial has reached the target, or when a trial found the disk full.

    Args:
        objective: Objective of the study.
        target: Value that ends the study; None = never.
        known: Values of trials that finished before the study was resumed.
    """

    def __init__(self, objective: Objective, target: float | None, known: list[float]) -> None:
        self._objective, self._target = objective, target
        self._reached = target is not None and any(objective.is_reached(value, target) for value in known)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if result.get(FULL_DISK):
            raise _FullDisk(result[FULL_DISK])
        if self._target is not None and result.get(FINISHED):
            self._reached |= self._objective.is_reached(result[self._objective.metric], self._target)
        return False

    def stop_all(self) -> bool:
        return self._reached
