"""Reads a `.csv` table: a column of labels, a column of clients, and columns of numbers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lit_cfl.datamodules.columns import EXACT
from lit_cfl.datamodules.table_notes import (
    find_ids,
    find_likely_clusters,
    line_of,
    note_clusters,
    note_doubled_lines,
    note_labels,
    note_likely_clusters,
    note_marks,
)
from lit_cfl.errors import InputError, suggest
from lit_cfl.storage.given_paths import describe_missing

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ROLES = ("y", "client", "cluster", "is_test")
_PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_SAMPLE = 2**20  # bytes of a file that are searched for another encoding or separator


def read_table(path: Path, columns: Mapping[str, str | None]) -> dict[str, np.ndarray]:
    """Reads a table whose first line names its columns.

    Args:
        path: Path of the file.
        columns: Names of the columns `y` (labels, required), `client`, `cluster` and `is_test`, if they have other
            names; None as the name of y = no labels.

    Returns:
        x, float32 `[N, columns]`, from all other columns in their order; `input_names` `[columns]`, and `ids`, those of
        them that seem to number the lines, the clients or parts of a client; and y, client, cluster and is_test `[N]`
        as in the file, if it has them.

    Raises:
        InputError: the file is not a table, lacks a column, or has a cell that is empty or is not a number.
    """
    for role in columns:
        if role not in ROLES:
            raise InputError(
                f"columns has {role!r}{suggest(role, ROLES, 0.7)}; it takes y (the labels), client, cluster and "
                "is_test, each with the name of its column in the table, such as {y: NAME, client: NAME}; all other "
                "columns are inputs: write the table without those that are none"
            )
    found = {role: name for role in ROLES if (name := columns.get(role, role)) is not None}
    if twice := [name for name in found.values() if list(found.values()).count(name) > 1]:
        roles = " and ".join(role for role, name in found.items() if name == twice[0])
        raise InputError(f"columns gives {twice[0]!r} as {roles}; give each its own column, or leave one out")
    table = _read(path, found.get("client"))
    _require_columns(path, table, found, columns)
    _require_filled(path, table, found.get("cluster"))
    inputs = [name for name in table.columns if name not in found.values()]
    clients = table.get(found.get("client"))
    is_known = clients is None or found.get("cluster") in table.columns
    clusters = [] if is_known else find_likely_clusters(table[inputs], clients)
    _require_numbers(path, table[inputs], "inputs must be numbers", clients is not None, clusters)
    if "y" in found and _holds_numbers(table[found["y"]]):  # otherwise each number would be a class
        _require_numbers(path, table[[found["y"]]], "most labels are numbers")
    _require_finite(path, table[[name for name in [*inputs, found.get("y")] if name in table]])
    if clients is not None and is_known:
        _require_one_cluster(path, clients, table[found["cluster"]])
    note_doubled_lines(path, table[[*inputs, *([found["y"]] if "y" in found else [])]], clients)
    distinct = table[inputs].nunique()
    note_labels(path, table[inputs], distinct, table.get(found.get("y")))
    note_marks(path, table[inputs])
    ids = find_ids(path, table[inputs], distinct, clients)
    note_clusters(path, table[inputs], distinct, table.get(found.get("cluster")))
    note_likely_clusters(path, clusters)
    if not inputs:
        raise InputError(f"{path} has no column besides {', '.join(table.columns)}; add columns of numbers as inputs")
    arrays = {role: table[name].to_numpy() for role, name in found.items() if name in table.columns}
    names = {"input_names": np.array(inputs, dtype=str), "ids": np.array(ids, dtype=str)}
    return {"x": table[inputs].to_numpy(np.float32), **names, **arrays}


def _read(path: Path, client: str | None) -> "DataFrame":
    """Reads a file as a table, and the column named `client` as ids; see `_as_ids`.

    Raises:
        InputError: the file is not a table whose first line names its columns.
    """
    import pandas  # takes most of a second, and only tables need it

    try:
        _require_csv(path)
        # in a single pass, as the dtype of a column must not depend on the first part of a large file
        table = pandas.read_csv(path, low_memory=False, dtype={} if client is None else {client: str})
        head = pandas.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
    except InputError:  # is a ValueError, too, but needs no further explanation
        raise
    except FileNotFoundError as error:
        raise InputError(describe_missing(path, "file")) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError:
        _require_csv(path, is_utf8=False)
        raise
    except pandas.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty; write a table into it whose first line names its columns") from error
    except ValueError as error:  # base class of pandas' errors
        if cells := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            most, line, number = cells.groups()
            raise InputError(
                f"{path}: line {line} has {number} cells, but the lines before it have at most {most}; correct it, and "
                'put a cell that contains a comma into quotes, such as "a, b"'
            ) from error
        raise InputError(
            f"{path} is not a table of comma-separated columns ({str(error).partition(chr(10))[0]}); save it as CSV"
        ) from error
    twice = head[head.duplicated() & head.notna()]  # pandas calls the second y 'y.1'
    if len(twice):
        _require_names(path, head.dropna().tolist(), "has no names of columns")
        raise InputError(f"{path} has two columns {twice.iloc[0]!r}; give each column its own name")
    # if lines have additional cells, pandas takes their first cells for row names
    if not isinstance(table.index, pandas.RangeIndex):
        first = ", ".join(map(repr, head.dropna()))
        raise InputError(
            f"{path}: its lines have more cells than the first line, which must name all columns, but has {first}; "
            "name all columns, and remove any lines above their names"
        )
    if client in table:
        table[client] = _as_ids(table[client])
    return table


def _as_ids(words: "Series") -> "Series":
    """Converts a column of words to numbers, unless some are none, have leading zeros (007), or would be rounded."""
    import pandas

    numbers = pandas.to_numeric(words, errors="coerce")
    is_word = (numbers.isna() & words.notna()) | words.str.match(r"\s*0\d", na=False)
    is_rounded = numbers.dtype.kind == "f" and bool((numbers.abs() >= EXACT).any())
    return words if is_word.any() or is_rounded else numbers


def _require_columns(
    path: Path, table: "DataFrame", found: Mapping[str, str], columns: Mapping[str, str | None]
) -> None:
    """Raises InputError if the table lacks a column that has a role, or has no line.

    Args:
        found: Names of the columns by role, with the usual names of roles that have no other.
        columns: Names that the user gave.
    """
    for role, name in found.items():
        if name not in table.columns and (role in columns or role == "y"):
            hint = suggest(name, map(_quote_spaces, map(str, table.columns)), 0.7)
            _require_names(path, [str(one) for one in table.columns], f"has no column {name!r}")
            remedy = "" if columns else "; say which are the labels and the clients: columns: {y: NAME, client: NAME}"
            if role == "y" and columns and not hint:
                remedy = "; without labels: columns: {y: null, client: NAME}"
            if role in ("cluster", "is_test"):
                others = ", ".join(f"{one}: {columns[one]}" for one in ROLES if one in columns and one != role)
                why = "the true clusters are not known" if role == "cluster" else "test examples are drawn at random"
                remedy = f"; if {why}, leave it out: --data.columns '{{{others}}}'"
            has = ", ".join(_quote_spaces(str(one)) for one in table.columns)
            raise InputError(f"{path} has no column {name!r}{hint}; it has {has}{remedy}")
    if not len(table):
        raise InputError(f"{path} has no line below its column names")


def _require_filled(path: Path, table: "DataFrame", clusters: str | None) -> None:
    """Raises InputError for the first empty cell; `clusters` is the name of the column of true clusters."""
    import pandas

    empty = table.isna()
    if not empty.any(axis=None):
        return
    name = table.columns[empty.any()][0]
    row, lines = int(empty[name].to_numpy().argmax()), int(empty.any(axis=1).sum())
    if empty[name].all():
        raise InputError(
            f"{path}: column {name!r} is empty in all lines; remove it (a column of equal numbers becomes empty if it "
            "is divided by its standard deviation, 0)"
        )
    more = f" ({lines} lines have empty cells)" if lines > 1 else ""
    cell = pandas.read_csv(path, dtype=str, keep_default_na=False)[name].iloc[row]
    is_word = isinstance(cell, str) and bool(cell.strip())
    problem = f"has {cell!r}, a missing value," if is_word else "is empty"
    remedy = "fill such cells, or drop their lines"
    if name == clusters:
        remedy = (
            "agreement with the true clusters is measured only if all are known: if some are not, write the table "
            "without this column, and leave cluster out"
        )
    elif is_word and table[name].dtype.kind == "O":
        remedy += f"; if {cell!r} is a name, spell it differently"
    raise InputError(f"{path}: column {name!r} {problem} in line {line_of(path, row)}{more}; {remedy}")


def _require_finite(path: Path, columns: "DataFrame") -> None:
    """Raises InputError for the first infinite number."""
    for name in columns.columns[columns.dtypes.map(lambda kind: kind.kind == "f")]:
        if (infinite := np.isinf(columns[name].to_numpy())).any():
            line = line_of(path, int(infinite.argmax()))
            raise InputError(
                f"{path}: column {name!r} is infinite in line {line}; fill such cells with numbers, or drop their lines"
            )


def _require_one_cluster(path: Path, clients: "Series", clusters: "Series") -> None:
    """Raises InputError for the first line whose true cluster is not that of its client's first line."""
    of_client = clusters.groupby(clients).transform("first")
    if not (differs := (clusters != of_client).to_numpy()).any():
        return
    first = int(differs.argmax())
    here, before = clusters.tolist()[first], of_client.tolist()[first]
    count = clients[differs].nunique()
    more = f" ({count} clients have several)" if count > 1 else ""
    raise InputError(
        f"{path}: column {clusters.name!r} has {here!r} in line {line_of(path, first)}, but {before!r} in the first "
        f"line of client {clients[first]}{more}; a client has only one true cluster: correct such cells, or "
        "leave cluster out of columns"
    )


