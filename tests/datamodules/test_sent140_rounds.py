"""Rounds of FedAvg on tweets, from a configuration."""

from pathlib import Path

import pytest
from hub import SHARED, fresh_caches
from tweets import glove, tweets

from lit_cfl.config.parser import parse_run
from lit_cfl.datamodules.partition import Natural
from lit_cfl.datamodules.sent140 import Sent140
from lit_cfl.errors import InputError
from lit_cfl.experiment import PreparedRun
from lit_cfl.rounds import Round


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


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


@pytest.mark.long
def test_round_with_word_vectors_learns_to_tell_two_words_apart(tmp_path: Path):
    source, vectors = made_tweets(tmp_path), glove(tmp_path)
    prepared, round = one_round(tmp_path, source, 16, f"embeddings: {vectors}", "word vectors", epochs=15)
    found = prepared.engine.outcomes(round.state.models[0], prepared.data.train.entries, prepared.data)
    assert found.values.all()
    assert float(found.losses.mean()) < 0.5


def test_net_without_an_embedding_is_refused_with_those_that_have_one(tmp_path: Path):
    with pytest.raises(InputError, match=r"token ids: choose a net with an embedding .*Sent140GRU"):
        one_round(tmp_path, made_tweets(tmp_path), 16, "max_words: 4", "none")


@pytest.mark.long
def test_round_trains_the_embedding_of_the_words_that_clients_have(tmp_path: Path):
    prepared, round = one_round(tmp_path, made_tweets(tmp_path), 16, "max_words: 4", "trained embedding")
    (slot,) = (slot for slot in prepared.engine.layout.slots if slot.layer == "net.embedding")
    models = prepared.engine.initial(0), round.state.models[0]
    before, after = (model[slot.start : slot.stop].view(slot.shape) for model in models)
    changed = (before != after).any(1).tolist()
    # ids: padding, unknown (nobody has one), day, bad, good, and rare, which only the third user has
    assert changed == [False, False, True, True, True, False]
    assert not after[0].any()


@pytest.mark.full
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


@pytest.mark.full
@needs_real_tweets
def test_real_tweets_are_those_of_849_users_with_at_least_8():
    module = Sent140(str(SHARED / "sentiment140"), partition=Natural(min_examples=8))
    assert module.federated(0).num_clients == 849
    assert (len(module.examples), int(module.examples.labels.sum())) == (73_443, 33_853)
    assert module.examples.inputs.shape == (73_443, 25)
    assert module.examples.inputs.any(1).all()
