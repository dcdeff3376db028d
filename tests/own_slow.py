"""A user's own algorithm for the tests of `tune/`: slow, and in the middle of its range it fails."""

import os
import time
from dataclasses import dataclass

from lit_cfl.algorithms import FedAvg


@dataclass(frozen=True)
class Slow(FedAvg):
    """FedAvg that takes its time.

    Args:
        rate: changes nothing; from 0.4 to 0.6 it fails in round 3.
        pause: seconds a round.
    """

    rate: float = 0.0
    pause: float = 0.0

    def round(self, state, cohort, work, rng):
        if 0.4 < self.rate < 0.6 and work.round == 2:
            raise RuntimeError(f"rate {self.rate} fails")
        time.sleep(self.pause)
        log = os.environ.get("SLOW_LOG")
        if log:
            with open(log, "a") as file:
                file.write(f"{self.rate} {work.round} {os.getpid()}\n")
        return super().round(state, cohort, work, rng)
