"""The tweets of Sentiment140, as token ids or as word vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub import fresh_caches
from tweets import TWEETS, VECTORS, all_users, glove, tweets

from lit_cfl.datamodules.glove import read_vectors
from lit_cfl.datamodules.partition import Natural
from lit_cfl.datamodules.sent140 import Sent140
from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.errors import InputError


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


# Word vectors


def test_vectors_are_those_of_the_wanted_words(tmp_path: Path):
    vectors = read_vectors(glove(tmp_path), {"bad", ",", "never"})
    assert {word: vector.tolist() for word, vector in vectors.items()} == {"bad": [-1, -2.5, -3], ",": [4, 5, 6]}
    assert vectors["bad"].dtype == np.float32


def test_header_and_words_with_spaces_are_passed_over(tmp_path: Path):
    content = "4 3\ngood 1 2 3\n. . 7 8 9\nat name@domain.com 1 1 1\nbad -1 -2.5 -3\n"
    vectors = read_vectors(glove(tmp_path, content), {"good", "bad", ".", "at"})
    assert {word: vector.tolist() for word, vector in vectors.items()} == {"good": [1, 2, 3], "bad": [-1, -2.5, -3]}


def test_words_may_hold_characters_that_elsewhere_end_a_line(tmp_path: Path):
    content = "a\u0085b 1 2\r\n\u2028 3 4 \nc 5 6"
    vectors = read_vectors(glove(tmp_path, content), {"a\u0085b", "\u2028", "c"})
    assert [vector.tolist() for vector in vectors.values()] == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("good 1 2 3\nbad 1 2\n", r"line 2 of .*vectors.txt has 2 numbers, but line 1 has 3; give a text file"),
        ("good 1 2 3\nbad 1 2 3 4\n", "line 2 of .* has 4 numbers, but line 1 has 3"),
        ("good\n", "line 1 of .* has 0 numbers; give"),
        ("good 1 2 3\n\nbad 1 2 3\n", "line 2 of .* has 0 numbers, but line 1 has 3"),
        ("good 1 2 3\nbad 1 x 3\n", "line 2 of .* holds something that is not a number"),
        ("good 1 nan 3\n", "line 1 of .* holds a number that is not finite"),
        ("", "vectors.txt is empty; give a text file"),
        ("unheard 1 2 3\n", "has none of the data's words"),
        (b"good 1 2 3\nb\xe9d 1 2 3\n", "line 2 of .* is not UTF-8 text"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(content: str | bytes, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        all_users(tmp_path, embeddings=glove(tmp_path, content)).load()
    assert not list((tmp_path / "cache").iterdir()), "nothing half-made stays"


@pytest.mark.parametrize(("name", "reason"), [("none.txt", "No such file"), ("tweets", "Is a directory")])
def test_vectors_that_cannot_be_read_are_refused(name: str, reason: str, tmp_path: Path):
    with pytest.raises(InputError, match=f"embeddings .*{name} cannot be read \\({reason}"):
        all_users(tmp_path, embeddings=str(tmp_path / name)).load()


# Tweets


def test_tweets_become_token_ids_of_their_users(tmp_path: Path):
    module = all_users(tmp_path)
    examples, data = module.examples, module.federated(0)
    # bad 3; day, good, night 2; !, ",", Good, sad 1. "so so" is neutral.
    assert examples.inputs.tolist() == [[4, 3, 7, 4], [0, 0, 2, 3], [0, 0, 8, 6], [0, 2, 2, 5], [0, 0, 0, 9]]
    assert (examples.labels.tolist(), examples.num_labels) == ([1, 0, 1, 0, 0], 2)
    assert (examples.vocabulary, examples.input_shape, examples.inputs.dtype) == (10, (4,), torch.int32)
    assert [data.train[client].tolist() for client in range(3)] == [[0, 2], [1, 3], [4]]
    assert (data.num_clients, data.skew, data.true_clusters.tolist()) == (3, "other", [-1, -1, -1])


def test_tweets_can_be_padded_at_the_end_and_the_vocabulary_limited(tmp_path: Path):
    examples = all_users(tmp_path, padding="end", max_words=2).examples
    assert examples.inputs.tolist() == [[1, 3, 1, 1], [2, 3, 0, 0], [1, 1, 0, 0], [2, 2, 1, 0], [1, 0, 0, 0]]
    assert (examples.vocabulary, examples.words) == (4, Vocabulary(("bad", "day")).fingerprint)


def test_vectors_stand_in_place_of_known_words_and_zeros_elsewhere(tmp_path: Path):
    module = all_users(tmp_path, embeddings=glove(tmp_path))
    inputs, labels = module.examples.batch(torch.arange(5))
    good, bad, none = [1.0, 2, 3], [-1.0, -2.5, -3], [0.0, 0, 0]
    assert inputs.tolist() == [
        [good, none, [4, 5, 6], good],
        [none, none, bad, none],
        [none] * 4,
        [none, bad, bad, none],
        [none] * 4,
    ]
    assert (inputs.dtype, labels.tolist()) == (torch.float32, [1, 0, 1, 0, 0])
    assert (module.examples.input_shape, module.examples.vocabulary) == ((4, 3), 3 + 2)
    assert module.examples.inputs.dtype == torch.int32


def test_a_name_of_vectors_is_also_looked_for_in_the_folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = all_users(tmp_path, embeddings=glove(tmp_path)).examples.embeddings
    (tmp_path / "glove").mkdir()
    lies = Path(glove(tmp_path)).rename(tmp_path / "glove" / "my_vectors.txt")
    monkeypatch.setenv("LITCFL_DATA", str(tmp_path))
    found = all_users(tmp_path, embeddings=lies.name).examples.embeddings
    assert found is not None
    assert torch.equal(found, expected)


def test_rows_without_text_or_user_and_neutral_ones_make_no_client(tmp_path: Path):
    rows = [*TWEETS, ("lost", None, 4), ("lost", "", 4), (None, "dan", 0), ("", "eve", 4), ("so so", "fay", 2)]
    pool = Sent140(tweets(tmp_path, rows)).pool()
    assert (pool.names, pool.owner.tolist()) == (("ann", "bob", "cat"), [0, 1, 0, 1, 2])
    assert (pool.num_train, pool.has_test) == (5, False)


def test_users_with_few_tweets_are_left_out(tmp_path: Path):
    data = Sent140(tweets(tmp_path), partition=Natural(min_examples=2, test=0.5)).federated(0)
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([1, 1], [1, 1])
    with pytest.raises(InputError, match="no client has 30 examples, the largest has 2; lower min_examples"):
        Sent140(tweets(tmp_path)).federated(0)


@pytest.mark.parametrize("change", [{"length": 3}, {"padding": "end"}, {"max_words": 3}, {"embeddings": "vectors.txt"}])
def test_cache_tells_options_apart(change: dict[str, Any], tmp_path: Path):
    glove(tmp_path)
    if "embeddings" in change:
        change = {"embeddings": tmp_path / change["embeddings"]}
    options = {"length": 4, "partition": Natural()}
    before, after = Sent140(tweets(tmp_path), **options).load(), Sent140(tweets(tmp_path), **options | change).load()
    assert not torch.equal(before.inputs, after.inputs)
    again = Sent140(tweets(tmp_path), **options).load()
    assert torch.equal(before.inputs, again.inputs)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_cache_tells_contents_of_a_vectors_file_apart(tmp_path: Path):
    one = all_users(tmp_path, embeddings=glove(tmp_path)).load()
    other = all_users(tmp_path, embeddings=glove(tmp_path, VECTORS.replace("bad", "day"))).load()
    assert not torch.equal(one.inputs, other.inputs)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("good", "ann", 1)], "column 'sentiment' holds 1 in row 0 .*0 .negative., 2 .neutral. or 4 .positive."),
        ([("good", "ann", 4), ("good", "ann", None)], "'sentiment' holds None in row 1"),
        ([("good", "ann", 2), (None, "ann", 4), ("good", "", 4)], "holds no tweet with a text, a user"),
    ],
)
def test_tweets_that_cannot_be_used_are_refused(rows: list[tuple[Any, Any, Any]], message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        Sent140(tweets(tmp_path, rows)).load()


@pytest.mark.parametrize("option", ["length", "max_words"])
def test_numbers_below_one_are_refused(option: str):
    with pytest.raises(InputError, match=f"data.{option} is 0; it must be 1 or more"):
        Sent140(**{option: 0})
