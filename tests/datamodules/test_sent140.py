"""Tests Sentiment140 tweets as token ids and as word vectors, and rounds of training on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub import SHARED, fresh_caches
from tweets import TWEETS, VECTORS, all_users, glove, tweets

from lit_cfl.config.parser import parse_run
from lit_cfl.datamodules.glove import read_vectors
from lit_cfl.datamodules.partition import Natural
from lit_cfl.datamodules.sent140 import Sent140
from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.errors import InputError
from lit_cfl.experiment import PreparedRun
from lit_cfl.rounds import Round


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
        ("good 1 2 3\nbad 1 2\n", r"line 2 of .*vectors.txt holds '1 2', not 3 finite numbers as .*; give a text file"),
        ("good 1 2 3\nbad 1 2 3 4\n", "line 2 of .* holds '1 2 3 4', not 3 finite numbers"),
        ("good\n", "line 1 of .* holds '', not 1 finite number"),
        ("good 1 2 3\nbad 1 x 3\n", "line 2 of .* holds '1 x 3', not 3 finite numbers"),
        ("good 1 nan 3\n", "line 1 of .* holds '1 nan 3', not 3 finite numbers"),
        ("", "has none of the data's words; give a text file"),
        ("unheard 1 2 3\n", "has none of the data's words"),
        (b"good 1 2 3\nb\xe9d 1 2 3\n", "cannot be read .*'utf-8' codec can't decode byte 0xe9"),
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
    # counts: bad 3; day, good, night 2; !, ",", Good, sad 1. "so so" is neutral.
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
def test_cache_distinguishes_options(change: dict[str, Any], tmp_path: Path):
    glove(tmp_path)
    if "embeddings" in change:
        change = {"embeddings": tmp_path / change["embeddings"]}
    options = {"length": 4, "partition": Natural()}
    before, after = Sent140(tweets(tmp_path), **options).load(), Sent140(tweets(tmp_path), **options | change).load()
    assert not torch.equal(before.inputs, after.inputs)
    again = Sent140(tweets(tmp_path), **options).load()
    assert torch.equal(before.inputs, again.inputs)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_cache_distinguishes_contents_of_a_vectors_file(tmp_path: Path):
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


NETS = {
    "trained embedding": "{class_path: Sent140GRU, init_args: {embedding_width: 20}}",
    "word vectors": "FedGroupLSTM",
    "none": "MCLR",
}


needs_real_tweets = pytest.mark.skipif(
    not (SHARED / "sentiment140").is_dir(), reason=f"{SHARED} holds no copy of the tweets"
)


def one_round(
    folder: Path, source: Path | str, min_examples: int, data: str, net: str, epochs: int = 2
) -> tuple[PreparedRun, Round]:
    """Runs a round of FedAvg on tweets, with two clients in the cohort."""
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
    """Writes 16 tweets of two words for each of two users, and one tweet of a third user."""
    rows = [(f"{word} day", user, 4 * (word == "good")) for user in ("ann", "bob") for word in ["good", "bad"] * 8]
    return tweets(folder, [*rows, ("rare", "cat", 4)])


def test_round_with_word_vectors_learns_to_tell_two_words_apart(tmp_path: Path):
    source, vectors = made_tweets(tmp_path), glove(tmp_path)
    prepared, round = one_round(tmp_path, source, 16, f"embeddings: {vectors}", "word vectors", epochs=15)
    found = prepared.engine.outcomes(round.state.models[0], prepared.data.train.entries, prepared.data)
    assert found.values.all()
    assert float(found.losses.mean()) < 0.5


def test_net_without_an_embedding_is_refused_with_those_that_have_one(tmp_path: Path):
    with pytest.raises(InputError, match=r"token ids: choose a net with an embedding .*Sent140GRU"):
        one_round(tmp_path, made_tweets(tmp_path), 16, "max_words: 4", "none")


def test_round_trains_the_embedding_of_the_words_that_clients_have(tmp_path: Path):
    prepared, round = one_round(tmp_path, made_tweets(tmp_path), 16, "max_words: 4", "trained embedding")
    (slot,) = (slot for slot in prepared.engine.layout.slots if slot.layer == "net.embedding")
    models = prepared.engine.initial(0), round.state.models[0]
    before, after = (model[slot.start : slot.stop].view(slot.shape) for model in models)
    changed = (before != after).any(1).tolist()
    # ids: padding, unknown (which no tweet has), day, bad, good, and `rare`, which only the third user has
    assert changed == [False, False, True, True, True, False]
    assert not after[0].any()


@pytest.mark.nightly
@needs_real_tweets
@pytest.mark.parametrize("net", [net for net in NETS if net != "none"])
def test_round_on_real_tweets_trains_every_client_of_the_cohort(net: str, tmp_path: Path):
    vectors = SHARED / "glove" / "glove.6B.300d.subset.txt"
    data = f"embeddings: {vectors}" if net == "word vectors" else "max_words: 1000"
    prepared, round = one_round(tmp_path, SHARED / "sentiment140", 20, data, net)
    assert (prepared.data.num_clients, round.info.up, round.info.skipped) == (4, 2, 0)
    model = round.state.models[0]
    assert model.isfinite().all()
    assert float((model - prepared.engine.initial(0)).norm()) > 0.01
    losses = prepared.engine.outcomes(model, prepared.data.test.entries, prepared.data).losses
    assert len(losses) == int(prepared.data.test.sizes.sum()) > 4
    assert losses.isfinite().all()


@pytest.mark.nightly
@needs_real_tweets
def test_real_tweets_are_those_of_849_users_with_at_least_8():
    module = Sent140(str(SHARED / "sentiment140"), partition=Natural(min_examples=8))
    assert module.federated(0).num_clients == 849
    assert (len(module.examples), int(module.examples.labels.sum())) == (73_443, 33_853)
    assert module.examples.inputs.shape == (73_443, 25)
    assert module.examples.inputs.any(1).all()
