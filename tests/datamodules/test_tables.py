"""Tests `ArrayData` with a table: how a .csv file is read, what is noted, and what is refused."""

import re
import warnings
from pathlib import Path

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


def test_leading_zeros_tell_clients_apart(tmp_path: Path):
    path = written(tmp_path, "client,x,y\n01,1,0\n1,2,1\n007,3,0\n01,4,1\n")
    assert ArrayData(source=path, test=0).federated(0).names == ("01", "1", "007")
    path = written(tmp_path, "client,x,y\n2.0,1,0\n 1,2,1\n0,3,0\n2,4,1\n")
    assert ArrayData(source=path, test=0).federated(0).names == ("0", "1", "2")
    long = "12345678901234567890123", "12345678901234567890124"  # equal as floats
    path = written(tmp_path, f"client,x,y\n{long[0]},1,0\n{long[1]},2,1\n")
    assert ArrayData(source=path, test=0).federated(0).names == long


def test_clients_of_a_large_table_may_be_numbers_and_words(tmp_path: Path):
    lines = [f"{k % 3},{k % 2},{k / 7:.3f}\n" for k in range(300_000)]  # pandas reads a part of them at a time
    path = written(tmp_path, f"client,y,x\n{''.join(lines)}A,0,1.5\n")
    data = ArrayData(source=path, test=0).federated(0)
    assert data.names == ("0", "1", "2", "A")
    assert data.train.sizes.tolist() == [100_000, 100_000, 100_000, 1]


def test_lines_are_counted_with_the_blank_ones(tmp_path: Path):
    path = written(tmp_path, "\nclient,y,x\na,0,1.5\n\n  \na,1,\n")
    assert "column 'x' is empty in line 6;" in error_of(ArrayData(source=path))
    path.write_bytes(b"client,y,x\ra,0,1.5\ra,1,\r")  # a file with one line feed or none
    assert "column 'x' is empty in line 3;" in error_of(ArrayData(source=path))


def test_usual_names_need_no_columns(tmp_path: Path):
    text = TABLE.replace("user", "client").replace("label", "y").replace("site", "cluster")
    data = ArrayData(source=written(tmp_path, text), test=0).federated(0)
    assert data.examples.inputs.shape == (4, 2)
    assert data.names == ("al", "bo")


def test_a_table_without_labels_says_how_they_are_left_out(tmp_path: Path):
    path = written(tmp_path, "user,height,weight\nbo,1,2.5\nal,1,3.5\nbo,2,2.5\n")
    with pytest.raises(InputError, match=r"no column 'label'.*; without labels: columns: \{y: null, client: NAME\}"):
        ArrayData(source=path, columns={"y": "label", "client": "user"}).federated(0)
    data = ArrayData(source=path, columns={"y": None, "client": "user"}, test=0).federated(0)
    assert (data.examples.label_kind, data.names) == ("none", ("al", "bo"))
    assert data.examples.inputs.shape == (3, 2)


def test_a_table_without_clients_says_so(tmp_path: Path):
    rows = "".join(f"{number % 9},{number % 2}\n" for number in range(40))
    table = ArrayData(source=written(tmp_path, "height,y\n" + rows))
    with pytest.warns(Notice, match="client is not given: .* ten clients; give client, or a partition"):
        data = table.federated(0)
    assert len(data.train) == 10


def test_an_input_that_numbers_the_lines_is_noted(tmp_path: Path):
    rows = [f"{number},{number % 7},{number % 2},{number % 3}" for number in range(30)]
    table = ArrayData(source=written(tmp_path, "Unnamed: 0,age,y,client\n" + "\n".join(rows)))
    with pytest.warns(
        Notice, match="the inputs include 'Unnamed: 0', a different whole number in every line"
    ) as notices:
        table.federated(0)
    (note,) = (str(notice.message) for notice in notices)  # there is no second notice about large numbers
    assert "age" not in note


def test_an_input_that_numbers_the_clients_is_noted(tmp_path: Path):
    rows = [f"{41.5 + line % 3},{line % 2},{line % 7},{line // 2 % 2},{'abc'[line % 3]}" for line in range(30)]
    table = ArrayData(source=written(tmp_path, "ward,sex,age,y,client\n" + "\n".join(rows)))
    with pytest.warns(Notice, match="the inputs include 'ward', one number for each client, by which") as notices:
        table.federated(0)
    assert len(notices) == 1  # there is no second notice about large numbers


