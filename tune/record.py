"""The files of a study: their names, and the record `trial.json` of each trial, which a resumed study reads.

Imports nothing heavy.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from lit_cfl.errors import InputError
from lit_cfl.scores import Scores, read_scores
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.digests import read_sealed
from lit_cfl.storage.given_paths import require_own_kind, resolve_directory, suggest_directory

# names in a study's directory
STUDY, TRIALS, REPEATS, PICTURES, FRONT = "study.yaml", "trials", "repeats", "pictures", "front"
RUNNING, FINISHED_STATUS, STOPPED_STATUS, FAILED_STATUS = "running", "finished", "stopped", "failed"
DEFAULT, POINT, SEARCH = "default", "point", "search"  # origin of a setting
RECORD, TOO_LONG = "trial.json", "too_long.txt"  # files in a trial's directory
NUMBER = "trial"  # key of a trial's number in its Ray Tune configuration
# Names of the figures that a trial reports, the keys of `TrialRecord.last_result`:
ROUNDS = "rounds"  # completed rounds, which schedulers count
FINISHED = "finished"  # True if the trial trained all its rounds
ERROR = "error"  # reason why the trial did not finish
FULL_DISK = "full disk"  # reason why the study has to end, and can be resumed
SECONDS = "seconds"
CLIENTS = "clients/evaluated"  # number of scored clients, a mean over the seeds
_RESULTS = ("config.yaml", "summary.json", "metrics.csv")  # result files of a trial's runs


def find_resumed_directory(arguments: Sequence[str]) -> Path | None:
    """Returns the directory that `--resume` names on a command line; None for a new study."""
    words = list(arguments)
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--resume"), None)
    if at is None:
        return None
    return resolve_directory(words[at].partition("=")[2] or "".join(words[at + 1 : at + 2]), "--resume")


def require_study_file(path: Path) -> Path:
    """Returns the study file in a directory. Raises InputError if there is none."""
    file = path / STUDY
    if not file.is_file():
        require_own_kind(path, "tune")
        near = suggest_directory(path, STUDY)
        raise InputError(
            f"{file} does not exist{near}, so {path} holds no study to resume; give the directory of one, or start it "
            "with --config"
        )
    return file


def read_study_id(path: Path) -> str:
    """Reads the id of a study from its file. Raises InputError if the file is damaged or has no id."""
    study_id = read_sealed(path / STUDY)[1]
    if study_id is None:
        raise InputError(f"the last line of {path / STUDY} has no study id; put the original file back")
    return study_id


@dataclass(frozen=True)
class TrialRecord:
    """The setting, state and results of a trial.

    Args:
        number: Number of the trial from 0, in starting order.
        origin: Origin of the setting: `default` (the base's), `point` (the study's) or `search`.
        values: Values of the setting by `Parameter.key`.
        repeats: Number of the earlier trial with the same setting, whose result this trial has; None = it was trained.
        status: Status of the trial; `running` also if a limit ended the study: such a trial continues on resume.
        last_result: Values that the trial last reported to Ray Tune.
        digests: SHA-256 of the trial's result files, by path below its directory; empty while its process may write
            them.
    """

    number: int
    origin: str
    values: dict[str, Any]
    repeats: int | None = None
    status: str = RUNNING
    last_result: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def trial_id(self) -> str:
        return trial_id(self.number)


def describe_uneven(clients: Mapping[str, float | None]) -> str | None:
    """Returns a warning if trials were scored on different numbers of clients, else None.

    Args:
        clients: Number of scored clients of each finished trial, by the trial's name.
    """
    known = {name: number for name, number in clients.items() if number is not None}
    if len(set(known.values())) < 2:
        return None
    few, many = (
        f"{name} on {known[name]:g}" for name in (min(known, key=known.__getitem__), max(known, key=known.__getitem__))
    )
    return (
        f"trials were scored on different numbers of clients ({few}, {many}), since clients without a model are not "
        "scored, so not all differences come from the settings; to score all clients, set evaluation.clients: all in "
        "the base"
    )


def trial_id(number: int) -> str:
    """Returns the name of a trial, which is also the name of its directory."""
    return f"{number:04d}"


def read_limit(path: Path) -> float | None:
    """Reads the time limit, in minutes, that ended a run's process; None if no limit ended it.

    Args:
        path: Folder that contains `too_long.txt`.
    """
    file = path / TOO_LONG
    limit, *where = (file.read_text("utf-8").splitlines() if file.exists() else []) or [""]  # empty: the disk was full
    return float(limit.split()[0]) if where else None


def write_record(folder: Path, record: TrialRecord, study_id: str) -> None:
    """Writes a trial's record `trial.json` into the trial's directory."""
    content = asdict(record) | {"study": study_id}
    text = json.dumps(content | {"sha256": _hash_record(content)}, indent=1) + "\n"
    path = folder / record.trial_id
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / RECORD, text)


def read_records(folder: Path, study_id: str) -> list[TrialRecord]:
    """Reads the records of all trials of a study, in the order of their numbers.

    Raises:
        InputError: a trial's record or result is missing, or was not written by this study.
    """
    begun = [path for path in sorted(folder.glob("*/")) if any((path / name).exists() for name in (RECORD, *_RESULTS))]
    records = [read_record(path, study_id) for path in begun]
    for record in records:
        _require_unchanged(folder / record.trial_id, record)
    return records


def read_recorded_scores(path: Path) -> Scores | None:
    """Reads which scores the task has, from a trial of the study in a directory; None if no trial has finished."""
    for file in sorted((path / TRIALS).glob("*/**/summary.json")):
        with suppress(OSError, ValueError):  # damaged files are refused when the records are read
            return read_scores(json.loads(file.read_text("utf-8")))
    return None


def read_record(path: Path, study_id: str) -> TrialRecord:
    """Reads one trial of a study. Raises InputError for a missing or damaged record, or another study's."""
    try:
        content = json.loads((path / RECORD).read_text(encoding="utf-8"))
        seal = content.pop("sha256")
        intact, theirs = seal == _hash_record(content), content.pop("study")
        record = TrialRecord(**content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damage_error(path / RECORD, path) from error
    if not intact or record.trial_id != path.name:
        raise _damage_error(path / RECORD, path)
    if theirs != study_id:
        raise InputError(
            f"{path / RECORD} and {path.parents[1] / STUDY} belong to different studies; put the original back"
        )
    return record


def _hash_record(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digests_of(path: Path) -> dict[str, str]:
    """Computes the SHA-256 digests of a trial's result files, by path."""
    files = [file for name in _RESULTS for file in files_of_runs(path, name)]
    return {str(file.relative_to(path)): sha256(file.read_bytes()).hexdigest() for file in files}


def files_of_runs(path: Path, name: str) -> list[Path]:
    """Finds the files with this name in a trial's runs, of which there is one per seed."""
    return sorted([*path.glob(name), *path.glob(f"seed-*/{name}")])


def _require_unchanged(path: Path, record: TrialRecord) -> None:
    found = digests_of(path) if record.digests else {}
    changed = [name for name, digest in record.digests.items() if found.get(name) != digest]
    if changed:
        raise _damage_error(path / changed[0], path)


def _damage_error(file: Path, trial: Path) -> InputError:
    return InputError(
        f"{file} is gone or is not what the study wrote; put the original back, or delete {trial}, and the trial is "
        "trained again"
    )
