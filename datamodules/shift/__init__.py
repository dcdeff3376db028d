"""Shifts of clients' data over the rounds: whole or partial swaps, growing training data, label drift.

Options that say when count completed rounds: 0 is before the first round, 50 between rounds 50 and 51.
Every shift is a pure function of the data, the round, the seed and who takes part. The rules are those of FlexCFL's
simulator (Duan et al. Flexible Clustered Federated Learning for Client-Level Data Distribution Shift. IEEE TPDS 2022);
label drift is ours.

Where the swaps and the release differ from the published code:

* `participants` is `all` clients in training unless asked otherwise, so that compared methods see the same data; the
  code takes those that have a model already (`warm`).
* a probability of 1 exchanges every pair; the code shifts nothing unless 0 < p < 1.
* a pair without labels of its own is skipped (`part_abort: pair`); the code ends the round's swaps (`round`, C36).
* the release is what the paper states (`release: nominal`); the code takes each share of what is there already, so
  that the data shrink (`shrinking`, C3).
* the validation part, which the papers do not have, moves with the training part and is always there in the release.
* clients are paired by numpy's generator, not by the code's own draws.

Newcomers, which the papers do not shift either, neither swap nor wait for data; under label drift they drift as the
others do.
"""

from lit_cfl.datamodules.shift.drift import LabelDrift
from lit_cfl.datamodules.shift.incremental import Incremental
from lit_cfl.datamodules.shift.swaps import SwapAll, SwapPart

__all__ = ["Incremental", "LabelDrift", "SwapAll", "SwapPart"]
