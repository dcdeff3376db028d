"""What pictures and trackers see of tables that grow meanwhile."""

from pathlib import Path

import numpy as np
import pytest
from lanes import thinned

from lit_cfl.pictures.round_view import RoundView
from lit_cfl.scores import ACCURACY
from lit_cfl.storage import csv_log
from lit_cfl.storage.csv_log import CsvLog, latest_rows, read_table


def grown(path: Path, rows: int) -> CsvLog:
    table = CsvLog(path, ("round", "who, when"))
    table.start()
    table.append({"round": number, "who, when": 'a, "b"'} for number in range(rows))
    return table


def view(**tables: tuple[Path, int]) -> RoundView:
    nobody = np.empty(0)
    return RoundView("A", ACCURACY, 3, False, dict, nobody, nobody, nobody, [], (Path(), 0), Path(), None, tables)


def test_rows_that_come_later_are_not_seen(tmp_path: Path):
    table = grown(tmp_path / "odd.csv", 3)
    seen = view(odd=(table.path, table.size))
    table.append([{"round": 3}])
    with table.path.open("ab") as file:
        file.write(b"4,half a r")
    assert seen.table("odd") == [{"round": number, "who, when": 'a, "b"'} for number in range(3)]
    assert view(odd=(table.path, table.size)).table("odd")[-1] == {"round": 3, "who, when": None}


@pytest.mark.long
@pytest.mark.parametrize("rows", thinned([60_001, 0, 1, 60_007, 60_000, 60_002]))
def test_of_a_long_table_the_last_whole_rows_are_read(rows: int, tmp_path: Path):
    table = grown(tmp_path / "odd.csv", rows)
    found, whole = latest_rows(table.path, table.size), read_table(table.path)
    assert found == whole[len(whole) - len(found) :]
    assert len(found) == rows if table.size < 2**20 else len(found) > 50_000


def test_of_the_last_bytes_of_a_table_no_half_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_log, "_MIB", 95)  # as many bytes as are read
    table = CsvLog(tmp_path / "odd.csv", ("round", "what"))
    table.start()
    table.append({"round": number, "what": number / 2} for number in range(1000, 1040))  # 11 bytes each
    assert latest_rows(table.path, table.size) == [{"round": k, "what": k / 2} for k in range(1032, 1040)]


def test_table_that_is_not_there_has_no_rows():
    assert view().table("layers") == []
