"""`ArrayData` from a table .csv: which column is what, and what is refused."""

from pathlib import Path

import pytest
import torch

from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError, Notice

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


def test_each_column_is_what_it_is_said_to_be(tmp_path: Path):
    data = ArrayData(source=written(tmp_path), columns=COLUMNS, test=0).federated(0)
    assert data.examples.inputs.tolist() == [[1.5, 3], [2.5, 4], [3.5, 5], [4.5, 6]]
    assert data.examples.inputs.dtype == torch.float32
    assert data.examples.labels.tolist() == [1, 0, 0, 0]
    assert data.examples.label_names == ("run", "walk")
    assert data.names == ("al", "bo")
    assert [sorted(data.train[client].tolist()) for client in (0, 1)] == [[1, 3], [0, 2]]
    assert data.true_clusters.tolist() == [1, 0]  # al is in the south, and "north" comes first


def test_usual_names_need_no_columns(tmp_path: Path):
    text = TABLE.replace("user", "client").replace("label", "y").replace("site", "cluster")
    data = ArrayData(source=written(tmp_path, text), test=0).federated(0)
    assert data.examples.inputs.shape == (4, 2)
    assert data.names == ("al", "bo")


def test_a_table_without_clients_says_so(tmp_path: Path):
    rows = "".join(f"{number % 9},{number % 2}\n" for number in range(40))
    table = ArrayData(source=written(tmp_path, "height,y\n" + rows))
    with pytest.warns(Notice, match="no client is given: .* ten clients; give client, or a partition"):
        data = table.federated(0)
    assert len(data.train) == 10


def test_an_input_that_numbers_the_lines_is_noted(tmp_path: Path):
    rows = [f"{number},{number % 7},{number % 2},{number % 3}" for number in range(30)]
    table = ArrayData(source=written(tmp_path, "Unnamed: 0,age,y,client\n" + "\n".join(rows)))
    with pytest.warns(
        Notice, match="the inputs include 'Unnamed: 0', a different whole number in every line"
    ) as notices:
        table.federated(0)
    assert len(notices) == 1
    assert "age" not in str(notices[0].message)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TABLE, {}, "has no column 'y'; it has user, height, label, site, weight; say which are the labels"),
        (TABLE, {"y": "lable"}, "has no column 'lable' (did you mean label?)"),
        (TABLE, COLUMNS | {"cluster": "place"}, "has no column 'place'"),
        (TABLE, COLUMNS | {"clients": "user"}, "columns names 'clients' (did you mean client?)"),
        (
            TABLE,
            {"y": "label", "client": "user"},
            "inputs must be numbers, but column 'site' has 'north'; leave such columns out, or encode them as numbers",
        ),
        (
            TABLE,
            {"y": "label"},
            "'bo', column 'site' has 'north'; leave such columns out, or encode them as numbers, or say which",
        ),
        (TABLE.replace("3.5", ""), COLUMNS, "column 'height' is empty in line 4"),
        (TABLE.replace("al,2.5,run", "al,2.5,"), COLUMNS, "column 'label' is empty in line 3; fill"),
        (
            TABLE.replace("3.5", "").replace("al,2.5,run", "al,2.5,"),
            COLUMNS,
            "column 'height' is empty in line 4 (2 lines have empty cells); fill",
        ),
        (TABLE.replace("3.5", "inf"), COLUMNS, "x holds NaN or infinity in row 2"),
        (TABLE.partition("\n")[0] + "\n", COLUMNS, "has no line below its column names"),
        (TABLE.replace("height", "label"), COLUMNS, "has two columns 'label'; give each column its own name"),
        (
            TABLE.replace(",weight", ""),
            COLUMNS,
            "its lines have more cells than the 4 of the first line; name all columns",
        ),
        ("user,label\nbo,1\n", {"y": "label", "client": "user"}, "has no column besides user, label"),
        (TABLE + "al,1,run,south,3,9,9\n", COLUMNS, "is not a table of comma-separated columns"),
        ("", COLUMNS, "is not a table of comma-separated columns (No columns to parse from file)"),
    ],
)
def test_what_a_table_cannot_be(tmp_path: Path, text: str, columns: dict[str, str], message: str):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        ArrayData(source=path, columns=columns, test=0).federated(0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_other_files_take_no_columns(tmp_path: Path):
    with pytest.raises(InputError, match=r"columns names those of a \.csv table"):
        ArrayData(source=tmp_path / "own.npz", columns={"y": "label"})


def test_an_absent_table_is_named_with_the_nearest_one(tmp_path: Path):
    (tmp_path / "absence.csv").touch()
    with pytest.raises(InputError, match=r"there is no file .*absent\.csv \(did you mean absence\.csv\?\)"):
        ArrayData(source=tmp_path / "absent.csv").federated(0)


def test_an_absent_table_without_a_near_one_says_where_relative_paths_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        ArrayData(source="absent.csv").federated(0)
    start = f"relative paths start in the current folder, {tmp_path}"
    assert str(error.value) == f"there is no file absent.csv; {start}"
