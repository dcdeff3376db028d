"""Converts texts to token ids."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal, get_args

import numpy as np

from lit_cfl.errors import InputError

Padding = Literal["front", "end"]
PADDING, UNKNOWN = 0, 1  # special ids
_SPECIAL = 2  # id of the first word
_TOKEN = re.compile(r"[\w']+|[.,!?;]")


def words(text: str) -> list[str]:
    """Splits a text into words and the marks . , ! ? ; by LEAF's rule, keeping upper and lower case.

    Words consist of letters, digits, _ and '.

    Caldas et al. LEAF: A Benchmark for Federated Settings. arXiv:1812.01097, `language_utils.py`.
    """
    return _TOKEN.findall(text)


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids, which start at 2; id 0 is padding, id 1 any other word.

    Args:
        words: Distinct words; the first has id 2.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], max_size: int | None = None) -> "Vocabulary":
        """Collects the words of texts, the most frequent first, ties in alphabetical order.

        Args:
            texts: Any number of texts.
            max_size: Maximum number of words, 1 or more; None = no limit.
        """
        counts = Counter[str]()
        for text in texts:
            counts.update(words(text))
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(order[:max_size]))

    def __len__(self) -> int:
        """Counts the ids: those of the words, and those of padding and of unknown words."""
        return len(self.words) + _SPECIAL

    @property
    def fingerprint(self) -> str:
        """Hash of the words in their order."""
        return blake2b("\n".join(self.words).encode(), digest_size=16).hexdigest()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store with token ids: the number of ids (`vocabulary`) and the words' fingerprint (`words`)."""
        return {"vocabulary": np.array(len(self)), "words": np.array(self.fingerprint)}

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, _SPECIAL)}

    def encode(self, texts: Sequence[str], length: int, pad: Padding = "front") -> np.ndarray:
        """Converts the first `length` tokens of each text to ids.

        Args:
            texts: `[N]`.
            length: Number of tokens, 1 or more.
            pad: Side of a shorter text that is padded with 0.

        Returns:
            int32 `[N, length]`.
        """
        if pad not in get_args(Padding):
            raise InputError(f"padding is {pad!r}; give one of {', '.join(get_args(Padding))}")
        encoded = np.full((len(texts), length), PADDING, dtype=np.int32)
        for row, text in zip(encoded, texts, strict=True):
            ids = [self.ids.get(word, UNKNOWN) for word in words(text)[:length]]
            start = length - len(ids) if pad == "front" else 0
            row[start : start + len(ids)] = ids
        return encoded
