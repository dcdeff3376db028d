"""Tests tokens and vocabularies."""

import pytest

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


def test_vocabularies_with_other_words_or_in_another_order_have_other_fingerprints():
    assert len({Vocabulary(words).fingerprint for words in (("a", "b"), ("b", "a"), ("ab",), ("a",), ())}) == 5
    assert Vocabulary(("a", "b")).fingerprint == Vocabulary.of(["b a a"]).fingerprint


def test_texts_that_are_too_long_are_cut_and_no_text_is_all_padding():
    vocabulary = Vocabulary(("a", "b"))
    assert vocabulary.encode(["b b a a b", ""], 3).tolist() == [[3, 3, 2], [0, 0, 0]]
    assert vocabulary.encode([], 3).shape == (0, 3)
