"""FlexCFL on real data under swaps that never happen and under many (docs/ground_truth.md, checks 14 and 18)."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, rng
from test_flexcfl import TWO, line, swapped, two_groups

from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import LabelGroups
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.rounds import Round

GROUPS = LabelGroups(test=0.2, groups=((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), clients_per_group=6)


def rounds_of(*shift: Shift) -> list[Round]:
    return list(two_groups(data=Digits(partition=GROUPS, skew=(), shift=shift)))


@pytest.mark.parametrize("participants", ["all", "warm"])
def test_swaps_with_probability_0_change_nothing(participants: str):  # check 14
    still, swapped = rounds_of(), rounds_of(SwapAll(0.0, participants=participants))
    assert len(still) > 1
    for one, other in zip(still, swapped, strict=True):
        assert torch.equal(one.state.models, other.state.models)
        assert torch.equal(one.state.index, other.state.index)
        assert one.info.scores == other.info.scores
        assert one.info.scores["shift/detected"] == 0


def test_every_swap_between_clusters_is_detected_and_answered_before_the_round():  # check 18
    served, migrated = None, 0
    for r in rounds_of(SwapAll(0.4)):
        if served is not None and r.moves:
            (moves,) = r.moves
            apart = moves.before != moves.after
            assert r.info.scores["shift/detected"] == int(apart.sum())
            for client, partner in zip(moves.clients[apart].tolist(), moves.partners[apart].tolist(), strict=True):
                assert r.state.index[client] == served[partner]  # the cluster of these data's owner before
            migrated += int(r.info.scores["shift/migrated"])
        served = r.state.index
    assert migrated >= 4


def test_who_migrates_trains_from_w0_wherever_the_models_are_by_now():  # check 13
    state, _ = TWO.init(line(), rng(3))
    gone = replace(state, models=state.models + 100)  # from there, everybody would go left
    after, info = TWO.round(gone, ids(0), swapped(line(), 2, 5), rng())
    assert after.index.tolist() == [0, 1, 1, 1, 0, 0]
    assert info.scores["shift/migrated"] == 2
