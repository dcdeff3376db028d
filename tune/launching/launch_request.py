"""The content of a job: a complete configuration, checked here, and the user's files that it needs."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lit_cfl.config.files import read_config
from lit_cfl.config.named_configs import config_files, config_path
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.storage.given_paths import expand_home
from lit_cfl.tune.check import check_study
from lit_cfl.tune.options import parse_study

OURS = ("lit_cfl", "lit_cfl.datamodules", "lit_cfl.tune")  # packages that are sent whole
SentFiles = dict[str, Path]  # files by their place in the job's folder


def own_code(folders: Sequence[str]) -> SentFiles:
    """Finds the user's loaded modules in these folders, and no other files."""
    found: SentFiles = {}
    for name in sorted({name.partition(".")[0] for name in sys.modules} - {*OURS, "__main__"}):
        loaded = _places(name)
        for folder in map(Path, folders):
            if str(folder / f"{name}.py") in loaded:
                found[f"{name}.py"] = folder / f"{name}.py"
            elif str(folder / name) in loaded:
                found |= {file.relative_to(folder).as_posix(): file for file in (folder / name).rglob("*.py")}
    return found


def _places(name: str) -> set[str]:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return {str(Path(place).resolve()) for place in ([file] if file else []) + list(getattr(module, "__path__", []))}


def find_files(paths: Sequence[str]) -> SentFiles:
    """Finds the files that the user names: single ones by name, files in folders by their path below the folder's name.

    Raises:
        InputError: there is none.
    """
    found: SentFiles = {}
    for given in paths:
        path = expand_home(given).resolve()
        if not path.exists():
            raise InputError(f"--include {given}: there is no such file or folder")
        found |= {file.relative_to(path.parent).as_posix(): file for file in _files(path)}
    return found


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if file.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield file


def as_in_the_job(value: Any, files: SentFiles) -> Any:
    """Replaces paths of sent files and folders in a configuration by their paths in the job's folder."""
    return _replaced(value, _moved(files))


def _moved(files: SentFiles) -> dict[str, str]:
    moved: dict[str, str] = {}
    for place, file in files.items():
        inside = Path(place)
        while inside != Path():
            moved[str(file)] = inside.as_posix()
            inside, file = inside.parent, file.parent
    return moved


def _replaced(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(part, moved) for key, part in value.items()}
    if isinstance(value, list):
        return [_replaced(part, moved) for part in value]
    return moved.get(value, value) if isinstance(value, str) else value


def list_local_files(value: Any, name: str = "") -> Iterator[str]:
    """Yields a line for each file of this machine that a configuration names."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from list_local_files(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from list_local_files(part, name)
    elif isinstance(value, str) and Path(value).is_absolute() and Path(value).exists():
        yield f"{name} is {value}: it must be there on the cluster, too; or send it with --include {value}"


_FORWARDED = ("--quiet", "--json")  # how the job speaks: its log is what is followed here
_HERE_ONLY = ("resume", "new_plan", "dry_run")


@dataclass(frozen=True)
class LaunchRequest:
    """A run or a study to be executed by a job of the cluster.

    Args:
        command: Command of `lit-cfl`.
        name: Name of the experiment or the study.
        config: Complete configuration, which needs no other file.
        files: the user's, that go along.
        words: further words of the command.
        notices: Notices for the user.
    """

    command: Literal["run", "tune"]
    name: str
    config: dict[str, Any]
    files: SentFiles
    words: list[str]
    notices: list[str]


def read_launch_request(arguments: Sequence[str], include: Sequence[str] = ()) -> LaunchRequest:
    """Reads `--config FILE` and further options of `lit-cfl run` or `lit-cfl tune`, depending on the file.

    Args:
        include: files and folders of the user's to send.

    Raises:
        InputError: anything that the command itself would refuse before it looks at data.
    """
    files = config_files(arguments)
    if not files:
        raise InputError("say what to run: lit-cfl launch --config FILE --address http://HOST:8265")
    forwarded = [] if any(map(_is_study, files)) else [word for word in arguments if word in _FORWARDED]
    words = [word for word in arguments if word not in forwarded]
    order = _study(words) if any(map(_is_study, files)) else _experiment(words)
    code, sent = order.config.pop("code", []), find_files(include)
    if order.command == "tune":
        code = order.config["base"].pop("code", [])
    config = as_in_the_job(order.config, sent)
    return LaunchRequest(
        order.command,
        order.name,
        config,
        own_code(code) | sent,
        forwarded,
        [*order.notices, *list_local_files(config)],
    )


def _is_study(file: str) -> bool:
    return "space" in read_config(config_path(file))


def _experiment(words: Sequence[str]) -> LaunchRequest:
    request = parse_run(words, prog="lit-cfl launch")
    for name in _HERE_ONLY:
        _refuse(name, request.options[name])
    return LaunchRequest("run", request.experiment.name, request.experiment.described(), {}, [], request.notices)


def _study(words: Sequence[str]) -> LaunchRequest:
    request = parse_study(words)
    _refuse("resume", request.resume)
    _refuse("ray.address", request.address)
    _refuse("dry_run", request.dry_run)
    check_study(request.study)
    return LaunchRequest("tune", request.study.name, asdict(request.study), {}, [], [])


def _refuse(option: str, value: object) -> None:
    if value:
        raise InputError(
            f"--{option} is for this machine; lit-cfl launch begins a new run or study on the cluster at --address: "
            "leave it out"
        )
