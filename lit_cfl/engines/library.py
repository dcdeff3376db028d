"""Loads the compiled `steps.cpp`. `hatch_build.py` compiles it on installation if there is a compiler.

It is compiled for several kinds of processors; the file for the kind that PyTorch detects is loaded. A file compiled
from another version of the source is not used.
"""

import ctypes
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent  # folder of the compiled files
SOURCE = FOLDER / "steps.cpp"
WITHOUT = "PyTorch alone"


@cache
def load_library() -> tuple[Any, str]:
    """Returns the compiled library or None, and a description of how small chains train on a CPU."""
    built = {file.stem.removeprefix("steps-"): file for file in FOLDER.glob("steps-*.lib")}
    found = torch.backends.cpu.get_cpu_capability()
    kind = found if found in built else "DEFAULT"
    if kind not in built:
        return (
            None,
            f"{WITHOUT} (not compiled: no C++ compiler during installation, or `python hatch_build.py` not run)",
        )
    try:
        library = ctypes.CDLL(str(built[kind]))
        library.source.restype = ctypes.c_char_p
        source = library.source().decode()
    except (OSError, AttributeError) as error:
        return None, f"{WITHOUT} ({error})"
    if source != blake2b(SOURCE.read_bytes(), digest_size=16).hexdigest():
        return None, f"{WITHOUT} ({built[kind].name} was compiled from another version; install the package again)"
    library.train.restype = library.permute.restype = None
    library.permute.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 4]
    return library, f"compiled for {kind}"


def describe_steps() -> str:
    """Describes how small chains train on a CPU: by `PyTorch alone`, or `compiled for` a kind of processor."""
    library, words = load_library()
    return words if library is not None else WITHOUT
