"""Tokens, vocabularies, word vectors, and the tweets of Sentiment140."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Value
from hub import SHARED, fresh_caches, write
from hypothesis import given
from hypothesis import strategies as st

from datamodules.glove import read_vectors
from datamodules.partition import Natural
from datamodules.sent140 import Sent140
from datamodules.tokens import Vocabulary, words
from lit_cfl.configuration import parse_run
from lit_cfl.errors import InputError
from lit_cfl.experiment import Prepared
from lit_cfl.rounds import Round

FEATURES = {name: Value("string") for name in ("text", "date", "user", "query")} | {"sentiment": Value("int32")}
TWEETS = [
    ("good day , good night", "ann", 4),
    ("bad day", "bob", 0),
    ("so so", "ann", 2),
    ("Good !", "ann", 4),
    ("bad bad night", "bob", 0),
    ("sad", "cat", 0),
]
VECTORS = "good 1 2 3\nbad -1 -2.5 -3e0\nunheard 7 7 7\n, 4 5 6\n"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


def tweets(folder: Path, rows: list[tuple[Any, Any, Any]] = TWEETS) -> str:
    """A folder in the Hub's form; the split `test` has other users, as there."""
    parts = {"train": rows, "test": [("of somebody else", "zoe", 4), ("no opinion", "yan", 2)]}
    columns = {
        split: {
            "text": [text for text, _, _ in part],
            "date": ["Mon Apr 06 22:19:45 PDT 2009"] * len(part),
            "user": [user for _, user, _ in part],
            "sentiment": [sentiment for _, _, sentiment in part],
            "query": ["NO_QUERY"] * len(part),
        }
        for split, part in parts.items()
    }
    return str(write(folder / "tweets", {name: FEATURES[name] for name in columns["train"]}, **columns))


def all_users(folder: Path, **options: Any) -> Sent140:
    return Sent140(tweets(folder), length=4, partition=Natural(test=0.0), **options)


def glove(folder: Path, content: str | bytes = VECTORS) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I can't go, ok?", ["I", "can't", "go", ",", "ok", "?"]),
        ("WOW!!! So_good;", ["WOW", "!", "!", "!", "So_good", ";"]),
        ("@user http://t.co/a1 :-) #fun", ["user", "http", "t", ".", "co", "a1", "fun"]),
        ("café...näh", ["café", ".", ".", ".", "näh"]),
        ("  :-( *&^\t\n", []),
        ("", []),
    ],
)
def test_tokens_are_words_with_their_case_and_single_marks(text: str, tokens: list[str]):
    assert words(text) == tokens


def test_most_frequent_word_comes_first_and_ties_are_alphabetical():
    vocabulary = Vocabulary.of(["b a c", "c b", "c B d"])
    assert vocabulary.words == ("c", "b", "B", "a", "d")
    assert Vocabulary.of(["b a c", "c b", "c B d"], max_size=3).words == ("c", "b", "B")
    assert len(vocabulary) == 5 + 2


def test_texts_are_padded_in_front_or_at_the_end_and_cut():
    vocabulary = Vocabulary(("a", "b"))
    texts = ["a b", "", "b b a a b", "x a X"]
    front, end = vocabulary.encode(texts, 3), vocabulary.encode(texts, 3, pad="end")
    assert front.tolist() == [[0, 2, 3], [0, 0, 0], [3, 3, 2], [1, 2, 1]]
    assert end.tolist() == [[2, 3, 0], [0, 0, 0], [3, 3, 2], [1, 2, 1]]
    assert (front.dtype, vocabulary.encode([], 3).shape) == (np.int32, (0, 3))


@given(st.lists(st.text("ab ,.!'", max_size=12), max_size=6), st.integers(1, 9))
def test_ids_turn_back_into_the_first_words(texts: list[str], length: int):
    vocabulary = Vocabulary.of(texts)
    for pad in ("front", "end"):
        encoded = vocabulary.encode(texts, length, pad)
        back = [[vocabulary.words[number - 2] for number in row if number] for row in encoded.tolist()]
        assert back == [words(text)[:length] for text in texts]


