"""Chooses the device on which clients train: the only place that resolves `device: auto`.

That is the first GPU if there is one, unless the whole run is small: below 100 billion multiply-adds, about ten seconds
on one core, a run finishes before a GPU has started. Each Ray worker uses a GPU if their cluster has any.
"""

from lit_cfl.devices import count_gpus
from lit_cfl.errors import InputError, count_noun

_GPU_PAYS = 100_000_000_000  # multiply-adds of a run from which a GPU pays off: an estimate


def resolve_device(asked: str, multiply_adds: float = 0) -> str:
    """Returns the device of one process; `auto` is the first GPU if there is one and the work is not small.

    Args:
        asked: `auto`, `cpu`, `cuda` or `cuda:<i>`.
        multiply_adds: Multiply-adds of the run, 0 = unknown.

    Raises:
        InputError: the device does not exist.
    """
    found = count_gpus()
    if asked == "auto":
        return "cpu" if not found or 0 < multiply_adds < _GPU_PAYS else "cuda:0"
    asked = "cuda:0" if asked == "cuda" else asked
    number = number_of_gpu(asked)
    if number is not None and number >= found:
        has = f"has {count_noun(found, 'CUDA device')}" if found else "has no CUDA device"
        raise InputError(f"device {asked!r} was asked for, but this machine {has}; use --device cpu or auto")
    return asked


def device_of_ray(asked: str, found: int) -> str:
    """Returns the device of Ray's workers, each of which sees only its own GPU."""
    if asked == "auto":
        return "cuda:0" if found else "cpu"
    if number_of_gpu(asked):
        raise InputError(
            f"device is {asked!r}, but each Ray worker sees only one GPU, which is cuda:0 there; use --device cuda"
        )
    if asked != "cpu" and not found:
        raise InputError(f"device {asked!r} was asked for, but Ray has no GPU; use --device cpu or a cluster of GPUs")
    return asked


def number_of_gpu(device: str) -> int | None:
    """Parses `cuda:<number>` into the number, and `cpu` into None. Raises InputError for any other device."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or not number.isdigit():
        raise InputError(f"device {device!r} is not known; choose auto, cpu, cuda or cuda:<number>")
    return int(number)


def require_first_gpu(asked: str, what: str) -> None:
    """Refuses a GPU index above 0: Ray gives each process one GPU, which has index 0 there.

    Args:
        asked: Requested device.
        what: Name of the program that runs in such a process, for the message.

    Raises:
        InputError: the requested device is a GPU with another index.
    """
    number = asked.partition(":")[2]
    if asked.startswith("cuda") and number not in ("", "0"):
        raise InputError(
            f"device is {asked!r}, but {what} sees one GPU, which is cuda:0 there: give cuda, and choose GPU {number} "
            f"by CUDA_VISIBLE_DEVICES={number}"
        )
