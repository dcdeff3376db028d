"""Compiles `lit_cfl/engines/steps.cpp` when the package is built; in a checkout, run `python hatch_build.py`.

Without a C++ compiler the package is installed as well, and trains small nets more slowly, by `loop`. The compiler is
$CXX, c++, g++ or clang++. Messages are in the output of `pip install -v`.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path("lit_cfl/engines")
KINDS = {
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"],
    "AVX2": ["-mavx2", "-mfma"],
    "DEFAULT": [],
}  # of processors, in the words of torch.backends.cpu.get_cpu_capability()


def compile_steps(source: Path, folder: Path) -> list[Path]:
    """Compiles the source into a folder, once for each kind of processor that the compiler supports.

    Prints why nothing, or not each of them, was compiled.
    """
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None)
    if compiler is None:
        print("no C++ compiler was found, so small nets will train slowly; install g++ or clang++", file=sys.stderr)
        return []
    digest, built = blake2b(source.read_bytes(), digest_size=16).hexdigest(), []
    options = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-shared", "-fPIC", f'-DSOURCE="{digest}"']
    for kind, own in KINDS.items():
        with TemporaryDirectory(dir=folder) as made:
            file = Path(made) / f"steps-{kind}.lib"  # as .so Python would take it for one of its modules
            command = [compiler, *options, *own, str(source), "-o", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own words
            if done.returncode == 0:
                built.append(file.replace(folder / file.name))  # a process that has loaded the earlier one keeps it
            else:
                lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"error {done.returncode}"]
                print(f"{compiler} cannot compile {source.name} for {kind}: {lines[0]}", file=sys.stderr)
    return built


def main(root: Path) -> list[Path]:
    """Compiles the steps of a checkout; returns the built libraries."""
    return compile_steps(root / FOLDER / "steps.cpp", root / FOLDER)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run in a checkout
    pass
else:

    class CompiledSteps(BuildHookInterface[Any]):
        """Adds the compiled files to a wheel, and tags it for this platform."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if main(Path(self.root)):
                build_data["artifacts"].append(f"{FOLDER}/steps-*.lib")
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data.update(pure_python=False, tag=f"py3-none-{platform}")


if __name__ == "__main__":
    found = main(Path(__file__).parent)
    print("\n".join(map(str, found)))
    sys.exit(not found)