def test_lines_that_were_saved_twice_and_nearly_unique_ids_are_noted(tmp_path: Path):
    lines = [f"{1000 + k},{k / 7:.3f},{k // 3 % 2},{k % 3}" for k in range(60)]
    table = ArrayData(source=written(tmp_path, "\n".join(["object,nir,y,client", *lines, lines[4], lines[5]])))
    with pytest.warns(Notice) as notices:
        table.federated(0)
    said = "\n".join(str(notice.message) for notice in notices)
    assert "2 lines repeat an earlier one, the first in line 62; if they were saved twice, remove them" in said
    assert "the inputs include 'object', a different whole number in nearly every line; if that is an id" in said


def test_equal_answers_of_several_people_are_not_noted(tmp_path: Path):
    rows = "".join(f"{k % 5},{k % 2}.5,{k % 3},{k % 4}\n" for k in range(80))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ArrayData(source=written(tmp_path, "answer,dose,y,client\n" + rows)).federated(0)


def test_an_input_that_numbers_parts_of_clients_is_noted(tmp_path: Path):
    # clients 0, 1, 2 have patients 1000, 1001, 1002 and those 10 above; all clients have the same ages
    rows = "".join(f"{1000 + k % 3 + 10 * (k % 2)},{40 + k // 6},{k // 3 % 2},{k % 3}\n" for k in range(60))
    with pytest.warns(Notice, match="the inputs include 'patient', whole numbers that each occur in one cl") as notices:
        ArrayData(source=written(tmp_path, "patient,age,y,client\n" + rows)).federated(0)
    assert "patient" not in "".join(str(notice.message) for notice in notices[1:])  # is not to be standardised


def test_an_input_that_is_the_same_for_several_whole_clients_may_be_the_true_cluster(tmp_path: Path):
    rows = "".join(f"{one % 2},{one % 5},{one % 3},{one % 4}\n" for one in range(40))
    path = written(tmp_path, "kind,sex,y,client\n" + rows)
    with pytest.warns(
        Notice, match="include 'kind', the same in all lines of a client, .* --data.columns.cluster kind"
    ):
        ArrayData(source=path, columns={"y": "y", "client": "client"}).federated(0)
    named = ArrayData(source=path, columns={"y": "y", "client": "client", "cluster": "kind"})
    assert named.federated(0).true_clusters.tolist() == [0, 1, 0, 1]  # without a notice
    words = "".join(f"{'ab'[one % 2]},{'uvw'[one % 3]},{one % 5},{one % 3},{one % 4}\n" for one in range(60))
    written(tmp_path, "kind,dish,age,y,client\n" + words)
    with pytest.raises(InputError, match=r"numbers; if 'kind' is the true cluster, name it: columns: {cluster: kind}$"):
        ArrayData(source=path, columns={"client": "client"}).federated(0)
    pd.get_dummies(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.warns(Notice, match="include 'kind_a', 'kind_b', the same .* if they tell the true cluster, write one"):
        ArrayData(source=path, columns={"client": "client"}).federated(0)


def test_inputs_too_large_for_most_nets_are_noted(tmp_path: Path):
    rows = [f"{138 + number % 3},{number % 7},{number % 2},{number % 5}" for number in range(30)]
    table = ArrayData(source=written(tmp_path, "sodium,age,y,client\n" + "\n".join(rows)))
    with pytest.warns(Notice, match=r"input column 'sodium': large numbers \(root mean square up to 139; ") as notices:
        table.federated(0)
    assert len(notices) == 1


def test_a_large_column_next_to_an_id_is_noted_alone(tmp_path: Path):
    rows = [f"{1000 + number},{138 + number % 3},{number % 2},{number % 5}" for number in range(30)]
    table = ArrayData(source=written(tmp_path, "patient,sodium,y,client\n" + "\n".join(rows)))
    with pytest.warns(Notice) as notices:
        table.federated(0)
    ids, large = sorted((str(notice.message) for notice in notices), key=lambda note: "large" in note)
    assert "the inputs include 'patient', a different whole number" in ids
    assert large.startswith(
        "input column 'sodium': large numbers (root mean square up to 139; 'sodium' ranges from 138 to 140)"
    )


def test_code_of_missing_values_in_a_large_column_is_shown(tmp_path: Path):
    rows = [f"{7 + number % 2},{-999 if number == 4 else 3.5},{number % 2},{number % 5}" for number in range(30)]
    with pytest.warns(Notice, match=r"up to 182; 'acidity' ranges from -999 to 3.5\)"):
        ArrayData(source=written(tmp_path, "depth,acidity,y,client\n" + "\n".join(rows))).federated(0)


def test_repeated_lines_of_rounded_measurements_are_noted_unless_they_may_be_chance(tmp_path: Path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(0, 60, 900) / 10 for name in "abcdef"})
    frame["y"], frame["client"] = rng.integers(0, 3, 900), rng.integers(0, 9, 900)
    twice = pd.concat([frame, frame.iloc[40:47]])
    twice.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.warns(Notice, match="7 lines repeat an earlier one, the first in line 902"):
        ArrayData(source=tmp_path / "twice.csv").federated(0)
    pd.concat([frame, frame.iloc[[0, 1]].assign(client=9)]).to_csv(tmp_path / "other.csv", index=False)
    with pytest.warns(Notice, match=r"2 lines repeat an earlier one \(2 of them one of another client\), the first in"):
        ArrayData(source=tmp_path / "other.csv").federated(0)
    twice[["a", "y", "client"]].to_csv(tmp_path / "few.csv", index=False)  # most lines repeat one by chance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ArrayData(source=tmp_path / "few.csv").federated(0)