@pytest.mark.parametrize("size", [0, -1])
def test_vocabulary_without_words_is_refused(size: int):
    with pytest.raises(InputError, match=f"vocabulary of {size} words"):
        Vocabulary.of(["a"], size)
    with pytest.raises(InputError, match=f"texts of {size} tokens"):
        Vocabulary(("a",)).encode(["a"], size)


# Word vectors


def test_vectors_are_those_of_the_wanted_words(tmp_path: Path):
    vectors = read_vectors(glove(tmp_path), {"bad", ",", "never"})
    assert {word: vector.tolist() for word, vector in vectors.items()} == {"bad": [-1, -2.5, -3], ",": [4, 5, 6]}
    assert vectors["bad"].dtype == np.float32


def test_words_may_hold_characters_that_elsewhere_end_a_line(tmp_path: Path):
    content = "a\u0085b 1 2\r\n\u2028 3 4 \nc 5 6"
    vectors = read_vectors(glove(tmp_path, content), {"a\u0085b", "\u2028", "c"})
    assert [vector.tolist() for vector in vectors.values()] == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("good 1 2 3\nbad 1 2\n", r"line 2 of .*vectors.txt has 2 numbers, but line 1 has 3; give a text file"),
        ("400000 300\ngood 1 2 3\n", "line 2 of .* has 3 numbers, but line 1 has 1"),
        ("good\n", "line 1 of .* has 0 numbers; give"),
        ("good 1 2 3\n\nbad 1 2 3\n", "line 2 of .* has 0 numbers, but line 1 has 3"),
        ("good 1 2 3\nbad 1 x 3\n", "line 2 of .* holds something that is no number"),
        ("good 1 nan 3\n", "line 1 of .* holds a number that is not finite"),
        ("", "vectors.txt is empty; give a text file"),
        ("unheard 1 2 3\n", "has none of the data's words"),
        (b"good 1 2 3\nb\xe9d 1 2 3\n", "line 2 of .* is no UTF-8 text"),
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
    assert examples.vocabulary == 4


def test_vectors_stand_in_place_of_known_words_and_zeros_elsewhere(tmp_path: Path):
    module = all_users(tmp_path, embeddings=glove(tmp_path))
    inputs, labels = module.examples.batch(torch.arange(5))
    good, bad, none = [1.0, 2, 3], [-1.0, -2.5, -3], [0.0, 0, 0]
    assert inputs.tolist() == [
        [good, none, [4, 5, 6], good], [none, none, bad, none], [none] * 4, [none, bad, bad, none], [none] * 4,
    ]  # fmt: skip
    assert (inputs.dtype, labels.tolist()) == (torch.float32, [1, 0, 1, 0, 0])
    assert (module.examples.input_shape, module.examples.vocabulary) == ((4, 3), 3 + 2)
    assert module.examples.inputs.dtype == torch.int32


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


def test_missing_column_is_refused_with_those_there_are(tmp_path: Path):
    folder = write(tmp_path / "other", {"text": Value("string")}, train={"text": ["good"]})
    with pytest.raises(InputError, match="has no column 'user'; it has text"):
        Sent140(str(folder)).load()


@pytest.mark.parametrize("option", ["length", "max_words"])
def test_numbers_below_one_are_refused(option: str):
    with pytest.raises(InputError, match=f"data.{option} is 0; it must be 1 or more"):
        Sent140(**{option: 0})


# Rounds of FedAvg, from a configuration

NETS = {
    "trained embedding": "{class_path: Sent140GRU, init_args: {embedding_width: 20}}",
    "word vectors": "FedGroupLSTM",
}
needs_real_tweets = pytest.mark.skipif(
    not (SHARED / "sentiment140").is_dir(), reason=f"{SHARED} holds no copy of the tweets"
)


