"""Reads a table (.csv, .tsv, .txt, .parquet, .xlsx): labels, clients, true clusters, test marks, times, numbers."""

import csv
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from lit_cfl.datamodules.columns import TIMES, categories_of, dates_in, read_text, times_in_text
from lit_cfl.errors import InputError, Notice, suggest
from lit_cfl.storage.given_paths import describe_missing

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ROLES = ("y", "client", "cluster", "is_test", "time")
ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".xlsx")
_NUMBER = r"[-+]?[\d,]*\.?\d*([eE][-+]?\d+)?"
_THOUSANDS = r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?"
_WHICH_COMMAS = (
    "write decimal points in all columns: 1.5 for 1,5, and 1500 for 1,500, as commas could be read both ways"
)


def read_table(path: Path, columns: Mapping[str, str | None]) -> dict[str, np.ndarray]:
    """Reads a table whose first row names its columns.

    Clients keep their names as they are written. Commas in numbers are decimal commas or stand between thousands; see
    `_replacement_of_commas`.

    Args:
        path: Path of the file.
        columns: Names of the columns `y` (labels, required), `client`, `cluster` and `is_test`, if they have other
            names, and of a column `time`; None as the name of y = no labels.

    Returns:
        x, float32 `[N, columns]`, from all other columns in their order but those of dates, with their names in
        `input_names`; and y, client, cluster, is_test and time `[N]`, if the file has them; categories as in pandas.

    Raises:
        InputError: the file is not a table, lacks a column, or has a cell that is empty or is not a number.
    """
    names = _names_of_roles(columns)
    sheet = _read(path, list(names.values()))
    table, found = sheet.table, {role: name for role, name in names.items() if name in sheet.table}
    for role, name in names.items():
        if role not in found and (role == "y" or role in columns):
            has = ", ".join(one if one == one.strip() else repr(one) for one in table)
            raise InputError(
                f"{path} has no column {name!r}{suggest(name, table, 0.7)}; it has {has} (columns: {{y: NAME, client: "
                "NAME} says which are the labels and the clients; y: null = no labels)"
            )
    inputs = table.drop(columns=list(found.values()))
    if not len(table) or not len(inputs.columns):
        raise InputError(f"{path} has no line below its column names, or no column of inputs; add some")
    sheet.require_good(table.isna(), "fill such cells, or drop their rows or the column")
    if "time" in found:
        sheet.require_good(table[[found["time"]]].apply(lambda words: times_in_text(words)[1]), TIMES)
    labels = [table[found["y"]]] if "y" in found else []
    comma = _replacement_of_commas([*(inputs[name] for name in inputs), *labels], sheet.separator)
    numbers = inputs.apply(_to_numbers, comma=comma)
    dates = [name for name in numbers if numbers[name].isna().all() and not np.isnat(dates_in(inputs[name])).any()]
    numbers = numbers.drop(columns=dates)
    if dates:
        future = "" if {"time", "is_test"} & found.keys() else "; under a random split, rows of the future train"
        warnings.warn(
            f"{path}: column {dates[0]!r} holds dates, which are no inputs{future}; give columns: {{time: "
            f"{dates[0]}}} to test on each client's last rows",
            Notice,
            stacklevel=2,
        )
    rule = "fill such cells, drop their rows, or leave out or encode a column of words (write dates as 2024-03-05)"
    sheet.require_good(
        ~np.isfinite(numbers.astype(float)), _WHICH_COMMAS if comma == "," else f"inputs must be finite numbers: {rule}"
    )
    arrays: dict[str, Any] = {role: table[name].to_numpy() for role, name in found.items()}
    arrays |= {role: table[name] for role, name in found.items() if categories_of(table[name])}
    if sheet.is_text:
        arrays |= {role: read_text(arrays[role]) for role in ("y", "cluster") if role in arrays}
    if labels and arrays["y"].dtype.kind not in "iufb":
        arrays["y"] = _numbers_to_predict(sheet, labels[0], comma, arrays["y"])
    _note_ids(path, numbers, table[found["client"]] if "client" in found else None)
    return {"x": numbers.to_numpy(np.float32), "input_names": np.array(numbers.columns, dtype=str), **arrays}


