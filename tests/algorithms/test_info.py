"""Tests `Info.plus`, which combines the `Info` of an earlier step with that of the round."""

import torch
from quadratic import ids

from lit_cfl.algorithms import Info, Similarity

FIRST = Similarity(ids(0, 1), torch.eye(2))
OTHER = Similarity(ids(2, 3), torch.eye(2))


def test_traffic_and_skipped_clients_are_added_up():
    both = Info(down=5, up=3, skipped=1).plus(Info(down=20, up=10, skipped=2))
    assert (both.down, both.up, both.skipped) == (25, 13, 3)


def test_loss_closeness_and_clusters_are_those_of_the_round():
    earlier = Info(loss=7.0, closeness=torch.ones(2, 2), clusters={"u": torch.ones(1)})
    both = Info(loss=0.5).plus(earlier)
    assert (both.loss, both.closeness, both.clusters) == (0.5, None, {})


def test_of_a_score_or_a_similarity_that_both_have_the_later_one_counts():
    earlier = Info(scores={"a": 1.0, "b": 2.0}, similarity=FIRST)
    assert Info(scores={"b": 3.0}, similarity=OTHER).plus(earlier).scores == {"a": 1.0, "b": 3.0}
    assert Info(similarity=OTHER).plus(earlier).similarity is OTHER
    assert Info().plus(earlier).similarity is FIRST


def test_rows_of_tables_follow_the_earlier_ones_and_no_row_is_repeated():
    earlier = Info(tables={"moves": [{"client": 1}], "only_before": [{"client": 3}]})
    later = Info(tables={"moves": [{"client": 2}], "only_now": []})
    assert later.plus(earlier).tables == {
        "moves": [{"client": 1}, {"client": 2}],
        "only_before": [{"client": 3}],
        "only_now": [],
    }


def test_neither_is_changed():
    earlier, later = Info(tables={"moves": [{"client": 1}]}), Info(tables={"moves": [{"client": 2}]})
    later.plus(earlier)
    assert (earlier.tables, later.tables) == ({"moves": [{"client": 1}]}, {"moves": [{"client": 2}]})
