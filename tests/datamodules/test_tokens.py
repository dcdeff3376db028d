"""Tests tokens and vocabularies."""

from typing import Any

import numpy as np
import pytest
from own_arrays import assert_refused

from lit_cfl.datamodules.tokens import Vocabulary, words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I can't go, ok?", ["I", "can't", "go", ",", "ok", "?"]),
        ("@user http://t.co/a1 :-) #fun", ["user", "http", "t", ".", "co", "a1", "fun"]),
        ("café...näh", ["café", ".", ".", ".", "näh"]),
    ],
)
def test_tokens_are_words_with_their_case_and_single_marks(text: str, tokens: list[str]):
    assert words(text) == tokens


def test_most_frequent_word_comes_first_and_ties_are_alphabetical():
    assert Vocabulary.of(["b a c", "c b", "c B d"]).words == ("c", "b", "B", "a", "d")
    assert Vocabulary.of(["b a c", "c b", "c B d"], max_size=3).words == ("c", "b", "B")
    assert len(Vocabulary(("c", "b"))) == 2 + 2


def test_texts_are_padded_in_front_or_at_the_end_and_cut():
    vocabulary = Vocabulary(("a", "b"))
    texts = ["a b", "", "b b a a b", "x a X"]
    front, end = vocabulary.encode(texts, 3), vocabulary.encode(texts, 3, pad="end")
    assert front.tolist() == [[0, 2, 3], [0, 0, 0], [3, 3, 2], [1, 2, 1]]
    assert end.tolist() == [[2, 3, 0], [0, 0, 0], [3, 3, 2], [1, 2, 1]]
    assert (front.dtype, vocabulary.encode([], 3).shape) == (np.int32, (0, 3))
    left: Any = "left"
    assert_refused(lambda: vocabulary.encode(["a"], 2, left), "'left' | front, end")


def test_vocabularies_with_other_words_or_in_another_order_have_other_fingerprints():
    assert len({Vocabulary(words).fingerprint for words in (("a", "b"), ("b", "a"), ("ab",), ("a",), ())}) == 5
    assert Vocabulary(("a", "b")).fingerprint == Vocabulary.of(["b a a"]).fingerprint
