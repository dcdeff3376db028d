"""Tests `ArrayData` with a table: what is read, what is noted, and what is refused."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch
from own_arrays import error_of

from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError, Notice

# Clients

TABLE = """user,height,label,site,weight
bo,1.5,walk,north,3
al,2.5,run,south,4
bo,3.5,run,north,5
al,4.5,run,south,6
"""


COLUMNS = {"y": "label", "client": "user", "cluster": "site"}


def written(folder: Path, text: str = TABLE) -> Path:
    path = folder / "own.csv"
    path.write_text(text)
    return path


def test_each_column_is_read_as_columns_says(tmp_path: Path):
    data = ArrayData(source=written(tmp_path), columns=COLUMNS, test=0).federated(0)
    assert data.examples.inputs.tolist() == [[1.5, 3], [2.5, 4], [3.5, 5], [4.5, 6]]
    assert data.examples.inputs.dtype == torch.float32
    assert data.examples.labels.tolist() == [1, 0, 0, 0]
    assert data.examples.label_names == ("run", "walk")
    assert data.names == ("al", "bo")
    assert [sorted(data.train[client].tolist()) for client in (0, 1)] == [[1, 3], [0, 2]]
    assert data.true_clusters.tolist() == [1, 0]  # al is in the south, and "north" is number 0


def test_names_stay_as_they_are_written_and_have_the_order_of_their_values(tmp_path: Path):
    path = written(tmp_path, "client,x,y\n01,1,0\n1,2,1\n007,3,0\n01,4,1\n")
    assert ArrayData(source=path, test=0).federated(0).names == ("01", "1", "007")
    path = written(tmp_path, "client,x,y\n1e3,1,0\n1000,2,1\n1000.0,3,0\n 1000,4,1\n9,5,0\n")
    with pytest.warns(Notice, match="' 1000' and '1000', which are treated as different names"):
        assert ArrayData(source=path, test=0).federated(0).names == ("9", " 1000", "1000", "1000.0", "1e3")
    long = "12345678901234567890123", "12345678901234567890124"  # equal as floats
    path = written(tmp_path, f"client,x,y\n{long[0]},1,0\n{long[1]},2,1\n")
    assert ArrayData(source=path, test=0).federated(0).names == long


def test_clients_of_a_large_table_may_be_numbers_and_words(tmp_path: Path):
    lines = [f"{k % 3},{k % 2},{k / 7:.3f}\n" for k in range(300_000)]  # pandas reads a part of them at a time
    path = written(tmp_path, f"client,y,x\n{''.join(lines)}A,0,1.5\n")
    data = ArrayData(source=path, test=0).federated(0)
    assert data.names == ("0", "1", "2", "A")
    assert data.train.sizes.tolist() == [100_000, 100_000, 100_000, 1]


def test_usual_names_need_no_columns(tmp_path: Path):
    text = TABLE.replace("user", "client").replace("label", "y").replace("site", "cluster")
    data = ArrayData(source=written(tmp_path, text), test=0).federated(0)
    assert data.examples.inputs.shape == (4, 2)
    assert data.names == ("al", "bo")


def test_a_table_may_have_no_labels(tmp_path: Path):
    path = written(tmp_path, "user,height,weight\nbo,1,2.5\nal,1,3.5\nbo,2,2.5\n")
    data = ArrayData(source=path, columns={"y": None, "client": "user"}, test=0).federated(0)
    assert (data.examples.label_kind, data.names) == ("none", ("al", "bo"))
    assert data.examples.inputs.shape == (3, 2)


# Forms of files

FORMS = {
    "commas": ("csv", lambda table, path: table.to_csv(path, index=False)),
    "capitals": ("CSV", lambda table, path: table.to_csv(path, index=False)),
    "semicolons": ("csv", lambda table, path: table.to_csv(path, index=False, sep=";")),
    "decimal commas": ("csv", lambda table, path: table.to_csv(path, index=False, sep=";", decimal=",")),
    "decimal commas in quotes": ("csv", lambda table, path: table.to_csv(path, index=False, decimal=",")),
    "tabs": ("tsv", lambda table, path: table.to_csv(path, index=False, sep="\t")),
    "tabs and commas": ("txt", lambda table, path: table.to_csv(path, index=False, sep="\t", decimal=",")),
    "bars": ("csv", lambda table, path: table.to_csv(path, index=False, sep="|")),
    "a mark of UTF-8": ("csv", lambda table, path: table.to_csv(path, index=False, encoding="utf-8-sig")),
    "Windows": ("csv", lambda table, path: table.to_csv(path, index=False, lineterminator="\r\n")),
    "parquet": ("parquet", lambda table, path: table.to_parquet(path)),
    "parquet with an index": ("parquet", lambda table, path: table.set_index("user").to_parquet(path)),
    "parquet with chosen rows": ("parquet", lambda table, path: pd.concat([table[:1], table])[1:].to_parquet(path)),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_a_table_are_read_alike(tmp_path: Path, form: str):
    ending, write = FORMS[form]
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"user": [f"s, {k}" for k in (1, 0, 2)] * 4, "a": rng.normal(size=12), "b": rng.normal(size=12)}
    )
    table["label"], table["site"], table["cost"] = ["x", "y"] * 6, ["n", "s", "n"] * 4, np.arange(12)
    write(table, path := tmp_path / f"own.{ending}")
    data = ArrayData(source=path, columns=COLUMNS, test=0).federated(0)
    assert data.examples.input_names == ("a", "b", "cost")
    assert torch.equal(data.examples.inputs, torch.from_numpy(table[["a", "b", "cost"]].to_numpy(np.float32)))
    assert (data.examples.label_names, data.examples.labels.tolist()) == (("x", "y"), [0, 1] * 6)
    assert (data.names, data.true_clusters.tolist()) == (("s, 0", "s, 1", "s, 2"), [1, 0, 0])


def test_a_spreadsheet_is_read_by_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with ZipFile(tmp_path / "own.xlsx", "w") as file:
        file.writestr("xl/workbook.xml", "")
    message = error_of(ArrayData(source=tmp_path / "own.xlsx"))
    assert "own.xlsx cannot be read as a table (" in message
    assert "install the openpyxl package" in message
    rows = [["client", "x", "y"], ["007", "1.5", "0"], ["7", "", "1"]]

    def read_excel(path: Path, header: int | None = 0, **options: object) -> pd.DataFrame:
        if header is None:
            return pd.DataFrame(rows[:1], dtype=str)
        table = pd.DataFrame(rows[1:], columns=rows[0])
        return table.assign(x=pd.to_numeric(table["x"]))

    monkeypatch.setattr(pd, "read_excel", read_excel)
    assert "column 'x' is empty in row 3;" in error_of(ArrayData(source=tmp_path / "own.xlsx"))
    rows[2][1] = "2.5"
    assert ArrayData(source=tmp_path / "own.xlsx").pool().names == ("007", "7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a,b\n0.5,"8,654"\n1.5,"1,000"\n', [8654, 1000]),  # next to decimal points
        ('a,b\n5,"8,654"\n1,"-1,000,000"\n', [8654, -1000000]),
        ('a,b\n5,"8,654"\n1,"0,126"\n', [8.654, 0.126]),  # no thousands begin with 0
        ('a,b\n0.5,"8,654.25"\n1.5,"1"\n', [8654.25, 1]),
        ("a;b\n5;1,234,567\n1;-1,000\n", [1234567, -1000]),
        ("a;b\n0.5;8,654\n1.5;1\n", [8654, 1]),
        ("a;b\n5;8,654\n1;1\n", [8.654, 1]),  # in a file with semicolons between columns
        ("a;b\n0,5;8,654\n1;1,000\n", [8.654, 1]),  # next to decimal commas
        ('a,b\n"0,5","8,654"\n1,"1,000"\n', [8.654, 1]),
        ("a\tb\n2,5\t-0,25e1\n1\t,5\n", [-2.5, 0.5]),
        ('a,b\n5,"8,654"\n1,"1,000"\n', "column 'b' has '8,654' in row 2 and in 1 more; write decimal points"),
        (
            'a,b\n0.5,"0,126"\n1.5,"1,000"\n',
            "column 'b' has '0,126' in row 2 and in 1 more; write decimal points",
        ),
        ('a,b\n0.5,"2,5"\n1.5,1\n', "column 'b' has '2,5' in row 2; write decimal points in all columns"),
        ("a;b\n1.5;2,5\n1.5;1\n", "column 'b' has '2,5' in row 2; write decimal points in all columns"),
        ("a\tb\n5\t8,654\n1\t1\n", "column 'b' has '8,654' in row 2; write decimal points in all columns"),
        ("a;b\n0,5;1.234,5\n1;1\n", "column 'b' has '1.234,5' in row 2; inputs must be finite"),
        ("a,b\n5,n/k\n1,1\n", "column 'b' has 'n/k' in row 2; inputs must be finite"),
    ],
)
def test_commas_in_numbers(tmp_path: Path, text: str, expected: list[float] | str):
    module = ArrayData(source=written(tmp_path, text), columns={"y": None})
    if isinstance(expected, str):
        assert expected in error_of(module)
    else:
        assert module.pool().examples.inputs[:, 1].tolist() == np.float32(expected).tolist()


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ("0 2 1", "classes", [0, 2, 1]),
        ("1 0 0", "classes", [1, 0, 0]),
        ("true false true", "classes", ["false", "true"]),
        ("TRUE FALSE TRUE", "classes", ["FALSE", "TRUE"]),
        ("True false FALSE", "classes", ["FALSE", "True", "false"]),
        ("01 1 2", "classes", ["01", "1", "2"]),
        ("00 01 10", "classes", ["00", "01", "10"]),
        ("b a c", "classes", ["a", "b", "c"]),
        ("1 x 10", "classes", ["1", "10", "x"]),
        ("1_0 2 10", "classes", ["2", "10", "1_0"]),
        ("0.5 2 1.50", "numbers", [0.5, 2, 1.5]),
        ("1.0 1 1e0", "numbers", [1, 1, 1]),
        ("0,5 2 1,50", "numbers", [0.5, 2, 1.5]),
    ],
)
def test_labels_of_a_text_file(tmp_path: Path, labels: str, kind: str, expected: list[object]):
    path = written(tmp_path, "x;y\n" + "".join(f"{k};{label}\n" for k, label in enumerate(labels.split())))
    examples = ArrayData(source=path).pool().examples
    assert examples.label_kind == kind
    if isinstance(expected[0], str):
        assert examples.label_names == tuple(expected)
        assert [examples.label_names[label] for label in examples.labels] == labels.split()
    else:
        assert (examples.label_names, examples.labels.tolist()) == ((), expected)


# Notices


def noted(source: Path, **options: object) -> list[str]:
    """Returns the notices that a table gives."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        ArrayData(source=source, **options).federated(0)
    return [str(note.message) for note in notes]


