"""Pretrained word vectors from a text file in GloVe's format: a word and its numbers on each line.

Pennington, Socher, Manning. GloVe: Global Vectors for Word Representation. EMNLP 2014.
"""

import os
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from hashlib import blake2b, file_digest
from pathlib import Path

import numpy as np

from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.errors import InputError
from lit_cfl.storage.given_paths import expand_home

_HEADER = re.compile(r"\d+ \d+\s*")  # first line of word2vec and fastText files: numbers of words and of columns
_REMEDY = "give a text file with a word and its numbers on each line, such as glove.6B.300d.txt"


def locate(path: Path) -> Path:
    """Returns the path of a vector file: as given, or in `glove/` below the folder LITCFL_DATA."""
    local = os.environ.get("LITCFL_DATA")
    other = expand_home(local) / "glove" / path if local else path
    return other if other.is_file() and not path.is_file() else path


def fingerprint(path: Path) -> str:
    """Returns a hash of a vector file. Raises InputError if it cannot be read."""
    with _named_errors(path), path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def read_vectors(path: Path, wanted: Container[str]) -> dict[str, np.ndarray]:
    """Reads the vectors of the wanted words that the file contains, float32 `[width]` each.

    Raises:
        InputError: the file cannot be read, is empty or not UTF-8, has lines of different width or a value that is not
            a number, or none of the wanted words.
    """
    found, first = {}, 0
    for number, line in _lines(path):
        word, _, numbers = line.partition(" ")
        width = numbers.count(" ") + 1 if numbers else 0
        if (number == 1 and _HEADER.fullmatch(line)) or (first and width > first and not _is_number(numbers)):
            continue  # a header with counts, or a word with spaces, which our tokens never contain
        first = first or width
        if width != first or not width:
            expected = f", but line 1 has {first}" if first else ""
            raise InputError(f"line {number} of {path} has {width} numbers{expected}; {_REMEDY}")
        if word in wanted:
            found[word] = _vector(numbers, f"line {number} of {path}")
    if not first:
        raise InputError(f"{path} is empty; {_REMEDY}")
    if not found:
        raise InputError(f"{path} has none of the data's words; {_REMEDY}, in the language of the data")
    return found


def _is_number(numbers: str) -> bool:
    """Returns whether the first field of this text is a number."""
    try:
        float(numbers.partition(" ")[0])
    except ValueError:
        return False
    return True


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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields a file's lines with their numbers, split only at line feeds, as words may contain other line breaks."""
    with _named_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8").rstrip(" \r\n")
            except UnicodeDecodeError as error:
                raise InputError(f"line {number} of {path} is not UTF-8 text ({error}); {_REMEDY}") from error


def _vector(numbers: str, where: str) -> np.ndarray:
    try:
        vector = np.array(numbers.split(" "), dtype=np.float32)
    except ValueError as error:
        raise InputError(f"{where} holds something that is not a number ({error}); {_REMEDY}") from error
    if not np.isfinite(vector).all():
        raise InputError(f"{where} holds a number that is not finite; {_REMEDY}")
    return vector


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"embeddings {path} cannot be read ({error.strerror}); {_REMEDY}") from error
