"""Counts cores and GPUs, moves tensors to the computing device, and handles its memory limits."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from joblib import cpu_count
from torch import Tensor

_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_UNKNOWN_GPU = 16  # GiB assumed for a GPU that only Ray's workers see
_NO_MEMORY = (
    "out of memory",  # CUDA
    "ALLOC_FAILED",  # cuBLAS
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no memory was left for its handle
    "CUDNN_STATUS_INTERNAL_ERROR",
    "unable to find an engine to execute this computation",  # cuDNN, which hides why each of its plans failed
    "can't allocate memory",  # PyTorch
    "bad_alloc",  # C++
)

Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def count_cores() -> int:
    """Counts the cores that this process may use, as limited by a batch system or container: 1 or more.

    If OpenMP binds its threads to cores, the affinity mask covers a single thread; then all cores of the machine count.
    """
    bound = any(os.environ.get(name, "false").lower() != "false" for name in _BINDING)
    return (os.cpu_count() or 1) if bound else int(cpu_count())


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copies a tensor to a device; to a GPU asynchronously, through pinned memory."""
    if torch.device(device).type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def move_rows(device: torch.device | str, dtype: torch.dtype, table: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Copies the used rows of a table to a device, each row once.

    Args:
        table: `[K, d]`.
        which: Row of each client, int64 `[n]`.

    Returns:
        the rows `[at most K, d]` on the device, and the row of each client, int64 `[n]`.
    """
    if table.device == torch.device(device) and table.dtype == dtype:
        return table, which
    used, place = which.unique(return_inverse=True)
    rows = table if len(used) == len(table) else table[used]
    return send(rows, device).to(dtype), place


def release_gpu_memory() -> None:
    """Frees the GPU memory that this process holds but does not use, for other processes on the GPU.

    A CUDA context of several hundred MiB remains; `Experiment.try_out` avoids making one if it can.
    """
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Returns whether an error, or an error in its context, means that memory ran out.

    An interrupted CUDA capture raises another error in the context of the first one.
    """
    if error is None or isinstance(error, torch.OutOfMemoryError):
        return error is not None
    message = str(error)
    return any(words in message for words in _NO_MEMORY) or is_out_of_memory(error.__context__)


def fits_on(device: torch.device | str, size: int) -> bool:
    """Returns whether this many bytes take at most half of a GPU's total memory; always true for the CPU.

    The memory of a trial of a search is its share of the GPU's.
    """
    device = torch.device(device)
    return device.type == "cpu" or size <= _bytes_of_gpu(device) // 2


def count_gpus() -> int:
    """Counts the GPUs of this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gib_of_gpu(device: str) -> int:
    """Returns a GPU's total memory, rounded to GiB because drivers report slightly different totals.

    A trial of a search with a share of a GPU has that share of the memory. A GPU that only Ray's workers see counts as
    16 GiB.
    """
    return max(1, round(_bytes_of_gpu(device) / 2**30)) if count_gpus() else _UNKNOWN_GPU


def _bytes_of_gpu(device: torch.device | str) -> float:
    share = torch.cuda.get_per_process_memory_fraction(device) if torch.cuda.is_initialized() else 1.0
    return share * torch.cuda.get_device_properties(device).total_memory


def prepare_ahead(prepare: Callable[[Item], Prepared], items: Iterable[Item]) -> Iterator[Prepared]:
    """Prepares items in a thread, each while the previous one is in use, and yields the results."""
    with ThreadPoolExecutor(1) as thread:
        before: Future[Prepared] | None = None
        for item in items:
            following = thread.submit(prepare, item)
            if before is not None:
                yield before.result()
            before = following
        if before is not None:
            yield before.result()