def test_a_table_without_clients_says_so(tmp_path: Path):
    rows = "".join(f"{number % 9},{number % 2}\n" for number in range(40))
    table = ArrayData(source=written(tmp_path, "height,y\n" + rows))
    with pytest.warns(Notice, match="client is not given: .* ten clients; give client, or a partition"):
        data = table.federated(0)
    assert len(data.train) == 10


def test_inputs_that_number_rows_or_clients_are_noted(tmp_path: Path):
    rows = "".join(f"{k},{k % 7},{k % 4 // 2},{k % 2},{k % 4}\n" for k in range(30))
    path = written(tmp_path, "Unnamed: 0,age,ward,y,client\n" + rows)
    first, *_ = noted(path)
    assert first == (
        f"{path}: the inputs include 'Unnamed: 0', 'ward', a different whole number for each row, or one for each "
        "client; if that is an id or the true cluster, leave it out, or name it: columns: {cluster: NAME}"
    )
    assert not [note for note in noted(path, columns={"cluster": "ward"}) if "'ward'" in note]


def test_other_inputs_are_not_noted(tmp_path: Path):
    rows = "".join(f"{k / 7:.3f},{k % 7},1,{k % 2},{k % 4}\n" for k in range(30))  # all clients have the year 1
    assert noted(written(tmp_path, "height,age,year,y,client\n" + rows)) == []