def one_round(
    folder: Path, source: Path | str, min_examples: int, data: str, net: str, epochs: int = 2
) -> tuple[Prepared, Round]:
    """A round of FedAvg with two clients, of the four that there are at most."""
    config = folder / "config.yaml"
    config.write_text(
        "data:\n"
        "  class_path: Sent140\n"
        "  init_args:\n"
        f"    source: {source}\n"
        "    partition:\n"
        "      class_path: Natural\n"
        f"      init_args: {{min_examples: {min_examples}, max_clients: 4, test: 0.2}}\n"
        f"    {data}\n"
        "task:\n"
        "  class_path: Classification\n"
        "  init_args:\n"
        f"    net: {NETS[net]}\n"
        "    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.3}}\n"
        "algorithm: FedAvg\n"
        "rounds: 1\n"
        "cohort_size: 2\n"
        f"local: {{epochs: {epochs}, batch_size: 10}}\n"
    )
    prepared = parse_run(["--config", str(config)]).experiment.prepare(0)
    (round,) = prepared.rounds()
    return prepared, round


def made_tweets(folder: Path) -> str:
    """Two users with 16 tweets of two words, and one with a single tweet."""
    rows = [(f"{word} day", user, 4 * (word == "good")) for user in ("ann", "bob") for word in ["good", "bad"] * 8]
    return tweets(folder, [*rows, ("rare", "cat", 4)])


def test_round_with_word_vectors_learns_to_tell_two_words_apart(tmp_path: Path):
    source, vectors = made_tweets(tmp_path), glove(tmp_path)
    prepared, round = one_round(tmp_path, source, 16, f"embeddings: {vectors}", "word vectors", epochs=15)
    losses, correct = prepared.engine.outcomes(round.state.models[0], prepared.data.train.entries, prepared.data)
    assert correct.all()
    assert float(losses.mean()) < 0.5


def test_round_trains_the_embedding_of_the_words_that_clients_have(tmp_path: Path):
    prepared, round = one_round(tmp_path, made_tweets(tmp_path), 16, "max_words: 4", "trained embedding")
    (slot,) = (slot for slot in prepared.engine.layout.slots if slot.layer == "net.embedding")
    models = prepared.engine.initial(0), round.state.models[0]
    before, after = (model[slot.start : slot.stop].view(slot.shape) for model in models)
    changed = (before != after).any(1).tolist()
    # ids: padding, unknown (nobody has one), day, bad, good, and rare, which only the third user has
    assert changed == [False, False, True, True, True, False]
    assert not after[0].any()


@needs_real_tweets
@pytest.mark.parametrize("net", NETS)
def test_round_on_real_tweets_trains_every_client_of_the_cohort(net: str, tmp_path: Path):
    vectors = SHARED / "glove" / "glove.6B.300d.subset.txt"
    data = f"embeddings: {vectors}" if net == "word vectors" else "max_words: 1000"
    prepared, round = one_round(tmp_path, SHARED / "sentiment140", 20, data, net)
    assert (prepared.data.num_clients, round.info.up, round.info.skipped) == (4, 2, 0)
    model = round.state.models[0]
    assert model.isfinite().all()
    assert float((model - prepared.engine.initial(0)).norm()) > 0.01
    losses, _ = prepared.engine.outcomes(model, prepared.data.test.entries, prepared.data)
    assert len(losses) == int(prepared.data.test.sizes.sum()) > 4
    assert losses.isfinite().all()


@needs_real_tweets
def test_real_tweets_are_those_of_849_users_with_at_least_8():
    module = Sent140(str(SHARED / "sentiment140"), partition=Natural(min_examples=8))
    assert module.federated(0).num_clients == 849
    assert (len(module.examples), int(module.examples.labels.sum())) == (73_443, 33_853)
    assert module.examples.inputs.shape == (73_443, 25)
    assert module.examples.inputs.any(1).all()
