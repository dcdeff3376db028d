"""The names of a study's files, and of the figures that its trials report. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lit_cfl.errors import InputError
from lit_cfl.storage.given_paths import require_own_kind, resolve_directory, suggest_directory

# names in a study's directory
STUDY, JOURNAL, TRIALS, TABLE, BEST = "study.yaml", "study.log", "trials", "trials.csv", "best.yaml"
REPEATS, PICTURES, FRONT = "repeats", "pictures", "front"
FINISHED_STATUS, STOPPED_STATUS, FAILED_STATUS = "finished", "stopped", "failed"
DEFAULT, POINT, SEARCH = "default", "point", "search"  # origin of a setting
# Names of the figures that a trial reports:
ROUNDS = "rounds"  # completed rounds, by which trials are stopped early
FINISHED = "finished"  # True if the trial trained all its rounds
ERROR = "error"  # reason why the trial did not finish
SECONDS = "seconds"
CLIENTS = "clients/evaluated"  # number of scored clients, a mean over the seeds


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
