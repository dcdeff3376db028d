"""Pretrained word vectors from a text file in GloVe's format: a word and its numbers on each line.

Pennington, Socher, Manning. GloVe: Global Vectors for Word Representation. EMNLP 2014.
"""

import os
import re
from collections.abc import Container
from hashlib import blake2b, file_digest
from pathlib import Path

import numpy as np

from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.errors import InputError
from lit_cfl.storage.given_paths import expand_home

_HEADER = re.compile(r"\d+ \d+\s*")  # first line of word2vec and fastText files: numbers of words and of columns
_NUMBER = re.compile(r"[-+]?\.?\d")  # how a number begins
_REMEDY = "give a text file in UTF-8 with a word and its numbers on each line, such as glove.6B.300d.txt"


def locate(path: Path) -> Path:
    """Returns the path of a vector file: as given, or in `glove/` below the folder LITCFL_DATA."""
    local = os.environ.get("LITCFL_DATA")
    other = expand_home(local) / "glove" / path if local else path
    return other if other.is_file() and not path.is_file() else path


def fingerprint(path: Path) -> str:
    """Returns a hash of a vector file. Raises InputError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise InputError(f"embeddings {path} cannot be read ({error.strerror}); {_REMEDY}") from error


def read_vectors(path: Path, wanted: Container[str]) -> dict[str, np.ndarray]:
    """Reads the vectors of the wanted words that the file contains, float32 `[width]` each.

    Raises:
        InputError: the file is not UTF-8 or has none of the wanted words, or the line of a wanted word has another
            number of values than the first line, or a value that is not a finite number.
    """
    found, width = {}, 0
    try:
        with path.open(encoding="utf-8", newline="\n") as file:  # words may contain other line breaks
            for number, line in enumerate(file, 1):
                if number == 1 and _HEADER.fullmatch(line):
                    continue
                word, _, numbers = line.rstrip(" \r\n").partition(" ")
                count = numbers.count(" ") + 1
                width = width or count
                has_spaces = count > width and not _NUMBER.match(numbers)  # our tokens never have
                if word in wanted and not has_spaces:
                    found[word] = _vector(numbers, width, f"line {number} of {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"embeddings {path} cannot be read ({getattr(error, 'strerror', error)}); {_REMEDY}"
        ) from error
    if not found:
        raise InputError(f"{path} has none of the data's words; {_REMEDY}, in the language of the data")
    return found


def with_vectors(vocabulary: Vocabulary, path: Path) -> tuple[Vocabulary, np.ndarray]:
    """Restricts a vocabulary to the words in the file, and reads the table of their vectors.

    Returns:
        the smaller vocabulary, and a vector for each of its ids, float32 `[vocabulary, width]`: zeros for padding and
        unknown words.
    """
    vectors = read_vectors(path, vocabulary.ids)
    known = Vocabulary(tuple(word for word in vocabulary.words if word in vectors))
    rows = np.stack([vectors[word] for word in known.words])
    return known, np.concatenate([np.zeros((len(known) - len(rows), rows.shape[1]), np.float32), rows])


def _vector(numbers: str, width: int, where: str) -> np.ndarray:
    try:
        vector = np.array(numbers.split(" "), dtype=np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if len(vector) != width or not np.isfinite(vector).all():
        raise InputError(f"{where} holds {numbers[:60]!r}, not {width} finite numbers as in the first line; {_REMEDY}")
    return vector