def test_inputs_too_large_for_most_nets_are_noted(tmp_path: Path):
    rows = [f"{138 + number % 3},{number % 7},{number % 2},{number % 5}" for number in range(30)]
    table = ArrayData(source=written(tmp_path, "sodium,age,y,client\n" + "\n".join(rows)))
    with pytest.warns(Notice, match=r"input column 'sodium': large numbers \(root mean square 139\), on") as notices:
        table.federated(0)
    assert len(notices) == 1


# Refusals: what protects results, and what cannot be read

EMPTY, NUMBERS = "fill such cells, or drop their rows or the column", "inputs must be finite numbers: fill such cells"


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TABLE.replace("height", "label"), COLUMNS, "has two columns 'label'; give each column its own name"),
        (
            TABLE.replace("3.5", "3.5,7,8"),
            COLUMNS,
            "row 4 has 7 cells, but the first row names 5 columns; name all columns, and put a cell that contains ','",
        ),
        (TABLE.replace(",weight", ""), COLUMNS, "row 2 has 5 cells, but the first row names 4 columns; name all"),
        (TABLE.replace("1.5,", '"1.5\n",').replace("3.5", "3.5,7"), COLUMNS, "row 4 has 6 cells, but the first row"),
        (TABLE.replace("3.5", ""), COLUMNS, f"column 'height' is empty in row 4; {EMPTY}"),
        (TABLE.replace("3.5,run,north,5", "3.5"), COLUMNS, f"column 'label' is empty in row 4; {EMPTY}"),
        (TABLE.replace("walk", '"wa\nlk"').replace("4.5", ""), COLUMNS, "column 'height' is empty in row 5;"),
        ("\n" + TABLE.replace("al,2.5", '\n  \n"a\nl",2.5').replace("3.5", ""), COLUMNS, "'height' is empty in row 7;"),
        (TABLE.replace("\n", "\r").replace("3.5", ""), COLUMNS, "column 'height' is empty in row 4;"),
        (TABLE.replace("3.5", "n/a"), COLUMNS, f"column 'height' has 'n/a' in row 4; {EMPTY}"),
        (TABLE.replace("3.5,run", "3.5,None"), COLUMNS, f"column 'label' has 'None' in row 4; {EMPTY}"),
        (TABLE.replace("bo,3.5", "NA,3.5"), COLUMNS, f"column 'user' has 'NA' in row 4; {EMPTY}"),
        (TABLE.replace("south", ""), COLUMNS, f"column 'site' is empty in row 3 and in 1 more; {EMPTY}"),
        (TABLE.replace("3.5", "-inf"), COLUMNS, f"column 'height' has '-inf' in row 4; {NUMBERS}"),
        (TABLE.replace("3.5", "n.v."), COLUMNS, f"column 'height' has 'n.v.' in row 4; {NUMBERS}"),
        pytest.param(
            TABLE.replace("walk", "w" * 140_000).replace("3.5", "n.v."),
            COLUMNS,
            f"column 'height' has 'n.v.' in row 4; {NUMBERS}",
            id="a long cell",
        ),
        (TABLE, {"y": "label", "client": "user"}, f"column 'site' has 'north' in row 2 and in 3 more; {NUMBERS}"),
        (
            TABLE.replace("walk", "closed").replace("run", "0.5"),
            COLUMNS,
            "column 'label' has 'closed' in row 2; most labels are numbers to predict: drop such rows",
        ),
        (
            TABLE.replace("walk", '"2,5"').replace("run", '"2,7"'),
            COLUMNS,
            "column 'label' has '2,5' in row 2 and in 3 more; write decimal points in all columns",
        ),
        ('x,y\n5,"1,101"\n1,2\n', {}, "column 'y' has '1,101' in row 2; write decimal points in all columns"),
        (
            TABLE.replace("bo,3.5,run,north", "bo,3.5,run,south"),
            COLUMNS,
            "client bo has examples of the true clusters 'north' and 'south'; a client has only one",
        ),
        (TABLE, COLUMNS | {"cluster": "user"}, "each with the name of a column of its own"),
        (TABLE, COLUMNS | {"client": "label"}, "each with the name of a column of its own"),
        (TABLE, {}, "has no column 'y'; it has user, height, label, site, weight (columns: {y: NAME, client: NAME}"),
        (TABLE, {"y": "lable"}, "has no column 'lable' (did you mean label?)"),
        (TABLE.replace("label", "rain tomorrow"), {"y": "Rain"}, "no column 'Rain' (did you mean rain tomorrow?)"),
        (TABLE.replace("label", " label"), COLUMNS, "'label' (did you mean  label?); it has user, height, ' label'"),
        (TABLE, COLUMNS | {"clients": "user"}, "'clients': 'user'}; it takes y, client, cluster, is_test"),
        (
            TABLE,
            {"label": "label"},
            "columns is {'label': 'label'}; it takes y, client, cluster, is_test, each with the name",
        ),
        (TABLE.partition("\n")[2], COLUMNS, "has no column 'label'; it has bo, 1.5, walk, north, 3"),
        (TABLE.partition("\n")[0] + "\n", COLUMNS, "has no line below its column names, or no column of inputs"),
        ("user,label\nbo,1\n", {"y": "label", "client": "user"}, "or no column of inputs; add some"),
        ("", COLUMNS, "cannot be read as a table (No columns to parse from file); save it as CSV in UTF-8"),
    ],
)
def test_what_a_table_cannot_be(tmp_path: Path, text: str, columns: dict[str, str], message: str):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        ArrayData(source=path, columns=columns, test=0).federated(0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).count(str(path)) <= 1


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("x", [1.0, np.nan], "column 'x' is empty in row 1 (from 0); fill"),
        ("x", pd.array([1, None], "Int64"), "column 'x' is empty in row 1 (from 0); fill"),
        ("x", [[1, 2], [3]], f"column 'x' has '[1 2]' in row 0 (from 0) and in 1 more; {NUMBERS}"),
        ("client", [[1], [3]], "client holds array([1]) in row 0; give one number or word in each row"),
    ],
)
def test_a_cell_of_a_file_without_text(tmp_path: Path, column: str, cells: Sequence[object], message: str):
    pd.DataFrame({"x": [1, 2], "y": [0, 1]} | {column: cells}).to_parquet(tmp_path / "own.parquet")
    assert message in error_of(ArrayData(source=tmp_path / "own.parquet"))


