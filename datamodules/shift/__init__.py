"""Shifts of clients' data over the rounds: whole or partial swaps, growing training data, label drift.

Times are counted in completed rounds: 0 is before the first round, 50 between rounds 50 and 51. Every shift is a pure
function of the data, the round, the seed and the participants. The rules are those of FlexCFL's simulator (Duan et al.
Flexible Clustered Federated Learning for Client-Level Data Distribution Shift. IEEE TPDS 2022); label drift is ours.

Where the swaps and the release differ from the published code:

* `participants` is `all` clients in training by default, so that compared methods see the same data; the code takes
  those that already have a model (`warm`).
* a probability of 1 exchanges every pair; the code shifts nothing unless 0 < p < 1.
* a pair without labels to exchange is skipped; the code ends the round's swaps (C36).
* the release follows the paper; the code takes each share of the data that are already present, so that they shrink
  (C3).
* the validation part, which the papers do not have, moves with the training part, and is always present in the release.
* clients are paired by NumPy's generator, not by the code's own draws.

Newcomers neither swap nor wait for data, as in the papers; under label drift they drift like the other clients.
"""

from lit_cfl.datamodules.shift.drift import LabelDrift
from lit_cfl.datamodules.shift.incremental import Incremental
from lit_cfl.datamodules.shift.swaps import SwapAll, SwapPart

__all__ = ["Incremental", "LabelDrift", "SwapAll", "SwapPart"]