def test_the_label_or_the_true_cluster_among_the_inputs_is_noted(tmp_path: Path):
    rng = np.random.default_rng(0)
    client, price, kind = np.arange(60) % 6, rng.normal(size=60).round(3), rng.integers(0, 3, 60)
    frame = pd.DataFrame(
        {"x": rng.normal(size=60), "client": client, "crop": np.array(["rye", "oat", "pea"])[client % 3]}
    )
    honest = frame.assign(y=price, near=price + rng.normal(0, 0.1, 60), of_client=client * 0.7)
    leaking = {
        "'euro', from which the label follows": frame.assign(y=price, euro=(89 * price + 190).round(1)),
        "'code', from which the label follows": frame.assign(y=np.array(["a", "b", "c"])[kind], code=kind * 5),
        "'is_rye', 'number', the same in all lines of a true": frame.assign(
            y=price, is_rye=(client % 3 == 0) * 1, number=client % 3
        ),
    }
    for what, table in leaking.items():
        table.to_csv(tmp_path / "leak.csv", index=False)
        with pytest.warns(Notice, match=f"the inputs include {what}"):
            ArrayData(source=tmp_path / "leak.csv", columns={"cluster": "crop"}).federated(0)
    honest.to_csv(tmp_path / "honest.csv", index=False)
    with warnings.catch_warnings(record=True) as notes:
        ArrayData(source=tmp_path / "honest.csv", columns={"cluster": "crop"}).federated(0)
    assert [str(note.message).partition(", ")[0].rpartition(" ")[2] for note in notes] == ["'of_client'"]


@pytest.mark.parametrize("cell", ["0.1 -2 3e1", "[0.1, -2, 30]", "0.1;-2;30"])
def test_several_numbers_in_a_cell_are_answered_with_how_to_split_them(tmp_path: Path, cell: str):
    path = written(tmp_path, f'x,y,client\n"{cell}",0,a\n"{cell}",1,b\n')
    message = error_of(ArrayData(source=path))
    split = "table['x'].str.strip('[]').str.split(r'[ ,;]+', expand=True).astype(float)"
    assert message.endswith(f"write a column for each number of a cell, such as {split}")
    table = pd.read_csv(path)
    numbers = table["x"].str.strip("[]").str.split(r"[ ,;]+", expand=True).astype(float)  # the call of the message
    assert numbers.to_numpy().tolist() == [[0.1, -2.0, 30.0]] * 2


def test_a_pattern_of_tables_is_answered_with_how_to_join_them(tmp_path: Path):
    written(tmp_path, "x,y\n1,0\n")
    message = error_of(ArrayData(source=tmp_path / "*.csv"))
    assert message.startswith(
        f"{tmp_path} is a folder of .csv tables; make one table of them, with a column that names"
    )