def _require_names(path: Path, first: Sequence[str], problem: str) -> None:
    """Raises InputError if the first line of a table holds a number with a decimal point, and so no names."""
    if any(re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", cell) for cell in first):
        raise InputError(
            f"{path} {problem}: its first line must name the columns, but holds {', '.join(map(repr, first))}; write "
            "a line of names above it"
        )


def _quote_spaces(name: str) -> str:
    """Quotes a name that begins or ends with a space, which could not be seen otherwise."""
    return name if name == name.strip() else repr(name)


def _require_csv(path: Path, is_utf8: bool = True) -> None:
    """Raises InputError if a table is not UTF-8 or not separated by commas; the message shows how to convert it."""
    with path.open("rb") as file:
        sample = file.read(_SAMPLE)
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        at_the_end = len(sample) == _SAMPLE and error.start > _SAMPLE - 4  # the sample ends inside a character
        is_utf8 = is_utf8 and at_the_end
    wrong, options = [], {}
    if not is_utf8:
        wrong.append("is not in UTF-8")
        options["encoding"] = "utf-16" if sample.startswith((b"\xff\xfe", b"\xfe\xff")) else "cp1252"
    first = sample.partition(b"\n")[0]
    separator = next((one for one in ";\t|" if first.count(one.encode()) > first.count(b",")), None)
    if separator is not None:
        wrong.append(f"separates its columns by {separator!r}, not by commas")
        # Excel writes decimal commas if it separates columns by semicolons
        options |= {"sep": separator} | ({"decimal": ","} if separator == ";" else {})
    if wrong:
        given = "".join(f", {name}={value!r}" for name, value in options.items())
        raise InputError(
            f"{path} {' and '.join(wrong)}; convert it, for example by "
            f"pandas.read_csv({path.name!r}{given}).to_csv({path.name!r}, index=False)"
        )


def _require_numbers(
    path: Path, columns: "DataFrame", what: str, has_clients: bool = True, clusters: Sequence[str] = ()
) -> None:
    """Raises InputError if columns contain words or decimal commas; the message quotes the first one of each column.

    Args:
        columns: Columns to check.
        what: Requirement, for the message.
        has_clients: True if a column names the clients.
        clusters: Names of columns that may hold the true clusters.
    """
    import pandas

    words, commas, cells, missing, is_text, mixed = [], True, True, [], False, ""
    for name in (name for name in columns if columns[name].dtype.kind not in "iufb"):
        column, comma = columns[name], _find_decimal_commas(columns[name])
        wrong = pandas.to_numeric(column, errors="coerce").isna() & ~comma
        shown = wrong if wrong.any() else comma
        first = int(shown.to_numpy().argmax())
        # the line is named only if other cells of the column are numbers
        line = "" if shown.all() else f" in line {line_of(path, first)}"
        if line and shown.sum() > 1:
            line += f" ({shown.sum()} such cells)"
        cells = cells and wrong.mean() <= 0.5
        commas = commas and bool(comma.any())
        # pandas.read_csv(decimal=",") would read the other cells of such a column as words
        if comma.any() and column[~comma & ~wrong].astype(str).str.contains(".", regex=False).any():
            mixed = str(column[int(comma.to_numpy().argmax())]).strip()
        words.append(f"column {name!r} has {_shorten(column[first])!r}{line}")
        missing += column[wrong].unique().tolist()
        is_text = is_text or len(str(column[first]).split()) > 3
    if not words:
        return
    remedy = "leave such columns out, or encode them as numbers"
    if commas and mixed:
        remedy = f"write decimal points in such cells, as in the others: {mixed.replace(',', '.')}"
    elif commas:
        remedy = _decimal_points(path, missing)
    elif cells:  # words among numbers probably stand for missing values
        remedy = "fill such cells with numbers, or drop their lines"
    elif series := [name for name in columns if _holds_several_numbers(columns[name])]:
        remedy = (
            f"write a column for each number of a cell, such as table[{series[0]!r}].str.strip('[]')"
            ".str.split(r'[ ,;]+', expand=True).astype(float)"
        )
    elif not has_clients:
        remedy += ", or say which names the clients: columns: {client: NAME}"
    elif is_text:
        remedy += "; texts are read by HFDataset"
    if parts := [name for name in columns if _tells_parts(columns[name])]:
        remedy += f"; if {parts[0]!r} tells the test examples, write table['is_test'] = table[{parts[0]!r}] == 'test'"
    if named := [name for name in clusters if columns[name].dtype.kind not in "iufb"]:
        remedy += f"; if {named[0]!r} is the true cluster, name it: columns: {{cluster: {named[0]}}}"
    raise InputError(f"{path}: {what}, but {', '.join(words)}; {remedy}")


def _shorten(cell: object) -> object:
    return f"{cell[:40]}..." if isinstance(cell, str) and len(cell) > 60 else cell


def _holds_several_numbers(column: "Series") -> bool:
    """Returns whether the first cell of a column of words holds three or more numbers, such as "0.1 0.5 -2"."""
    parts = re.split(r"[\s,;]+", str(column.iloc[0]).strip(" []"))
    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
    return column.dtype.kind not in "iufb" and len(parts) > 2 and all(map(number.fullmatch, parts))


def _tells_parts(column: "Series") -> bool:
    """Returns whether a column of words names the parts of a data set, such as train and test."""
    return column.dtype.kind not in "iufb" and set(column.astype(str).str.strip().str.lower()) <= _PARTS


def _holds_numbers(column: "Series") -> bool:
    """Returns whether most cells of a column of words are numbers with a decimal point or comma."""
    import pandas

    points = column.astype(str).str.contains(".", regex=False) & pandas.to_numeric(column, errors="coerce").notna()
    return column.dtype.kind not in "iufb" and bool((points | _find_decimal_commas(column)).mean() > 0.5)


def _find_decimal_commas(column: "Series") -> "Series":
    """Marks the cells that are numbers with a decimal comma, such as 2,5: bool `[N]`."""
    return column.astype(str).str.fullmatch(r"\s*[-+]?\d*,\d+\s*")


def _decimal_points(path: Path, words: Sequence[str]) -> str:
    given = f", na_values={words[:3]}" if words else ""
    return (
        f"write decimal points, for example by pandas.read_csv({path.name!r}, decimal=','{given})"
        f".to_csv({path.name!r}, index=False)"
    )
