"""Finds the C++ compiler that compiled steps need, and builds our own C++ files with it."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from lit_cfl.engines.kernel_cache import BuildError, kept

_FLAGS = ("-O3", "-march=native", "-std=c++20", "-fPIC", "-shared")
_SECONDS = 600  # compiling takes about ten


def compiler() -> str | None:
    """Returns the compiler that Inductor takes, too: `CXX`, else g++, clang++ or c++; None where there is none."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    return next(filter(shutil.which, names), None)


def build_library(name: str, sources: Sequence[Path], options: Sequence[str] = ()) -> Path:
    """Returns the compiled library; compiles it where the cache has none.

    Args:
        name: begins the file's name.
        sources: the file to compile, then those that it includes.
        options: of the compiler, beside our own.

    Raises:
        BuildError: it cannot be compiled, kept or loaded here.
    """
    command = compiler()
    if command is None:
        raise BuildError("no C++ compiler (g++) is there")
    place_free = [word for word in options if not word.startswith(("-I", "-L"))]  # PyTorch's version is in every key
    parts = [*(source.read_text("utf-8") for source in sources), _run([command, "--version"]), *_FLAGS, *place_free]
    return kept(name, parts, partial(_compile, [command, *_FLAGS, str(sources[0]), *options]), ".so")


def load_operators(name: str, sources: Sequence[Path]) -> None:
    """Registers the operators of a file that includes PyTorch's headers; see `build_library`.

    Raises:
        BuildError: it cannot be compiled, kept or loaded here.
    """
    library = build_library(name, sources, torch_options())
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise BuildError(f"{library} cannot be loaded: {error}") from error


def load_library(name: str, sources: Sequence[Path], options: Sequence[str] = ()) -> ctypes.CDLL:
    """Loads a library for `ctypes`; see `build_library`.

    Raises:
        BuildError: it cannot be compiled, kept or loaded here.
    """
    library = build_library(name, sources, options)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{library} cannot be loaded: {error}") from error


def torch_options() -> list[str]:
    """Returns the compiler's options for a file that includes PyTorch's headers; its threads are those of OpenMP."""
    folder = Path(torch.__file__).parent
    include = [f"-I{folder / 'include'}", f"-I{folder / 'include/torch/csrc/api/include'}"]
    return ["-fopenmp", *include, f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu"]


def _compile(words: list[str], library: Path) -> None:
    _run([*words, "-o", str(library)])


def _run(words: list[str]) -> str:
    try:
        # S603: the words are the user's own compiler, our options and our files
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines() or [""]
        raise BuildError(f"{words[0]} failed: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{words[0]} failed: {error}") from error
    return done.stdout