def test_a_true_cluster_that_is_not_known_is_refused_with_the_reason(tmp_path: Path):
    path = written(tmp_path, "x,y,client,crop\n1.5,0,a,rye\n2,1,b,\n3,0,a,rye\n2,1,b,\n")
    message = error_of(ArrayData(source=path, columns={"cluster": "crop"}))
    assert "column 'crop' is empty in line 3 (2 lines have empty cells); agreement with the true clusters is" in message
    assert "write the table without this column" in message


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TABLE, {}, "has no column 'y'; it has user, height, label, site, weight; say which are the labels"),
        (TABLE, {"y": "lable"}, "has no column 'lable' (did you mean label?)"),
        (TABLE, {"y": "labe"}, "has no column 'labe' (did you mean label?)"),
        (TABLE.replace("label", "rain tomorrow"), {"y": "Rain"}, "no column 'Rain' (did you mean rain tomorrow?)"),
        (
            TABLE,
            COLUMNS | {"cluster": "place"},
            "weight; if the true clusters are not known, leave it out: --data.columns '{y: label, client: user}'",
        ),
        (TABLE, COLUMNS | {"clients": "user"}, "columns has 'clients' (did you mean client?)"),
        (TABLE, COLUMNS | {"cluster": "user"}, "columns gives 'user' as client and cluster; give each its own column"),
        (TABLE, {"label": "label"}, "columns has 'label'; it takes y (the labels), client, cluster and is_test, each"),
        (
            TABLE,
            {"y": "label", "client": "user"},
            "inputs must be numbers, but column 'site' has 'north'; leave such columns out, or encode them as numbers",
        ),
        (
            TABLE.replace("north", "a way to the north").replace("south", "and back"),
            {"y": "label", "client": "user"},
            "or encode them as numbers; texts are read by HFDataset",
        ),
        (
            TABLE,
            {"y": "label"},
            "'bo', column 'site' has 'north'; leave such columns out, or encode them as numbers, or say which",
        ),
        (TABLE.replace("3.5", ""), COLUMNS, "column 'height' is empty in line 4"),
        (
            TABLE.replace("run,north", "None,north"),
            COLUMNS,
            "has 'None', a missing value, in line 4; fill such cells, or drop their lines; if 'None' is a name, spell",
        ),
        (re.sub(r"\d\.5", "", TABLE), COLUMNS, "column 'height' is empty in all lines; remove it"),
        (TABLE.replace("al,2.5,run", "al,2.5,"), COLUMNS, "column 'label' is empty in line 3; fill"),
        (
            TABLE.replace("3.5", "").replace("al,2.5,run", "al,2.5,"),
            COLUMNS,
            "column 'height' is empty in line 4 (2 lines have empty cells); fill",
        ),
        (TABLE.replace("3.5", "-inf"), COLUMNS, "column 'height' is infinite in line 4; fill such cells with numbers"),
        (TABLE.replace("3.5", "n/a"), COLUMNS, "column 'height' has 'n/a', a missing value, in line 4; fill"),
        (
            TABLE.partition("\n")[2],
            COLUMNS,
            " has no column 'label': its first line must name the columns, but holds 'bo', '1.5', 'walk',",
        ),
        (
            "0.5,0.5,1\n0.1,0.2,0\n",
            {"y": "label"},
            "has no names of columns: its first line must name the columns, but holds '0.5', '0.5', '1'; write a line",
        ),
        (
            TABLE.replace("label", " label"),
            COLUMNS,
            "no column 'label' (did you mean ' label'?); it has user, height, ' ",
        ),
        ("", COLUMNS, "is empty; write a table into it whose first line names its columns"),
        (
            TABLE.replace("3.5", "3.5,7,8"),
            COLUMNS,
            "line 4 has 7 cells, but the lines before it have at most 5; correct it, and put a cell that contains a "
            'comma into quotes, such as "a, b"',
        ),
        (TABLE, COLUMNS | {"users": "user"}, "columns has 'users'; it takes y"),
        (TABLE.partition("\n")[0] + "\n", COLUMNS, "has no line below its column names"),
        (TABLE.replace("height", "label"), COLUMNS, "has two columns 'label'; give each column its own name"),
        (
            TABLE.replace(",weight", ""),
            COLUMNS,
            "the first line, which must name all columns, but has 'user', 'height', 'label', 'site'; name all columns",
        ),
        (
            TABLE.replace("3.5", "n.v."),
            COLUMNS,
            "column 'height' has 'n.v.' in line 4; fill such cells with numbers, or drop their lines",
        ),
        (
            TABLE.replace("2.5", "no sensor").replace("3.5", "n.v."),
            COLUMNS,
            "column 'height' has 'no sensor' in line 3 (2 such cells); fill such cells with numbers",
        ),
        (
            TABLE.replace("2.5", '"2,5"').replace("3.5", '"-3,5"'),
            COLUMNS,
            "column 'height' has '2,5' in line 3 (2 such cells); write decimal points in such cells, as in the others: "
            "2.5",
        ),
        (
            TABLE.replace("walk", '"0,5"').replace("run", '"1,5"'),
            COLUMNS,
            "column 'label' has '0,5'; write decimal points, for example by pandas.read_csv('own.csv', decimal=',')"
            ".to_csv('own.csv', index=False)",
        ),
        (
            TABLE.replace(",", ";").replace(".5", ",5"),
            COLUMNS,
            "own.csv separates its columns by ';', not by commas; convert it, for example by "
            "pandas.read_csv('own.csv', sep=';', decimal=',').to_csv('own.csv', index=False)",
        ),
        (
            TABLE.replace("walk", "closed").replace("run", '"0,5"'),
            COLUMNS,
            "column 'label' has 'closed' in line 2; write decimal points, for example by "
            "pandas.read_csv('own.csv', decimal=',', na_values=['closed'])",
        ),
        (TABLE.replace(",", "\t"), COLUMNS, r"separates its columns by '\t', not by commas; convert it"),
        ("user,label\nbo,1\n", {"y": "label", "client": "user"}, "has no column besides user, label"),
    ],
)
def test_what_a_table_cannot_be(tmp_path: Path, text: str, columns: dict[str, str], message: str):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        ArrayData(source=path, columns=columns, test=0).federated(0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).count(str(path)) <= 1


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_table_that_is_not_in_utf8_is_refused_with_the_conversion(tmp_path: Path, encoding: str):
    path = written(tmp_path, TABLE)
    path.write_bytes(TABLE.replace("al", "ål").replace(",", ";").encode(encoding))
    with pytest.raises(InputError) as error:
        ArrayData(source=path, columns=COLUMNS).federated(0)
    options = f"encoding='{encoding}', sep=';', decimal=','"
    assert str(error.value).startswith(f"{path} is not in UTF-8 and separates its columns by ';'")
    assert f"pandas.read_csv('own.csv', {options}).to_csv('own.csv', index=False)" in str(error.value)


