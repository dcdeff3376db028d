"""The trials of a study: which setting to try next, and the result of each. Independent of Ray."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError
from lit_cfl.storage.lock import wait_until_free
from lit_cfl.tune.record import (
    ERROR,
    FAILED_STATUS,
    FINISHED,
    FINISHED_STATUS,
    RUNNING,
    SEARCH,
    STOPPED_STATUS,
    TrialRecord,
    digests_of,
    read_limit,
    read_records,
    write_record,
)
from lit_cfl.tune.searchers import Searcher
from lit_cfl.tune.spaces import as_word

MOST_REPEATS = 20  # maximum number of repeated settings in a row
_GRACE_SECONDS = 2.0  # time for a trial's process to end after Ray has ended


@dataclass(frozen=True)
class GivenSetting:
    """A setting that is tried regardless of the searcher: the default, one of `points`, or one of a grid.

    Args:
        origin: `default`, `point`, or `search` for one of a grid.
        values: Values by `Parameter.key`.
        inside: True if the setting is in the space, so that the searcher can learn from it.
    """

    origin: str
    values: Mapping[str, Any]
    inside: bool = True


@dataclass
class Trials:
    """The trials of a study. A repeated setting is not trained again: its earlier result is returned.

    Args:
        folder: Folder of the trials' directories.
        first: Settings before the searcher's: the default, then the points of the study.
        searcher: Source of all other settings, which receives every result; None = there are no other settings.
        limit: Number of trials to train.
        concurrent: Maximum number of trials at the same time; None = any number.
        study_id: Id of the study, which its trials' records contain.
    """

    folder: Path
    first: Sequence[GivenSetting]
    searcher: Searcher | None
    limit: int
    concurrent: int | None = None
    study_id: str = ""
    records: dict[int, TrialRecord] = field(default_factory=dict)
    why_over: str | None = None
    live: dict[int, dict[str, Any]] = field(default_factory=dict)  # last report of each running trial
    _exhausted: bool = False
    _known: int = 0  # number of records on a resume: a restarted searcher suggests all of their settings again

    def load(self, minutes: float | None = None) -> None:
        """Loads the trials of a resumed study; those that a shorter time limit had ended will continue.

        Args:
            minutes: Time limit of a trial in minutes; None = no limit.

        Raises:
            InputError: records are damaged, or there are too many trials.
        """
        self.records = {record.number: record for record in read_records(self.folder, self.study_id)}
        for record in list(self.records.values()):
            if record.repeats is not None and not self._is_repeat(record):
                del self.records[record.number]  # the record of the trial that it repeats was deleted
            elif record.status == FAILED_STATUS and self._has_more_time(record, minutes):
                last_result = {name: figure for name, figure in record.last_result.items() if name != ERROR}
                self._store(replace(record, status=RUNNING, last_result=last_result, digests={}))
        self._known = len(self.records)
        if self.trained > self.limit:
            raise InputError(
                f"limits.trials is {self.limit}, but {self.trained} trials were started; give {self.trained} or more"
            )
        for record in self.records.values():
            self._report_to_searcher(record)

    def _has_more_time(self, record: TrialRecord, minutes: float | None) -> bool:
        before = read_limit(self.folder / record.trial_id)
        return before is not None and (minutes is None or minutes > before)

    def _is_repeat(self, record: TrialRecord) -> bool:
        original = self.records.get(-1 if record.repeats is None else record.repeats)
        return original is not None and self._is_answer(original, record.values)

    def _is_answer(self, record: TrialRecord, values: Mapping[str, Any]) -> bool:
        """Returns whether a trial was trained with these values, so that its result can be reused."""
        trained = record.repeats is None and self._inside(record.number)
        return trained and self._key(record.values) == self._key(values)

    def _inside(self, number: int) -> bool:
        return number >= len(self.first) or self.first[number].inside

    @property
    def trained(self) -> int:
        """The number of trials started, without repeated settings."""
        return sum(record.repeats is None for record in self.records.values())

    @property
    def num_over(self) -> int:
        """The number of trials that have ended, without repeated settings."""
        return sum(record.repeats is None and record.status != RUNNING for record in list(self.records.values()))

    @property
    def over(self) -> bool:
        """Whether no further trial will start."""
        return not self._waiting() and (self.trained >= self.limit or self._exhausted)

    def _waiting(self) -> list[TrialRecord]:
        """Lists the unfinished trials that a resumed study has to continue."""
        return [r for n, r in self.records.items() if r.status == RUNNING and r.repeats is None and n not in self.live]

    def next(self) -> TrialRecord | None:
        """Returns the next trial to start or continue; None if there is no such trial, or not yet."""
        if len(self.live) >= (self.concurrent or inf):
            return None
        record = next(iter(self._waiting()), None)
        while record is None and not self.over:
            record = self._start_new()
        if record is not None:
            self.live[record.number] = dict(record.last_result)
            if record.digests:  # the files change from here on, so their digests no longer apply
                record = replace(record, digests={})
                self._store(record)
        return record

    def _start_new(self) -> TrialRecord | None:
        """Starts a trial of the next setting; None if the setting was tried before, or if none is left."""
        number = next(n for n in range(len(self.records) + 1) if n not in self.records)
        values = self._values(number)
        if values is None:
            self._exhausted = True
            self.why_over = f"the searcher has no further setting, so the study ends after {self.trained} trials"
            return None
        origin = self.first[number].origin if number < len(self.first) else SEARCH
        record = TrialRecord(number, origin, values, self._find_earlier(values))
        shutil.rmtree(self.folder / record.trial_id, ignore_errors=True)  # left by a trial whose record was deleted
        self._store(record)
        if record.repeats is None:
            return record
        self._report_to_searcher(record)
        self._give_up_if_all_known(number)
        return None

    def _values(self, number: int) -> dict[str, Any] | None:
        if number < len(self.first):
            return dict(self.first[number].values)
        return None if self.searcher is None else self.searcher.ask(number - len(self.first))

    def _find_earlier(self, values: Mapping[str, Any]) -> int | None:
        same = (number for number, record in self.records.items() if self._is_answer(record, values))
        return min(same, default=None)

    def _key(self, values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((name, as_word(value)) for name, value in values.items()))

    def _give_up_if_all_known(self, number: int) -> None:
        most = MOST_REPEATS + self._known
        last = [self.records.get(n) for n in range(number - most + 1, number + 1)]
        if all(record is not None and record.repeats is not None for record in last):
            self._exhausted = True
            self.why_over = (
                f"the searcher's last {most} settings had all been tried before, so the study ends after "
                f"{self.trained} trials; try a larger space or another search_seed"
            )

    def report(self, number: int, last_result: Mapping[str, Any]) -> None:
        """Stores the latest report of a running trial."""
        self.live[number] = dict(last_result)

    def end(self, number: int, last_result: Mapping[str, Any], died: bool = False) -> None:
        """Records that a trial has ended.

        Args:
            number: Number of the trial.
            last_result: Last values that the trial reported.
            died: True if the worker died too often.
        """
        last = {**self.live.pop(number, {}), **last_result}
        if died and not last.get(ERROR):
            last[ERROR] = "its worker died"
        status = FAILED_STATUS if last.get(ERROR) else FINISHED_STATUS if last.get(FINISHED) else STOPPED_STATUS
        digests = digests_of(self.folder / self.records[number].trial_id) if status == FINISHED_STATUS else {}
        self._store(replace(self.records[number], status=status, last_result=last, digests=digests))
        for record in list(self.records.values()):
            if number in (record.number, record.repeats):
                self._report_to_searcher(record)

    def close(self) -> list[TrialRecord]:
        """Records the state of all live trials; returns those that had already reported their final result."""
        ended = []
        for number, last_result in list(self.live.items()):
            if last_result.get(FINISHED) or last_result.get(ERROR):
                self.end(number, last_result)
                ended.append(self.records[number])
            else:
                self._store(replace(self.records[number], last_result=last_result))
        self.live.clear()
        self.seal_ended(_GRACE_SECONDS)
        return ended

    def seal_ended(self, seconds: float = 0.0) -> None:
        """Records the digests of stopped and failed trials whose processes can no longer write.

        Args:
            seconds: Seconds to wait for each trial's process.
        """
        self._seal([record for record in self.records.values() if record.status != RUNNING], seconds)

    def seal(self) -> None:
        """Records the digests of all trials that have none yet, including those ended by a limit or a signal."""
        self._seal(list(self.records.values()), _GRACE_SECONDS)

    def _seal(self, records: Sequence[TrialRecord], seconds: float) -> None:
        for record in records:
            path = self.folder / record.trial_id
            if record.repeats is None and not record.digests and wait_until_free(path, seconds):
                digests = digests_of(path)
                if digests:
                    self._store(replace(record, digests=digests))

    def result_of(self, record: TrialRecord) -> TrialRecord:
        """Returns the trial with a trial's result: the trial itself, or the earlier one whose setting it repeats."""
        return record if record.repeats is None else self.records[record.repeats]

    def last_figures(self, record: TrialRecord) -> Mapping[str, Any]:
        """Returns the latest metrics of a trial, finished or running."""
        last_result: Mapping[str, Any] = self.live.get(record.number, record.last_result)
        return last_result

    def _report_to_searcher(self, record: TrialRecord) -> None:
        """Reports the end of a trial to the searcher, unless its setting lies outside the space."""
        result, count = self.result_of(record), len(self.first)
        if self.searcher is None:
            return
        if result.status != RUNNING and self._inside(record.number):
            self.searcher.add(record.number - count if record.number >= count else None, record.values, result)

    def _store(self, record: TrialRecord) -> None:
        self.records[record.number] = record
        write_record(self.folder, record, self.study_id)
