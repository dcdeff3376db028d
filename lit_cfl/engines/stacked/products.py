"""Builds and loads the package's own batched matrix product, and puts it into traced steps.

MKL, PyTorch's library for products, takes a slow path on processors that are not Intel's: a half to a tenth of the
speed of `products.cpp` on the small products of a stack (docs/performance.md). The C++ file is compiled by the compiler
that Inductor uses, when it is first needed, and kept in the user's cache folder for the same source, compiler, flags,
processor and PyTorch.

Each number is summed up in an order that depends on the shapes of one client's matrices alone, so the bits are the same
in any company and with any number of threads.
"""

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp

import torch
from torch import Tensor
from torch.fx import GraphModule

from lit_cfl.engines.compiler import compiler
from lit_cfl.storage.cache_folder import cache_folder

_SOURCE = Path(__file__).with_name("products.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++20", "-fPIC", "-shared")
_SECONDS = 600  # compiling takes about ten


class BuildError(RuntimeError):
    """The products could not be compiled or loaded."""


def use_own_products(graph: GraphModule) -> None:
    """Replaces the batched products of float32 and float64 matrices in a traced graph, in place.

    Raises:
        BuildError: they cannot be compiled or loaded here.
    """
    _load()
    for node in graph.graph.nodes:
        own = node.op == "call_function" and node.target is torch.ops.aten.bmm.default
        if own and node.meta["tensor_meta"].dtype in (torch.float32, torch.float64):
            node.target = torch.ops.lit_cfl.bmm.default
    graph.recompile()


@cache
def _load() -> None:
    """Registers the operator `lit_cfl::bmm`, compiled now where the cache has none."""
    library = _library()
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise BuildError(f"{library} cannot be loaded: {error}; delete it to have it made again") from error
    torch.library.register_fake("lit_cfl::bmm", _like_bmm)


def _like_bmm(left: Tensor, right: Tensor) -> Tensor:
    """Returns a tensor of the shape and strides that `lit_cfl::bmm` gives; see `bmm` in `products.cpp`."""
    count, rows, columns = left.shape[0], left.shape[1], right.shape[2]
    by_rows = _readable(right).stride(2) == 1 or _readable(left).stride(2) == 1
    strides = (rows * columns, columns, 1) if by_rows else (rows * columns, 1, rows)
    return left.new_empty_strided((count, rows, columns), strides)


def _readable(matrices: Tensor) -> Tensor:
    return matrices if 1 in matrices.stride()[1:] else matrices.contiguous()


def _library() -> Path:
    """Finds the compiled library; compiles it where it is not there.

    Raises:
        BuildError: it cannot be compiled, or what lies there is not this user's own.
    """
    command = compiler()
    if command is None:
        raise BuildError("no C++ compiler (g++) is there")
    folder = _own_folder()
    library = folder / f"products-{_key(command)}.so"
    if not library.exists():
        _compile(command, library)
    _require_own(library)
    return library


def _own_folder() -> Path:
    kept = cache_folder()
    if kept is None:
        return Path(mkdtemp(prefix="lit-cfl-kernels-"))
    folder = kept / "kernels"
    try:
        kept.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise BuildError(f"{folder} cannot be made: {error.strerror}") from error
    _require_own(folder)
    return folder


def _require_own(path: Path) -> None:
    """Raises BuildError where somebody else owns a path or may write to it: its code would run as this user."""
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise BuildError(
            f"{path} is another user's, or others may write to it; set LITCFL_CACHE to a folder of your own"
        )


def _key(command: str) -> str:
    """Hashes all that the compiled library depends on."""
    parts = [_SOURCE.read_text("utf-8"), _run([command, "--version"]), *_FLAGS, _processor(), torch.__version__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Returns the model of the processor and the instructions that it has."""
    wanted = ("model name", "flags", "Features")
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _compile(command: str, library: Path) -> None:
    """Compiles the library; another process that does the same at the same time leaves the same file."""
    torch_folder = Path(torch.__file__).parent
    with NamedTemporaryFile(dir=library.parent, prefix=".making-", suffix=".so", delete=False) as file:
        made = Path(file.name)
    include = torch_folder / "include"
    words = [command, *_FLAGS, f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", str(_SOURCE)]
    try:
        _run([*words, "-o", str(made), f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"])
        made.chmod(0o700)
        made.replace(library)
    finally:
        made.unlink(missing_ok=True)


def _run(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines() or [""]
        raise BuildError(f"{words[0]} failed: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{words[0]} failed: {error}") from error
    return done.stdout
