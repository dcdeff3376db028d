"""Counts the CPU cores available to this process."""

import os

from joblib import cpu_count

_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def count_cores() -> int:
    """Counts the cores that this process may use, as limited by a batch system or container: 1 or more.

    If OpenMP binds its threads to cores, the affinity mask covers a single thread; then all cores of the machine count.
    """
    bound = any(os.environ.get(name, "false").lower() != "false" for name in _BINDING)
    return (os.cpu_count() or 1) if bound else int(cpu_count())
