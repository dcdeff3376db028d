"""Collects what `lit-cfl launch` sends: our packages, a complete configuration, the user's own code and files."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from lit_cfl.config.catalogue import config_files, config_path
from lit_cfl.config.files import read_config
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import as_yaml
from lit_cfl.storage.given_paths import expand_home
from lit_cfl.storage.yaml_files import leaves
from lit_cfl.tune.check import check_study
from lit_cfl.tune.options import parse_study

CONFIG = "launched.yaml"  # file in a job's folder
_OURS = ("lit_cfl", "lit_cfl.datamodules", "lit_cfl.tune")  # packages that are sent whole
_LIMIT_MIB = 100  # Ray's dashboard accepts no larger request
_FORWARDED = ("--quiet", "--json")  # options for the job's output, which is followed on this machine
_HERE_ONLY = ("resume", "new_plan", "dry_run")
SentFiles = dict[str, Path]  # files by their place in the job's folder


@dataclass(frozen=True)
class LaunchRequest:
    """A run or a study to be executed as a job on a cluster.

    Args:
        command: Command of `lit-cfl`.
        name: Name of the experiment or the study.
        config: Complete configuration, which needs no other file.
        files: User's files to send.
        words: Further words of the command.
        notices: Notices for the user.
    """

    command: Literal["run", "tune"]
    name: str
    config: dict[str, Any]
    files: SentFiles
    words: list[str]
    notices: list[str]

    def entrypoint(self, folder: str) -> str:
        """Returns the shell command of the job, which writes into this folder on the cluster."""
        where = "--run_dir" if self.command == "run" else "--study_dir"
        return shlex.join(["python", "-m", "lit_cfl", self.command, "--config", CONFIG, *self.words, where, folder])


def read_launch_request(arguments: Sequence[str], include: Sequence[str] = ()) -> LaunchRequest:
    """Reads `--config FILE` and further options of `lit-cfl run` or `lit-cfl tune`, depending on the file.

    Args:
        arguments: Words of the command line.
        include: User's files and folders to send.

    Raises:
        InputError: the command itself would refuse the options before it loads data.
    """
    files = config_files(arguments)
    if not files:
        raise InputError("say what to run: lit-cfl launch --config FILE --address http://HOST:8265")
    is_study = any("space" in read_config(config_path(file)) for file in files)
    forwarded = [] if is_study else [word for word in arguments if word in _FORWARDED]
    words = [word for word in arguments if word not in forwarded]
    name, config, notices = _study(words) if is_study else _experiment(words)
    code, sent = (config["base"] if is_study else config).pop("code", []), find_files(include)
    config = as_in_the_job(config, sent)
    notices = [*notices, *list_local_files(config)]
    return LaunchRequest("tune" if is_study else "run", name, config, find_own_code(code) | sent, forwarded, notices)


def _experiment(words: Sequence[str]) -> tuple[str, dict[str, Any], list[str]]:
    request = parse_run(words, prog="lit-cfl launch")
    for name in _HERE_ONLY:
        _refuse(name, request.options[name])
    return request.experiment.name, request.experiment.to_dict(), list(request.notices)


def _study(words: Sequence[str]) -> tuple[str, dict[str, Any], list[str]]:
    request = parse_study(words)
    _refuse("resume", request.resume)
    _refuse("ray.address", request.address)
    _refuse("dry_run", request.dry_run)
    check_study(request.study)
    return request.study.name, asdict(request.study), []


def _refuse(option: str, value: object) -> None:
    if value:
        raise InputError(
            f"--{option} is for this machine; lit-cfl launch starts a new run or study on the cluster at --address: "
            "leave it out"
        )


def find_own_code(folders: Sequence[str]) -> SentFiles:
    """Finds the source files of the user's modules and packages that were loaded from these folders."""
    found: SentFiles = {}
    for name in sorted({name.partition(".")[0] for name in sys.modules} - {*_OURS, "__main__"}):
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
    """Finds the named files, and the files in named folders, with their places in the job's folder.

    Raises:
        InputError: there is no such file.
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
    """Replaces the paths of sent files and folders in a configuration by their paths in the job's folder."""
    return _replace_paths(value, _map_places(files))


def _map_places(files: SentFiles) -> dict[str, str]:
    moved: dict[str, str] = {}
    for place, file in files.items():
        inside = Path(place)
        while inside != Path():
            moved[str(file)] = inside.as_posix()
            inside, file = inside.parent, file.parent
    return moved


def _replace_paths(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replace_paths(part, moved) for key, part in value.items()}
    if isinstance(value, list):
        return [_replace_paths(part, moved) for part in value]
    return moved.get(value, value) if isinstance(value, str) else value


def list_local_files(config: Mapping[str, Any]) -> Iterator[str]:
    """Lists absolute paths in a configuration that exist on this machine, each as a warning."""
    for name, value in leaves(config):
        if isinstance(value, str) and Path(value).is_absolute() and Path(value).exists():
            yield f"{name} is {value}, which must exist on the cluster, too; otherwise send it with --include {value}"


@contextmanager
def job_folder(request: LaunchRequest) -> Iterator[Path]:
    """Makes the job's folder for the duration of the block. Raises InputError if it is larger than Ray accepts."""
    files = our_packages() | request.files
    _require_small(files)
    with TemporaryDirectory(prefix="lit-cfl-") as name:
        folder = Path(name)
        for place, file in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / place)
        (folder / CONFIG).write_text(as_yaml(request.config), "utf-8")
        _write_version(folder)
        yield folder


def our_packages() -> SentFiles:
    """Finds the files of our packages (modules and compiled steps), with their places in the job's folder."""
    found: SentFiles = {}
    for name in _OURS:  # a search of lit_cfl/ would not follow the links of an editable install
        folder = Path(str(import_module(name).__file__)).parent
        place = Path(*name.split("."))
        found |= {(place / file.relative_to(folder)).as_posix(): file for file in _files(folder)}
    return found


def _require_small(files: SentFiles) -> None:
    sizes = {place: file.stat().st_size for place, file in files.items()}
    mib = sum(sizes.values()) / 2**20
    if mib > _LIMIT_MIB:
        largest = max(sizes, key=lambda place: sizes[place])
        raise InputError(
            f"the job's folder would be {mib:.0f} MiB, but a Ray cluster accepts {_LIMIT_MIB} at most; the largest "
            f"file is {largest}: leave it out, or put it where the cluster can read it and name that path in the "
            "configuration"
        )


def _write_version(folder: Path) -> None:
    """Writes the package metadata from which the job's command line reads the version of Lit-CFL."""
    number = version("lit-cfl")
    metadata = folder / f"lit_cfl-{number}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: lit-cfl\nVersion: {number}\n", "utf-8")
