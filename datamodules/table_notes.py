"""Notes on input columns of a table that are probably none: ids, labels, and true clusters."""

import re
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from lit_cfl.errors import Notice, count_noun

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_NEARLY_ALL = 0.9  # share of distinct values in a column that tells lines apart
_EQUAL = 0.9999  # correlation above which an input is the label in another unit, rounded
_MARKS = ("test", "istest", "testset", "holdout", "heldout", "split", "part")  # names of marks of test examples
_MANY_VALUES = 20  # minimum number of different values in a column of measurements
_NO_PAIR = 0.01  # expected number of pairs of equal lines below which chance does not explain one


def find_ids(path: Path, inputs: "DataFrame", distinct: "Series", clients: "Series | None") -> list[str]:
    """Returns the input columns that look like ids, of lines, clients or such as a client's patients; warns of them.

    Args:
        path: Path of the table.
        inputs: Input columns.
        distinct: Number of different values in each of them, by name.
        clients: Client of each line; None = not in the table.
    """
    whole = [name for name in inputs if inputs[name].dtype.kind in "iu"]
    ids = [name for name in whole if len(inputs) > 20 and distinct[name] == len(inputs)]
    _note_ids(path, ids, "a different whole number in every line")
    nearly = [name for name in whole if name not in ids and distinct[name] > _NEARLY_ALL * max(len(inputs), 20)]
    _note_ids(path, nearly, "a different whole number in nearly every line")
    if clients is None or not 2 < (count := clients.nunique()) <= len(inputs) / 2:
        return ids
    likely = [name for name in inputs if name not in ids and distinct[name] == count]
    of_clients = [name for name in likely if (inputs[name].groupby(clients).nunique() == 1).all()]
    _note_ids(path, of_clients, "one number for each client, by which a net can tell clients apart")
    likely = [name for name in whole if count < distinct[name] <= len(inputs) / 2]
    inside = [name for name in likely if (clients.groupby(inputs[name]).nunique() == 1).all()]
    _note_ids(path, inside, "whole numbers that each occur in one client only, by which a net can tell clients apart")
    return ids + of_clients + inside


def line_of(path: Path, row: int) -> int:
    """Returns the number of the line in a file, from 1, that holds a row of its table; pandas skips blank lines."""
    with path.open("rb") as file:
        filled = (number for number, line in enumerate(file, 1) if line.strip())
        return next(islice(filled, row + 1, None), row + 2)


def note_doubled_lines(path: Path, examples: "DataFrame", clients: "Series | None") -> None:
    """Warns of lines that are equal to an earlier one in a table whose measurements hardly repeat by chance.

    Args:
        path: Path of the table.
        examples: Inputs and labels of the table.
        clients: Client of each line; None = not in the table.
    """
    doubled = examples.duplicated()
    count = int(doubled.sum())
    if count and _equal_pairs_by_chance(examples[~doubled]) < _NO_PAIR:
        own = doubled if clients is None else examples.assign(**{str(clients.name): clients}).duplicated()
        of_others = f" ({int((doubled & ~own).sum())} of them one of another client)" if (doubled & ~own).any() else ""
        warnings.warn(
            f"{path}: {count_noun(count, 'line')} repeat{'s' * (count == 1)} an earlier one{of_others}, the first in "
            f"line {line_of(path, int(doubled.to_numpy().argmax()))}; if they were saved twice, remove them "
            "(pandas: table.drop_duplicates()), as they may be trained on and tested",
            Notice,
            stacklevel=3,
        )


def _equal_pairs_by_chance(lines: "DataFrame") -> float:
    """Computes the number of pairs of lines expected to agree in all measurements if these are independent.

    Columns with few different values do not count, as these often depend on each other.
    """
    pairs = max(len(lines) * (len(lines) - 1) / 2, 1)
    expected = pairs
    for name in lines:
        counts = lines[name].value_counts()
        if lines[name].dtype.kind in "iuf" and len(counts) >= _MANY_VALUES:
            expected *= float((counts * (counts - 1)).sum()) / 2 / pairs
    return expected


def _note_ids(path: Path, names: Sequence[str], what: str) -> None:
    _note_inputs(path, names, f", {what}; if that is an id, write the table without it")


def _note_inputs(path: Path, names: Sequence[str], why: str) -> None:
    """Warns of input columns, if there are any; `why` is the rest of the sentence."""
    if names:
        warnings.warn(f"{path}: the inputs include {', '.join(map(repr, names))}{why}", Notice, stacklevel=4)


def find_likely_clusters(inputs: "DataFrame", clients: "Series") -> list[str]:
    """Returns the columns of words or whole numbers that may be true clusters: one for a client, shared by several."""
    likely = [name for name in inputs if inputs[name].dtype.kind != "f"]
    likely = [name for name in likely if 1 < inputs[name].nunique() <= clients.nunique() / 2]
    return [name for name in likely if (inputs[name].groupby(clients).nunique() == 1).all()]


def note_likely_clusters(path: Path, names: Sequence[str]) -> None:
    """Warns of input columns that may be the true clusters."""
    if len(names) > 1:  # such as pandas.get_dummies makes of a column of words
        named = "write one column of its names instead, and name that column: --data.columns.cluster NAME"
        remedy = f"if they tell the true cluster, {named}"
    else:
        remedy = f"if it is the true cluster, name it: --data.columns.cluster {''.join(names)}"
    _note_inputs(path, names, f", the same in all lines of a client, and for several clients; {remedy}")


def note_clusters(path: Path, inputs: "DataFrame", distinct: "Series", clusters: "Series | None") -> None:
    """Warns of input columns that tell the true clusters, which are named as such; see `find_ids`."""
    if clusters is None:
        return
    likely = [name for name in inputs if 1 < distinct[name] <= clusters.nunique()]
    telling = [name for name in likely if (inputs[name].groupby(clusters).nunique() == 1).all()]
    _note_inputs(
        path,
        telling,
        ", the same in all lines of a true cluster, by which a net can tell the clusters apart; if that is the true "
        "cluster again, write the table without it",
    )


def note_marks(path: Path, inputs: "DataFrame") -> None:
    """Warns of input columns of true and false whose names say that they mark the test examples."""
    named = [name for name in inputs if re.sub(r"[\W_]", "", name.lower()) in _MARKS]
    marks = [name for name in named if set(inputs[name].unique()) <= {0, 1}]
    option = f"--data.columns.is_test {quote(''.join(marks[:1]))}"
    _note_inputs(path, marks, f"; if that marks the test examples, name it: {option}")


def note_labels(path: Path, inputs: "DataFrame", distinct: "Series", labels: "Series | None") -> None:
    """Warns of input columns that are the label in another unit, or under other names; see `find_ids`."""
    if labels is None or (count := labels.nunique()) < 2:
        return
    telling = []
    if count > 2 and labels.dtype.kind in "iuf":
        telling = [name for name in inputs if distinct[name] > 2 and abs(inputs[name].corr(labels)) > _EQUAL]
    if count <= len(labels) / 2:  # otherwise labels hardly repeat
        likely = [name for name in inputs if name not in telling and distinct[name] == count]
        telling += [name for name in likely if (inputs[name].groupby(labels).nunique() == 1).all()]
    _note_inputs(
        path,
        [name for name in inputs if name in telling],
        ", from which the label follows exactly; if that is the label again, in another unit or under another name, "
        "write the table without it",
    )
