"""Makes MKL, PyTorch's matrix library on CPUs, compute sums that do not depend on memory alignment.

By default MKL may add in an order that depends on a matrix's place in memory, modulo 16 bytes: seen on an AMD Zen 5,
not on an Intel Xeon with AVX-512. A client's model would then depend, in its last bits, on the clients that train in
the same stack. MKL's remedy is its environment variable MKL_CBWR, which it reads at the first product of a process. On
the Zen 5 it changes the time of products by at most a tenth.
"""

import os
from pathlib import Path

SETTING, STRICT = "MKL_CBWR", "AUTO,STRICT"


def ask_for_reproducible_products(processors: Path = Path("/proc/cpuinfo")) -> None:
    """Sets MKL's environment variable, unless the user has set it or the processor does not need it.

    Args:
        processors: Linux's list of processors.
    """
    # on these processors, the setting could change the last bits of recorded runs
    if not _is_intel_with_avx512(processors):
        os.environ.setdefault(SETTING, STRICT)


def _is_intel_with_avx512(processors: Path) -> bool:
    try:
        with processors.open(encoding="utf-8", errors="replace") as file:
            first = file.read(4096)  # reads only the first core: the file lists all of them, which takes time
    except OSError:
        return False
    return "GenuineIntel" in first and " avx512f " in first
