from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from own_arrays import assert_refused

from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import Notice

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


def test_usual_names_need_no_columns_and_labels_may_be_left_out(tmp_path: Path):
    usual = TABLE.replace("user", "client").replace("label", "y").replace("site", "cluster")
    data = ArrayData(source=written(tmp_path, usual), test=0).federated(0)
    assert (data.examples.input_names, data.examples.label_names) == (("height", "weight"), ("run", "walk"))
    assert (data.names, data.true_clusters.tolist()) == (("al", "bo"), [1, 0])  # "north" is number 0
    path = written(tmp_path, "user,height,weight\nbo,1,2.5\nal,1,3.5\nbo,2,2.5\n")
    data = ArrayData(source=path, columns={"y": None, "client": "user"}, test=0).federated(0)
    assert (data.examples.label_kind, data.examples.input_names) == ("none", ("height", "weight"))


def test_clients_of_a_large_table_may_be_numbers_and_words(tmp_path: Path):
    lines = [f"{k % 3},{k % 2},{k / 7:.3f}\n" for k in range(300_000)]  # pandas reads a part of them at a time
    path = written(tmp_path, f"client,y,x\n{''.join(lines)}A,0,1.5\n")
    data = ArrayData(source=path, test=0).federated(0)
    assert data.names == ("0", "1", "2", "A")
    assert data.train.sizes.tolist() == [100_000, 100_000, 100_000, 1]


FORMS = {
    "commas": ("csv", lambda table, path: table.to_csv(path, index=False)),
    "semicolons": ("csv", lambda table, path: table.to_csv(path, index=False, sep=";")),
    "decimal commas": ("csv", lambda table, path: table.to_csv(path, index=False, sep=";", decimal=",")),
    "decimal commas in quotes": ("csv", lambda table, path: table.to_csv(path, index=False, decimal=",")),
    "tabs": ("tsv", lambda table, path: table.to_csv(path, index=False, sep="\t")),
    "a mark of UTF-8": ("csv", lambda table, path: table.to_csv(path, index=False, encoding="utf-8-sig")),
    "Windows": ("csv", lambda table, path: table.to_csv(path, index=False, lineterminator="\r\n")),
    "parquet": ("parquet", lambda table, path: table.to_parquet(path)),
    "parquet with an index": ("parquet", lambda table, path: table.set_index("user").to_parquet(path)),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_a_table_are_read_alike(tmp_path: Path, form: str):
    ending, write = FORMS[form]
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"user": ["s, 1", "s, 0", "s, 2"] * 4, "a": rng.normal(size=12), "b": rng.normal(size=12)})
    table["label"], table["site"], table["cost"] = ["x", "y"] * 6, ["n", "s", "n"] * 4, np.arange(12)
    write(table, path := tmp_path / f"own.{ending}")
    data = ArrayData(source=path, columns=COLUMNS, test=0).federated(0)
    assert data.examples.input_names == ("a", "b", "cost")
    assert torch.equal(data.examples.inputs, torch.from_numpy(table[["a", "b", "cost"]].to_numpy(np.float32)))
    assert (data.examples.label_names, data.examples.labels.tolist()) == (("x", "y"), [0, 1] * 6)
    assert (data.names, data.true_clusters.tolist()) == (("s, 0", "s, 1", "s, 2"), [1, 0, 0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a,b\n0.5,"8,654"\n1.5,"1,000"\n', [8654, 1000]),  # next to decimal points
        ('a,b\n5,"8,654"\n1,"0,126"\n', [8.654, 0.126]),  # no thousands begin with 0
        ('a,b\n0.5,"8,654.25"\n1.5,"1"\n', [8654.25, 1]),
        ("a;b\n0.5;8,654\n1.5;1\n", [8654, 1]),
        ("a;b\n5;8,654\n1;1\n", [8.654, 1]),  # in a file with semicolons between columns
        ('a,b\n"0,5","8,654"\n1,"1,000"\n', [8.654, 1]),
        ("a\tb\n2,5\t-0,25e1\n1\t,5\n", [-2.5, 0.5]),
        ('a,b\n5,"8,654"\n1,"1,000"\n', "'b' | '8,654' | row 2 | 1 more | decimal points"),
        ("a;b\n1.5;2,5\n1.5;1\n", "'b' | '2,5' | row 2 | decimal points"),
    ],
)
def test_commas_in_numbers(tmp_path: Path, text: str, expected: list[float] | str):
    module = ArrayData(source=written(tmp_path, text), columns={"y": None})
    if isinstance(expected, str):
        assert_refused(module, expected)
    else:
        assert module.pool().examples.inputs[:, 1].tolist() == np.float32(expected).tolist()


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ("0 2 1", "classes", [0, 2, 1]),
        ("TRUE FALSE TRUE", "classes", ["FALSE", "TRUE"]),
        ("True false FALSE", "classes", ["FALSE", "True", "false"]),
        ("01 1 2", "classes", ["01", "1", "2"]),
        ("b a c", "classes", ["a", "b", "c"]),
        ("1_0 2 10", "classes", ["2", "10", "1_0"]),
        ("0.5 2 1.50", "numbers", [0.5, 2, 1.5]),
        ("1.0 1 1e0", "numbers", [1, 1, 1]),
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


