"""Converts columns to arrays: labels, clients, true clusters, numbers.

Names stay as they are written: `1e3`, `1000` and ` 1000` are three clients. Numbers of a column of numbers are values.
"""

import warnings
from collections.abc import Sequence
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from lit_cfl.errors import InputError, Notice

TIMES = "give numbers, or dates such as 2024-03-05 or 2024-03-05 14:30"
_EXACT = 2**53  # smallest whole number that a float cannot tell from the next


def labels_of(values: Any, what: str, remedy: str = "number them") -> tuple[np.ndarray, tuple[str, ...]]:
    """Converts a column to labels, int64 `[N]`: whole numbers stay unchanged, words are numbered in ascending order.

    Args:
        values: Column, as for `scalars`.
        what: Name of the column, for errors.
        remedy: Remedy to name if a number is not whole.

    Returns:
        the labels, and the names of 0, 1, ... if they are words; empty for numbers.

    Raises:
        InputError: a label is missing, or is neither a whole number nor a word.
    """
    array = scalars(values, what)
    if array.dtype.kind == "U":
        labels, names = number_clients(array, what)
        return labels, tuple(names.tolist())
    if array.dtype.kind == "M":
        raise InputError(f"{what} holds {array[0]} in row 0; give a column of integers or strings")
    if array.dtype.kind == "f" and len(broken := np.flatnonzero((array != np.floor(array)) | (abs(array) >= _EXACT))):
        raise InputError(f"{what} holds {array[broken[0]]} in row {broken[0]}, not a whole number; {remedy}")
    return array.astype(np.int64), ()


def categories_of(values: Any) -> tuple[str, ...]:
    """Returns the categories of a pandas column of words, in their order; empty for any other column."""
    names = tuple(getattr(getattr(values, "dtype", None), "categories", ()))
    return names if all(isinstance(name, str) for name in names) else ()


def number_by(order: Sequence[str | int] | None, values: Any, what: str) -> tuple[Any, tuple[str, ...]]:
    """Numbers the values of a column, as for `scalars`, by a given order, or by that of its categories.

    Returns:
        the numbers, int64 `[N]`, and the values in their order, as text; without an order, the column unchanged.

    Raises:
        InputError: a value is not in the order, or occurs twice in it.
    """
    names = categories_of(values) if order is None else tuple(map(str, order))
    if not names:
        return values, ()
    found, index = np.unique(scalars(values, what).astype(np.str_), return_inverse=True)
    unknown = [name for name in found.tolist() if name not in names]
    if unknown or len(set(names)) < len(names):
        wrong = f"holds {unknown[0]!r}, which is not one" if unknown else "has a value twice in the list"
        raise InputError(f"{what} {wrong} of {', '.join(names)}; fix the list, or the data")
    return np.array([names.index(name) for name in found.tolist()])[index], names


def times_of(values: Any, what: str) -> np.ndarray:
    """Converts a column of times, as for `scalars`, to numbers or datetime64, which sort in the order of time `[N]`.

    Times are numbers, dates, or dates as text in ISO 8601. Raises InputError if one is missing or cannot be read.
    """
    array = scalars(values, what)
    if array.dtype.kind != "U":
        return array
    times, wrong = times_in_text(array)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{what} holds {str(array[row])!r} in row {row} (from 0); {TIMES}")
    return times


def times_in_text(words: Any) -> tuple[np.ndarray, np.ndarray]:
    """Reads numbers, or else dates as `dates_in` reads them `[N]`. Returns them, and which cannot be read `[N]`."""
    import pandas  # takes most of a second, and few columns need it

    numbers = pandas.to_numeric(pandas.Series(words), errors="coerce").to_numpy()
    times = np.asarray(numbers) if np.isfinite(numbers).all() else dates_in(words)
    return times, pandas.isna(times)


def dates_in(words: Any) -> np.ndarray:
    """Reads dates in ISO 8601, datetime64 `[N]` in UTC; NaT for anything else."""
    import pandas

    text = pandas.Series(words).astype(str).str.strip()
    text = text.where(text.str.match(r"\d"))  # pandas reads words such as "today", too
    dates = pandas.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    plain: np.ndarray = dates.dt.tz_localize(None).to_numpy()
    return plain


