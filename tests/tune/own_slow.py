"""A user's slow algorithm for the tests of `tune/`, which fails or hangs under some options."""

import os
import time
from dataclasses import dataclass

from lit_cfl.algorithms import FedAvg


@dataclass(frozen=True)
class Slow(FedAvg):
    """FedAvg that pauses in each round, and fails or hangs at some values of `rate`.

    Args:
        rate: Has no effect on training; from 0.4 to 0.6 it fails in round 3, above 1 it hangs in round 1.
        pause: Seconds per round.
        log: File that gets a line per round: rate, round, process; `<log>.folders` gets the folder; "" for none.
    """

    rate: float = 0.0
    pause: float = 0.0
    log: str = ""

    def round(self, state, cohort, work, rng):
        if 0.4 < self.rate < 0.6 and work.round == 2:
            raise RuntimeError(f"rate {self.rate} fails")
        time.sleep(600 if self.rate > 1 else self.pause)
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{self.rate} {work.round} {os.getpid()}\n")
            with open(f"{self.log}.folders", "a") as file:
                file.write(f"{os.getcwd()}\n")
        return super().round(state, cohort, work, rng)