@pytest.mark.parametrize(
    ("header", "row", "columns", "expected"),
    [
        ("Unnamed: 0,age,ward,y,client", "{k},{a},{w},{y},{c}", {}, ["'Unnamed: 0', 'ward'"]),
        ("Unnamed: 0,age,ward,y,client", "{k},{a},{w},{y},{c}", {"cluster": "ward"}, ["'Unnamed: 0',"]),
        ("height,age,year,y,client", "{h},{a},1,{y},{c}", {}, []),  # all clients have the year 1
        ("height,y", "{a},{y}", {}, ["client is not given"]),
    ],
)
def test_inputs_that_number_rows_or_clients_are_noted(tmp_path: Path, header, row, columns, expected, recwarn):
    lines = [row.format(k=k, a=k % 7, w=k % 4 // 2, h=f"{k / 7:.3f}", y=k % 2, c=k % 4) for k in range(30)]
    module = ArrayData(source=written(tmp_path, "\n".join([header, *lines])), columns=columns)
    module.federated(0)
    notes = [str(one.message) for one in recwarn if one.category is Notice and "large numbers" not in str(one.message)]
    assert len(notes) == len(expected)
    assert all(words in note for words, note in zip(expected, notes, strict=True))


# Refusals that tests/cli/test_users_mistakes.py does not have


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        (TABLE.replace("1.5,", '"1.5\n",').replace("3.5", "3.5,7"), COLUMNS, "row 4 | 6 | 5"),
        (TABLE.replace("walk", '"wa\nlk"').replace("4.5", ""), COLUMNS, "'height' | empty | row 5"),
        ("\n" + TABLE.replace("al,2.5", '\n  \n"a\nl",2.5').replace("3.5", ""), COLUMNS, "'height' | empty | row 7"),
        (TABLE.replace("\n", "\r").replace("3.5", ""), COLUMNS, "'height' | empty | row 4"),
        (TABLE.replace("3.5", "n/a"), COLUMNS, "'height' | 'n/a' | row 4"),
        (TABLE.replace("3.5,run", "3.5,None"), COLUMNS, "'label' | 'None' | row 4"),
        (TABLE.replace("bo,3.5", "NA,3.5"), COLUMNS, "'user' | 'NA' | row 4"),
        (TABLE.replace("south", ""), COLUMNS, "'site' | empty | row 3 | 1 more"),
        (TABLE.replace("walk", "closed").replace("run", "0.5"), COLUMNS, "'label' | 'closed' | row 2 | numbers"),
        (TABLE.replace("walk", '"2,5"').replace("run", '"2,7"'), COLUMNS, "'label' | '2,5' | row 2 | 3 more | points"),
        (TABLE.replace("label", " label"), COLUMNS, "'label' | ' label'"),
    ],
)
def test_what_a_table_cannot_be(tmp_path: Path, text: str, columns: dict[str, str], words: str):
    path = written(tmp_path, text)
    assert_refused(ArrayData(source=path, columns=columns, test=0), words)


def test_a_cell_of_a_file_without_text(tmp_path: Path):
    for cells, said in (
        ([1.0, np.nan], "empty | row 1 (from 0)"),
        ([[1, 2], [3]], "'[1 2]' | row 0 (from 0) | 1 more"),
    ):
        pd.DataFrame({"x": cells, "y": [0, 1]}).to_parquet(tmp_path / "own.parquet")
        assert_refused(ArrayData(source=tmp_path / "own.parquet"), f"'x' | {said}")


@pytest.mark.parametrize("name", ["own.csv", "own.parquet"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes("café\n".encode("utf-16"))
    assert_refused(ArrayData(source=tmp_path / name), f"{tmp_path / name} | table | UTF-8")