def test_other_files_take_no_columns(tmp_path: Path):
    with pytest.raises(InputError, match=r"columns names the columns of a \.csv table"):
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


@pytest.mark.parametrize(
    ("ending", "call"),
    [
        ("xlsx", "read_excel('visits.xlsx')"),
        ("tsv", "read_csv('visits.tsv', sep=None, engine='python')"),
        ("parquet", "read_parquet('visits.parquet')"),
        ("csv.gz", "read_csv('visits.csv.gz')"),
    ],
)
def test_a_table_in_another_form_is_refused_with_the_call_that_converts_it(tmp_path: Path, ending: str, call: str):
    path = tmp_path / f"visits.{ending}"
    path.write_text(TABLE)
    expected = f"{path} is not a .csv table; save it as one, for example by pandas.{call}.to_csv('visits.csv', "
    for columns in (COLUMNS, None):  # with names of columns it is refused before it is read
        with pytest.raises(InputError, match=re.escape(expected)):
            ArrayData(source=path, columns=columns).federated(0)


def test_the_ending_of_a_table_may_be_in_capitals(tmp_path: Path):
    tables = [tmp_path / name for name in ("a.csv", "b.CSV")]
    for path in tables:
        path.write_text(TABLE)
    first, second = (ArrayData(source=path, columns=COLUMNS).pool().examples for path in tables)
    assert torch.equal(first.inputs, second.inputs)


def test_client_of_a_table_in_two_true_clusters_is_named_with_its_line(tmp_path: Path):
    path = written(tmp_path, "x,y,client,crop\n1,0,a,rye\n2,1,b,oat\n3,0,a,rye\n2,1,b,rye\n4,1,a,oat\n")
    message = error_of(ArrayData(source=path, columns={"cluster": "crop"}))
    assert "column 'crop' has 'rye' in line 5, but 'oat' in the first line of client b (2 clients have" in message
    path = written(tmp_path, "x,y,client,cluster\n1,0,a,3\n2,1,b,4\n3,0,a,3\n2,1,b,7\n")
    assert "column 'cluster' has 7 in line 5, but 4 in the first line of client b; a" in error_of(
        ArrayData(source=path)
    )