def read_text(words: np.ndarray) -> np.ndarray:
    """Reads a column of labels or true clusters from a text file: as numbers, unless that would merge two spellings.

    Args:
        words: Cells as they are written `[N]`.

    Returns:
        integers or floats `[N]` if all cells are written so, without leading zeros, and each value in one way (not
        `1e3` and `1000`); otherwise the words, such as `true`, str `[N]`.
    """
    spelled, index = np.unique(words.astype(np.str_), return_inverse=True)
    plain = [word.strip() for word in spelled.tolist()]
    try:
        values = np.array([float(word.replace("_", "?")) for word in plain])  # float would read 1_0 as 10
    except ValueError:
        return spelled[index]
    digits = [word.lstrip("+-") for word in plain]
    if any(len(word) > 1 and word[0] == "0" and word[1].isdigit() for word in digits):
        return spelled[index]
    if all(word.isdecimal() for word in digits) and abs(values).max() < _EXACT:
        values = values.astype(np.int64)
    return values[index] if len(np.unique(values)) == len(spelled) else spelled[index]


def several_labels(
    values: Sequence[Any], what: str, names: Sequence[str] | None = None, num_labels: int | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Converts a column of lists to several labels per example, bool `[N, L]`, or float32 for values between 0 and 1.

    Lists of one length that contain only 0 and 1, bools or floats have an entry for each label. All others contain the
    labels that an example has: their numbers from 0, or words, which are numbered in ascending order.

    Args:
        values: One list per row.
        what: Name of the column, for errors.
        names: Names of the labels 0, 1, ... if the source has them; the lists then hold numbers.
        num_labels: L; None = as many as the lists show.

    Returns:
        the labels, and their names; empty if they have none.

    Raises:
        InputError: a row is not a list, or a list contains something that is not a label.
    """
    for row, value in enumerate(values):
        if not isinstance(value, list) or None in value:
            raise _missing_value(what, value, row)
    sizes = np.array([len(value) for value in values])
    flat = scalars([entry for value in values for entry in value], f"{what} (its entries, counted over all rows)")
    if not len(flat):
        raise InputError(f"{what} holds only empty lists; give each example the labels that it has")
    wide = sizes.max() > 1 and (sizes == (num_labels or sizes[0])).all() and names is None
    if wide and (flat.dtype.kind in "bf" or (flat.dtype.kind in "iu" and ((flat == 0) | (flat == 1)).all())):
        table = flat.reshape(len(values), -1)
        return (table.astype(bool) if ((table == 0) | (table == 1)).all() else table.astype(np.float32)), ()
    labels, words = labels_of(flat, what, "give lists of one length, with an entry for each label, or whole numbers")
    known, rows = tuple(names or words), np.repeat(np.arange(len(values)), sizes)
    size = num_labels or len(known) or label_space(labels, what)
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= size))):
        row = rows[wrong[0]]
        raise InputError(f"{what} holds {labels[wrong[0]]} in row {row}, but labels are 0 to {size - 1}; fix the data")
    table = np.zeros((len(values), size), bool)
    table[rows, labels] = True
    return table, pad_names(known, size)


def label_space(labels: np.ndarray, what: str) -> int:
    """Returns the number of classes, 1 + the largest label.

    Args:
        labels: Labels, int64 `[N]`.
        what: Name of the column, for the message.

    Raises:
        InputError: so few numbers below the largest occur that the labels must be ids.
    """
    known = np.unique(labels.clip(min=0))  # `require_in_range` reports negative numbers
    size = int(known[-1]) + 1
    if size > 10 * len(known):
        raise InputError(
            f"{what} holds {len(known)} different labels, the largest {size - 1}: these are ids, and a net has an "
            "output for each number from 0; number them, y = np.unique(y, return_inverse=True)[1], give them as "
            "strings, or set num_labels (0 for numbers to predict)"
        )
    return size


def pad_names(names: Sequence[str], size: int) -> tuple[str, ...]:
    """Extends label names to `size` labels, naming the others by number; empty if there are no names."""
    return (*names, *map(str, range(len(names), size)))[:size] if names else ()


def require_in_range(labels: np.ndarray, num_labels: int, what: str) -> np.ndarray:
    """Returns labels int64 `[N]` unchanged. Raises InputError if a label is not in 0 to `num_labels - 1`."""
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= num_labels))):
        raise InputError(
            f"{what} holds {labels[wrong[0]]} in row {wrong[0]} (from 0, test rows after the training rows), but "
            f"labels are 0 to {num_labels - 1}; fix the data, or set num_labels (0 for numbers to predict)"
        )
    return labels


def classes_of(
    values: Any, what: str, num_labels: int | None = None, names: Sequence[str] | None = None
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Converts a column to classes.

    Args:
        values: Column, as for `scalars`.
        what: Name of the column, for errors.
        num_labels: Number of classes; None = as many as are named, or the largest label + 1.
        names: Names of the classes if the source has them; the column then holds numbers.

    Returns:
        the classes, int64 `[N]`, their number, and their names; empty for numbers.
    """
    labels, words = labels_of(values, what, "give num_labels: 0 if the labels are numbers to predict")
    names = words if names is None else names
    size = num_labels or len(names) or label_space(labels, what)
    return require_in_range(labels, size, what), size, pad_names(names, size)


def number_clients(values: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers clients by their names, which are numbers, words or dates.

    Words that are all numbers have the order of their values. Warns of names that look alike.

    Returns:
        the client of each row, int64 `[N]`, 0 to n - 1 in ascending order of the names; and the names, str `[n]`.
    """
    array = scalars(values, what)
    if array.dtype.kind == "f":
        largest, exact = array[abs(array).argmax()], 2 ** (np.finfo(array.dtype).nmant + 1)
        if abs(largest) >= exact:
            raise InputError(
                f"{what} holds {float(largest)}, but {array.dtype} cannot represent all whole numbers from {exact} "
                "on; give integers or strings"
            )
        if (array == np.floor(array)).all():  # pandas stores integers of a column with former blanks as floats
            array = array.astype(np.int64)
    found, index = np.unique(array, return_inverse=True)
    if found.dtype.kind == "U":
        try:
            order = np.lexsort((found, found.astype(np.float64)))
        except ValueError:  # the values are words
            order = np.arange(len(found))
        found, index = found[order], order.argsort()[index]
    names = found.astype(np.str_)
    warn_of_similar_names(names.tolist(), what)
    return index.astype(np.int64), names


def warn_of_similar_names(names: Sequence[str], what: str) -> None:
    """Warns of the first name that is empty, or differs from another only in blanks, capitals or Unicode forms.

    Args:
        names: Distinct values of a column.
        what: Name of the column.
    """
    plain = {"": ""}
    for name in names:
        seen = " ".join(normalize("NFKC", name).split())
        seen = seen.casefold() if len(seen) > 1 else seen  # single letters keep their case: A and a may be two classes
        if seen not in plain:
            plain[seen] = name
            continue
        other = plain[seen]
        # if the names look the same, only escapes show the difference
        show = ascii if seen and normalize("NFC", name) == normalize("NFC", other) else repr
        named = f"{show(other)} and {show(name)}" if seen else f"{name!r} and other names"
        warnings.warn(
            f"{what} holds {named}, which are treated as different names; make them equal if they mean the same "
            "(str.strip, str.lower, unicodedata.normalize), or drop rows without a name",
            Notice,
            stacklevel=4,
        )
        return


def scalars(values: Any, what: str) -> np.ndarray:
    """Converts a column with one value per row to an array `[N]` of integers, floats, bools, words or dates.

    Args:
        values: Array, tensor, pandas column, or list; bytes are words in UTF-8, or else in Latin-1.
        what: Name of the column, for errors.

    Raises:
        InputError: a value is missing or of another kind, or the column mixes them.
    """
    # NumPy would convert ["a", 1] to words
    array = np.fromiter(values, object, len(values)) if isinstance(values, list | tuple) else as_array(values, what)
    if array.ndim != 1:
        raise InputError(f"{what} has shape {array.shape}; give one number or word in each row")
    if array.dtype.kind in "SO":
        array = _convert_objects(array.astype(object), what)
    if array.dtype.kind not in "iufbUM":
        raise InputError(f"{what} has dtype {array.dtype}; give integers or strings")
    if array.dtype.kind in "fM" and (missing := np.isnat(array) if array.dtype.kind == "M" else np.isnan(array)).any():
        raise _missing_value(what, array[missing.argmax()], int(missing.argmax()))
    return array


def as_array(values: Any, what: str) -> np.ndarray:
    """Converts values to an array. Raises InputError if that is impossible, or if a mask would be lost."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        row = int(np.argwhere(np.ma.getmaskarray(values))[0][0])
        raise InputError(f"{what} is masked in row {row}, and masks are not read; fill in the value, or drop such rows")
    try:
        if isinstance(values, list | tuple) and values and all(isinstance(value, Tensor) for value in values):
            values = torch.stack(list(values))
        if isinstance(values, Tensor):
            return values.detach().cpu().numpy()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # the list is ragged, or NumPy does not have the dtype
        raise InputError(
            f"{what} is not an array ({error}); give a NumPy array, a tensor, or a list with rows of equal length"
        ) from error


def _convert_objects(values: np.ndarray, what: str) -> np.ndarray:
    """Converts Python objects of one kind to an array of words or numbers; dates become words."""
    import pandas  # takes most of a second, and few columns need it

    if (missing := pandas.isna(values)).any():
        raise _missing_value(what, values[missing.argmax()], int(missing.argmax()))
    kind, items = pandas.api.types.infer_dtype(values, skipna=False), values.tolist()
    if kind in ("date", "datetime", "time"):
        return np.array([value.isoformat() for value in items])
    if kind == "bytes":
        try:
            items = [value.decode() for value in items]
        except UnicodeDecodeError:  # Latin-1 gives different bytes different texts
            items = [value.decode("latin-1") for value in items]
    elif kind not in ("string", "boolean", "integer", "floating", "mixed-integer-float", "empty"):
        row = next((row for row, value in enumerate(items) if type(value) is not type(items[0])), 0)
        raise InputError(
            f"{what} holds {items[row]!r} in row {row}; give one number or word in each row, all of one kind"
        )
    if ended := [word for word in items if isinstance(word, str) and word.endswith("\0")]:
        raise InputError(f"{what} holds {ended[0]!r}, and NumPy drops such an end; leave it out")
    return np.array(items)


def _missing_value(what: str, value: Any, row: int) -> InputError:
    return InputError(f"{what} holds {value} in row {row} (from 0); fix the data or drop the row")


def matrix(parts: Sequence[Sequence[np.ndarray]], what: str) -> np.ndarray:
    """Converts number columns to one array `[N, ...]`: int32 if all values are integers that fit, else float32.

    Args:
        parts: Splits of one column `[n, ...]`, or splits of several scalar columns `[n]`, which become the columns of
            `[N, columns]`.
        what: Name of the columns, for errors.

    Raises:
        InputError: rows differ in length, or a value is NaN or not a number.
    """
    try:
        whole = [np.concatenate(splits) for splits in parts]
        array = whole[0] if len(whole) == 1 else np.stack(whole, axis=1)
        small = array.dtype.kind in "iu" and array.size and max(abs(int(array.min())), int(array.max())) < 2**31
        array = np.asarray(array, dtype=np.int32 if small else np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} cannot be converted to one array of numbers ({error}); give rows of equal length"
        ) from error
    array = array[:, None] if array.ndim == 1 else array
    missing = np.flatnonzero(np.isnan(array.reshape(len(array), -1)).any(axis=1))
    if len(missing):
        raise InputError(f"{what} holds NaN or an empty value in row {missing[0]}; fix the data or drop the row")
    return array
