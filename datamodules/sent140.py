"""Sentiment140: tweets by user."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from lit_cfl.data import Examples
from lit_cfl.datamodules import glove
from lit_cfl.datamodules.cache import Arrays, read_or_make
from lit_cfl.datamodules.columns import labels_of, number_clients
from lit_cfl.datamodules.image_sets import pool_of
from lit_cfl.datamodules.partition import Natural, Partition, Pool
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.source import Source, find
from lit_cfl.datamodules.tokens import Padding, Vocabulary
from lit_cfl.errors import InputError
from lit_cfl.storage.given_paths import expand_home

NEGATIVE, NEUTRAL, POSITIVE = 0, 2, 4  # polarity, in the column `sentiment`
_PARQUET_COPY = "refs/convert/parquet"


class Sent140(PooledDataModule):
    """Negative and positive tweets (Sentiment140, 2009) as token ids or word vectors: 2 labels, one client per user.

    Only the split `train` of the Hub copy (1,600,000 tweets) is used: the 498 tweets of `test` are by other users, and
    some are neutral. Neutral tweets and rows without text or user are left out. The papers have 772 users with 40,783
    tweets (LEAF `-k 30`, 80 % for training), drawn without a public seed. Not tried on the live Hub.

    Args:
        source: Hub id, or a local folder in the same format (columns text, user, sentiment: 0 negative, 4 positive).
        revision: Branch, tag or commit of the Hub copy; null = the Parquet copy that the Hub makes (the source's own
            files are a script, which `datasets` no longer runs).
        length: Tokens kept of each tweet, 1 or more; shorter tweets are padded.
        padding: Padding at the `front` (FlexCFL) or at the `end` (FedProx, FedGroup).
        embeddings: Text file of GloVe vectors, such as glove.6B.300d.txt; it may be in `glove/` of LITCFL_DATA. Nets
            get these vectors, which stay fixed, and zeros for padding and unknown words (as in the papers). null: nets
            get token ids, and train an embedding.
        max_words: Size of the vocabulary without `embeddings`, 1 or more: the most frequent words of all users' tweets.
        partition: Rule that divides the tweets among clients.
        options: Options of `PooledDataModule`.
    """

    paper: ClassVar[str] = "Go, Bhayani, Huang. Twitter Sentiment Classification using Distant Supervision. 2009"

    def __init__(
        self,
        source: str = "stanfordnlp/sentiment140",
        revision: str | None = None,
        length: int = 25,
        padding: Padding = "front",
        embeddings: str | Path | None = None,
        max_words: int = 10_000,
        partition: Partition = Natural(min_examples=30, test=0.2),
        **options: Any,
    ) -> None:
        super().__init__(partition, **options)
        for name, value in {"length": length, "max_words": max_words}.items():
            if value < 1:
                raise InputError(f"data.{name} is {value}; it must be 1 or more")
        self.source, self.revision, self.length, self.padding = source, revision, length, padding
        self.embeddings, self.max_words = None if embeddings is None else expand_home(embeddings), max_words

    def pool(self) -> Pool:
        source = find(self.source, self.revision or _PARQUET_COPY, names=["user"])
        self.commit = source.commit
        embeddings = None if self.embeddings is None else glove.locate(self.embeddings)
        known = str(self.max_words) if embeddings is None else glove.fingerprint(embeddings)
        key = ["sent140 4", source.fingerprint, str(self.length), self.padding, known]
        arrays = read_or_make(key, lambda: self._read(source, embeddings))
        tokens, labels = torch.from_numpy(arrays["tokens"]), torch.from_numpy(arrays["labels"])
        vectors = torch.from_numpy(arrays["embeddings"]) if "embeddings" in arrays else None
        vocabulary, words = int(arrays["vocabulary"]), str(arrays["words"])
        return pool_of(Examples(tokens, labels, 2, embeddings=vectors, vocabulary=vocabulary, words=words), arrays)

    def _read(self, source: Source, embeddings: Path | None) -> Arrays:
        table = source.table(["text", "user", "sentiment"], ["train"])
        polarity = labels_of(table["sentiment"], "label column 'sentiment'")[0]
        if len(wrong := np.flatnonzero(~np.isin(polarity, [NEGATIVE, NEUTRAL, POSITIVE]))):
            raise InputError(
                f"column 'sentiment' holds {polarity[wrong[0]]} in row {wrong[0]} (from 0); it must be 0 (negative), "
                "2 (neutral) or 4 (positive)"
            )
        owned = [bool(text and user) for text, user in zip(table["text"], table["user"], strict=True)]
        kept = np.flatnonzero(owned & (polarity != NEUTRAL))
        if not len(kept):
            raise InputError(
                f"{self.source} holds no tweet with a text, a user and a sentiment of 0 or 4; give another source"
            )
        texts = [table["text"][row] for row in kept]
        owner, names = number_clients([table["user"][row] for row in kept], "client column 'user'")
        arrays = {
            "labels": (polarity[kept] == POSITIVE).astype(np.int64),
            "num_train": np.array(len(kept)),
            "owner": owner,
            "names": names,
        }
        vocabulary = Vocabulary.of(texts, self.max_words if embeddings is None else None)
        if embeddings is not None:
            vocabulary, arrays["embeddings"] = glove.with_vectors(vocabulary, embeddings)
        tokens = vocabulary.encode(texts, self.length, self.padding)
        return arrays | vocabulary.arrays | {"tokens": tokens}