@pytest.mark.parametrize("name", ["own.csv", "own.parquet", "own.xlsx"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes("café\n".encode("utf-16"))
    message = error_of(ArrayData(source=tmp_path / name))
    assert message.startswith(f"{tmp_path / name} cannot be read as a table (")
    assert message.endswith("; save it as CSV in UTF-8")


def test_other_files_take_no_columns(tmp_path: Path):
    with pytest.raises(InputError, match=r"columns is .*, but source is .*own.npz; give a table \(\.csv, \.tsv, "):
        ArrayData(source=tmp_path / "own.npz", columns={"y": "label"})


def test_an_absent_table_is_named_with_the_nearest_one(tmp_path: Path):
    (tmp_path / "absence.csv").touch()
    with pytest.raises(InputError, match=r"there is no file .*absent\.csv \(did you mean absence\.csv\?\)"):
        ArrayData(source=tmp_path / "absent.csv").federated(0)


def test_an_absent_table_is_named_with_a_file_of_its_name(tmp_path: Path):
    (tmp_path / "absent.npz").touch()
    with pytest.raises(InputError, match=r"there is no file .*absent\.csv \(did you mean absent\.npz\?\)"):
        ArrayData(source=tmp_path / "absent.csv").federated(0)


def test_an_absent_table_without_a_near_one_says_where_relative_paths_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        ArrayData(source="absent.csv").federated(0)
    start = f"relative paths start in the current folder, {tmp_path}"
    assert str(error.value) == f"there is no file absent.csv; {start}"
