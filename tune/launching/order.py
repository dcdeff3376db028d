"""What shall run on the cluster: one whole configuration, read and checked here, so that a mistake shows at once."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lit_cfl.config.files import config_files, found_config, read_config, with_absolute_paths
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.tune.check import check_study
from lit_cfl.tune.launching.files import Files, as_in_the_job, included, left_here, own_code
from lit_cfl.tune.options import parse_study

_FORWARDED = ("--quiet", "--json")  # how the job speaks: its log is what is followed here
_HERE_ONLY = ("resume", "new_plan", "dry_run")


@dataclass(frozen=True)
class Order:
    """What shall run.

    Args:
        command: of `lit-cfl`.
        name: of the experiment or the study.
        config: its whole configuration: it needs no other file.
        files: the user's, that go along.
        words: further words of the command.
        notices: what the user should know.
    """

    command: Literal["run", "tune"]
    name: str
    config: dict[str, Any]
    files: Files
    words: list[str]
    notices: list[str]


def read_order(arguments: Sequence[str], include: Sequence[str] = ()) -> Order:
    """Reads `--config FILE` and further options of `lit-cfl run` or `lit-cfl tune`, by what the file holds.

    Args:
        include: files and folders of the user's to send.

    Raises:
        InputError: anything that the command itself would refuse before it looks at data.
    """
    files = config_files(arguments)
    if not files:
        raise InputError("say what to run: lit-cfl launch --config FILE --address http://HOST:8265")
    words = [word for word in arguments if word not in _FORWARDED]
    order = _study(words) if any(map(_is_study, files)) else _experiment(words)
    code, sent = order.config.pop("code", []), included(include)
    if order.command == "tune":
        code = order.config["base"].pop("code", [])
    config = as_in_the_job(order.config, sent)
    return Order(
        order.command,
        order.name,
        config,
        own_code(code) | sent,
        [word for word in arguments if word in _FORWARDED],
        [*order.notices, *left_here(config)],
    )


def _is_study(file: str) -> bool:
    return "space" in read_config(found_config("--config", file))


def _experiment(words: Sequence[str]) -> Order:
    request = parse_run(words, prog="lit-cfl launch")
    for name in _HERE_ONLY:
        _refuse(name, request.options[name])
    config = dict(request.experiment.described())
    config["data"] = with_absolute_paths(config["data"])
    return Order("run", request.experiment.name, config, {}, [], request.notices)


def _study(words: Sequence[str]) -> Order:
    request = parse_study(words)
    _refuse("resume", request.resume)
    _refuse("ray.address", request.address)
    check_study(request.study)
    return Order("tune", request.study.name, asdict(request.study), {}, [], [])


def _refuse(option: str, value: object) -> None:
    if value:
        raise InputError(
            f"--{option} is for this machine; lit-cfl launch begins a new run or study on the cluster at --address: "
            "leave it out"
        )