def _names_of_roles(columns: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the column of each role. Raises InputError for an unknown role, or two roles of one column."""
    usual = {role: role for role in ROLES if role != "time"}  # a column of this name may be an input
    names = {role: name for role, name in (usual | dict(columns)).items() if name is not None}
    if not columns.keys() <= {*ROLES} or len(set(names.values())) < len(names):
        raise InputError(
            f"columns is {dict(columns)}; it takes {', '.join(ROLES)}, each with the name of a column of its own, such "
            "as {y: NAME, client: NAME}; all other columns are inputs"
        )
    return names


@dataclass(frozen=True)
class _Sheet:
    """A table as it was read.

    Args:
        table: The table; of a text file, columns that have a role are text.
        separator: Character between the columns of a text file; "" = another file.
        is_text: True if the columns that have a role are text.
    """

    path: Path
    table: "DataFrame"
    separator: str = ""
    is_text: bool = False

    def require_good(self, wrong: "DataFrame", rule: str) -> None:
        """Raises InputError with `rule` for the first wrong cell; counts the others in its column."""
        columns = wrong.columns[wrong.any()]
        if not len(columns):
            return
        bad = wrong[columns[0]].to_numpy()
        place, cell = self.find(int(bad.argmax()), columns[0])
        what = f"has {cell[:60]!r}" if cell.strip() else "is empty"
        more = f" and in {bad.sum() - 1} more" if bad.sum() > 1 else ""
        raise InputError(f"{self.path}: column {columns[0]!r} {what} in row {place}{more}; {rule}")

    def find(self, row: int, name: str) -> tuple[str, str]:
        """Finds a cell: the number of its row as spreadsheets show it (the names are row 1), and its text."""
        cell = self.table[name].iloc[row]
        if self.separator:
            number, cells = list(_records(self.path, self.separator))[row + 1]
            column = self.table.columns.get_loc(name)
            return str(number), cells[column] if column < len(cells) else ""
        is_empty = self.table[name].isna().iloc[row]  # of a list, its entries are not asked
        return (str(row + 2) if self.is_text else f"{row} (from 0)"), "" if is_empty else str(cell)


def _read(path: Path, roles: Sequence[str]) -> _Sheet:
    """Reads a file with pandas; columns named in `roles` stay text in files that hold text, so that 007 is not 7."""
    import pandas  # takes most of a second, and only tables need it

    as_text: Any = dict.fromkeys(roles, str)
    try:
        if path.suffix.lower() == ".parquet":
            table = pandas.read_parquet(path)
            sheet = _Sheet(path, table.reset_index(drop=table.index.name is None))
            header = list(map(str, table.columns))
        elif path.suffix.lower() == ".xlsx":
            header = pandas.read_excel(path, header=None, nrows=1, dtype=str).fillna("").iloc[0].tolist()
            sheet = _Sheet(path, pandas.read_excel(path, dtype=as_text), is_text=True)
        else:
            separator = _separator_of(path)
            header = next(_records(path, separator), (1, [""]))[1]
            # in a single pass, as the dtype of a column must not depend on the first part of a large file
            table = pandas.read_csv(path, sep=separator, dtype=as_text, low_memory=False)
            if not isinstance(table.index, pandas.RangeIndex):  # pandas took additional cells for names of rows
                raise pandas.errors.ParserError("its rows have more cells than names of columns")
            sheet = _Sheet(path, table, separator, is_text=True)
    except FileNotFoundError as error:
        raise InputError(describe_missing(path, "file")) from error
    except (OSError, ValueError, KeyError, ImportError, csv.Error, BadZipFile) as error:  # pandas' own are ValueErrors
        if isinstance(error, pandas.errors.ParserError):
            _require_no_more_cells(path, separator, header)
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read as a table ({reason}); save it as CSV in UTF-8") from error
    if twice := [name for name in header if name and header.count(name) > 1]:  # pandas would rename the second
        raise InputError(f"{path} has two columns {twice[0]!r}; give each column its own name")
    sheet.table.columns = sheet.table.columns.map(str)
    return sheet


def _separator_of(path: Path) -> str:
    """Returns the most frequent separator in the first line, outside of quotes."""
    with path.open(encoding="utf-8-sig") as file:
        first = next((line for line in file if line.strip()), "")
    return max(",;\t|", key=re.sub('"[^"]*"', "", first).count)


def _records(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a text file that are not blank, with their numbers in a spreadsheet."""
    csv.field_size_limit(2**31 - 1)  # pandas reads cells of any size
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, cells in enumerate(csv.reader(file, delimiter=separator), 1):
            if len(cells) > 1 or "".join(cells).strip():
                yield number, cells


def _require_no_more_cells(path: Path, separator: str, header: Sequence[str]) -> None:
    """Raises InputError for the first row that has more cells than there are names of columns."""
    for number, cells in _records(path, separator):
        if len(cells) > len(header):
            decimal = "; write 1.5 for 1,5" if separator == "," else ""
            raise InputError(
                f"{path}: row {number} has {len(cells)} cells, but the first row names {len(header)} columns; name all "
                f'columns, and put a cell that contains {separator!r} into quotes, such as "a{separator} b"{decimal}'
            )


def _replacement_of_commas(columns: Sequence["Series"], separator: str) -> str:
    """Finds what replaces the commas in a table's numbers: "." for decimal commas, "" between thousands.

    8,654 is 8654 next to decimal points, and 8.654 next to decimal commas such as 2,5 or in a file with semicolons.
    Both are possible in other files, and 2,5 is not a number next to decimal points.

    Args:
        columns: Columns of inputs, and of labels.
        separator: Separator of the columns; "" = none.

    Returns:
        what replaces a comma; a comma itself (and then no number) if there are commas with both meanings.
    """
    import pandas

    words = [column.astype(str).str.strip() for column in columns if column.dtype.kind not in "iufb"]
    cells = pandas.concat([pandas.Series(dtype=str), *words])
    cells = cells[cells.str.fullmatch(_NUMBER)]
    commas = cells[cells.str.contains(",")]
    points = cells.str.contains(".", regex=False).any() or any(
        (column % 1 != 0).any() for column in columns if column.dtype.kind == "f"
    )
    if commas.empty:
        return "."
    if not commas.str.fullmatch(_THOUSANDS).all():
        return "," if points else "."
    if points or (commas.str.count(",") > 1).any():
        return ""
    return "." if separator == ";" else ","


def _to_numbers(column: "Series", comma: str) -> "Series":
    """Converts a column to numbers, NaN where a cell is none."""
    import pandas

    if column.dtype.kind in "iufb":
        return column
    text = column.astype(str).str.strip()
    is_number = text.str.fullmatch(_NUMBER)
    return pandas.to_numeric(text.where(~is_number, text.str.replace(",", comma, regex=False)), errors="coerce")


def _numbers_to_predict(sheet: _Sheet, labels: "Series", comma: str, words: np.ndarray) -> np.ndarray:
    """Returns labels as floats if they have decimal points or commas, otherwise unchanged as `words`.

    Raises:
        InputError: most labels are such numbers, but one is not: each number would be a class; or commas in them may
            have both meanings.
    """
    numbers = _to_numbers(labels, "" if comma == "," else comma)
    fractions = numbers.notna() & labels.astype(str).str.contains("[.,eE]")
    if fractions.mean() > 0.5:
        sheet.require_good(numbers.isna().to_frame(), "most labels are numbers to predict: drop such rows")
    if fractions.any() and numbers.notna().all():
        if comma == ",":
            sheet.require_good(labels.astype(str).str.contains(",").to_frame(), _WHICH_COMMAS)
        words = numbers.to_numpy(float)
    return words


def _note_ids(path: Path, inputs: "DataFrame", clients: "Series | None") -> None:
    """Warns of input columns by which a net could tell rows or clients apart, or that may be the true clusters."""
    whole = [name for name in inputs if inputs[name].dtype.kind in "iu" and inputs[name].nunique() > 1]
    ids = [name for name in whole if len(inputs) > 20 and inputs[name].is_unique]
    of_clients = []
    if clients is not None:
        groups = [inputs[name].groupby(clients.astype(str).to_numpy()) for name in whole]
        of_clients = [name for name, group in zip(whole, groups, strict=True) if (group.nunique() == 1).all()]
    if named := list(dict.fromkeys([*ids, *of_clients])):
        warnings.warn(
            f"{path}: the inputs include {', '.join(map(repr, named))}, a different whole number for each row, or one "
            "for each client; if that is an id or the true cluster, leave it out, or name it: columns: {cluster: NAME}",
            Notice,
            stacklevel=3,
        )
