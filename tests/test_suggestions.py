"""Tests which known name is suggested for an unknown one."""

import pytest

from lit_cfl.errors import suggest


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("num_cluster", ("num_clusters", "clusters"), "num_clusters"),
        ("Num_Clusters", ("num_clusters",), "num_clusters"),
        ("batch", ("last_batch", "batch_size"), "batch_size"),  # the only one that begins so
        ("r2_score", ("mae", "mse", "rmse", "r2"), "r2"),
        ("num_cluster", ("num", "num_clusters"), "num_clusters"),  # nearly equal comes first
        ("f1_a_b", ("f1", "f1_a"), "f1_a"),
    ],
)
def test_the_name_that_is_probably_meant_is_suggested(word: str, known: tuple[str, ...], meant: str):
    assert suggest(word, known) == f" (did you mean {meant}?)"


def test_nothing_is_suggested_for_a_word_like_no_other():
    assert suggest("xyz", ("rounds", "seeds")) == ""
    assert suggest("apfl", ("PACFL",), cutoff=0.75) == ""
