"""Tests Sentiment140 tweets as token ids and as word vectors, tokens and vocabularies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub import SHARED, glove, tweets
from own_arrays import assert_refused

from lit_cfl.datamodules.glove import read_vectors
from lit_cfl.datamodules.partition import Natural
from lit_cfl.datamodules.sent140 import Sent140
from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.datamodules.tokens import words as tokens_of

pytestmark = pytest.mark.usefixtures("caches")

TWEETS = [
    ("good day , good night", "ann", 4),
    ("bad day", "bob", 0),
    ("so so", "ann", 2),
    ("Good !", "ann", 4),
    ("bad bad night", "bob", 0),
    ("sad", "cat", 0),
]
VECTORS = "good 1 2 3\nbad -1 -2.5 -3e0\nunheard 7 7 7\n, 4 5 6\n"


def all_users(folder: Path, **options: Any) -> Sent140:
    return Sent140(tweets(folder, TWEETS), length=4, partition=Natural(test=0.0), **options)


@pytest.mark.parametrize(
    ("content", "wanted", "expected"),
    [
        (VECTORS, {"bad", ",", "never"}, {"bad": [-1, -2.5, -3], ",": [4, 5, 6]}),
        # a header, and words with spaces
        (
            "4 3\ngood 1 2 3\n. . 7 8 9\nat name@domain.com 1 1 1\nbad -1 -2.5 -3\n",
            {"good", "bad", ".", "at"},
            {"good": [1, 2, 3], "bad": [-1, -2.5, -3]},
        ),
        # characters that elsewhere end a line
        ("a\u0085b 1 2\r\n\u2028 3 4 \nc 5 6", {"a\u0085b", "\u2028"}, {"a\u0085b": [1, 2], "\u2028": [3, 4]}),
    ],
)
def test_vectors_are_those_of_the_wanted_words(content: str, wanted: Any, expected: Any, tmp_path: Path):
    vectors = read_vectors(glove(tmp_path, content), wanted)
    assert {word: vector.tolist() for word, vector in vectors.items()} == expected
    assert {vector.dtype for vector in vectors.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("good 1 2 3\nbad 1 2\n", "line 2 | '1 2' | 3 finite"),
        ("good 1 2 3\nbad 1 x 3\n", "line 2 | '1 x 3' | 3 finite"),
        ("unheard 1 2 3\n", "none of the data's words"),
        (None, "cannot be read | No such file"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(content: str | bytes | None, words: str, tmp_path: Path):
    path = tmp_path / "vectors.txt" if content is None else glove(tmp_path, content)
    assert_refused(all_users(tmp_path, embeddings=path).load, f"{path} | {words}")
    cache = tmp_path / "cache"
    assert not cache.exists() or not list(cache.iterdir()), "nothing half-made stays"


def test_tweets_become_token_ids_of_their_users(tmp_path: Path):
    module = all_users(tmp_path)
    examples, data = module.examples, module.federated(0)
    # counts: bad 3; day, good, night 2; !, ",", Good, sad 1. "so so" is neutral.
    assert examples.inputs.tolist() == [[4, 3, 7, 4], [0, 0, 2, 3], [0, 0, 8, 6], [0, 2, 2, 5], [0, 0, 0, 9]]
    assert (examples.labels.tolist(), examples.num_labels) == ([1, 0, 1, 0, 0], 2)
    assert (examples.vocabulary, examples.input_shape, examples.inputs.dtype) == (10, (4,), torch.int32)
    assert [data.train[client].tolist() for client in range(3)] == [[0, 2], [1, 3], [4]]
    assert (data.num_clients, data.skew, data.true_clusters.tolist()) == (3, "other", [-1, -1, -1])
    short = all_users(tmp_path, padding="end", max_words=2).examples
    assert short.inputs.tolist() == [[1, 3, 1, 1], [2, 3, 0, 0], [1, 1, 0, 0], [2, 2, 1, 0], [1, 0, 0, 0]]
    assert (short.vocabulary, short.words) == (4, Vocabulary(("bad", "day")).fingerprint)


def test_vectors_are_also_looked_for_in_the_folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "glove").mkdir()
    moved = glove(tmp_path, VECTORS).rename(tmp_path / "glove" / "my_vectors.txt")
    monkeypatch.setenv("LITCFL_DATA", str(tmp_path))
    examples = all_users(tmp_path, embeddings=moved.name).examples
    assert (examples.input_shape, examples.vocabulary) == ((4, 3), 3 + 2)  # good, bad and the comma


def test_rows_without_text_or_user_and_neutral_ones_make_no_client(tmp_path: Path):
    rows = [*TWEETS, ("lost", None, 4), ("lost", "", 4), (None, "dan", 0), ("", "eve", 4), ("so so", "fay", 2)]
    module = Sent140(tweets(tmp_path, rows), partition=Natural(min_examples=2, test=0.5))
    assert (module.pool().names, module.pool().owner.tolist()) == (("ann", "bob", "cat"), [0, 1, 0, 1, 2])
    assert (module.pool().num_train, module.pool().has_test) == (5, False)
    data = module.federated(0)  # without cat, who has one tweet
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([1, 1], [1, 1])


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([("good", "ann", 1)], {}, "'sentiment' | 1 in row 0 | 0 (negative)"),
        ([("good", "ann", 2), (None, "ann", 4), ("good", "", 4)], {}, "no tweet"),
        (TWEETS, {}, "30 | 2 | min_examples"),
    ],
)
def test_tweets_that_cannot_be_used_are_refused(rows: list[Any], options: dict[str, int], words: str, tmp_path: Path):
    assert_refused(lambda: Sent140(tweets(tmp_path, rows), **options).federated(0), words)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I can't go, ok?", ["I", "can't", "go", ",", "ok", "?"]),
        ("@user http://t.co/a1 :-) #fun", ["user", "http", "t", ".", "co", "a1", "fun"]),
        ("café...näh", ["café", ".", ".", ".", "näh"]),
    ],
)
def test_tokens_are_words_with_their_case_and_single_marks(text: str, tokens: list[str]):
    assert tokens_of(text) == tokens


def test_vocabularies_with_other_words_or_in_another_order_have_other_fingerprints():
    assert len({Vocabulary(known).fingerprint for known in (("a", "b"), ("b", "a"), ("ab",), ("a",), ())}) == 5
    assert Vocabulary(("a", "b")).fingerprint == Vocabulary.of(["b a a"]).fingerprint


def test_texts_that_are_too_long_are_cut_and_no_text_is_all_padding():
    vocabulary = Vocabulary(("a", "b"))
    assert vocabulary.encode(["b b a a b", ""], 3).tolist() == [[3, 3, 2], [0, 0, 0]]
    assert vocabulary.encode([], 3).shape == (0, 3)


@pytest.mark.nightly
@pytest.mark.skipif(not (SHARED / "sentiment140").is_dir(), reason=f"{SHARED} holds no copy of the tweets")
def test_real_tweets_are_those_of_849_users_with_at_least_8():
    module = Sent140(str(SHARED / "sentiment140"), partition=Natural(min_examples=8))
    assert module.federated(0).num_clients == 849
    assert (len(module.examples), int(module.examples.labels.sum())) == (73_443, 33_853)
    assert module.examples.inputs.shape == (73_443, 25)
    assert module.examples.inputs.any(1).all()
