"""Tests what a tracker gets of a round besides its numbers: a histogram, and tables that grow while they are read."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lit_cfl.pictures.round_view import RoundView
from lit_cfl.scores import ACCURACY
from lit_cfl.storage import csv_log
from lit_cfl.storage.csv_log import CsvLog, latest_rows
from lit_cfl.tracking.media import media


def test_wandb_gets_the_last_thousand_rows_of_a_table():
    rows = [{"round": number, "what": 2 * number} for number in range(1, 1003)]
    view = SimpleNamespace(values=np.empty(0), score=ACCURACY, tables={"moves": None}, table=lambda name: rows)
    view.clusters = [{"round": 3, "cluster": 0, "size": 7}, {"round": 3, "cluster": 1, "size": 5, "u": 0.5}]
    found = media(view, {}, with_tables=True)
    assert found["tables/moves"].columns == ["round", "what"]
    assert found["tables/moves"].data == [[number, 2 * number] for number in range(3, 1003)]
    assert found["tables/clusters"].columns == ["round", "cluster", "size", "u"]
    assert found["tables/clusters"].data == [[3, 0, 7, None], [3, 1, 5, 0.5]]
    assert set(found) == {"tables/moves", "tables/clusters"}


def test_rows_that_come_later_are_not_seen(tmp_path: Path):
    table = CsvLog(tmp_path / "odd.csv", ("round", "who, when"))
    table.start()
    table.append({"round": number, "who, when": 'a, "b"'} for number in range(3))
    size = table.size
    with table.path.open("ab") as file:
        file.write(b"3,half a r")
    nobody = np.empty(0)
    view = RoundView(Path(), ACCURACY, False, dict, nobody, nobody, [], {"odd": (table.path, size)})
    assert view.table("odd") == [{"round": number, "who, when": 'a, "b"'} for number in range(3)]


def test_of_the_last_bytes_of_a_table_no_half_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_log, "_MIB", 95)  # number of bytes that are read
    table = CsvLog(tmp_path / "odd.csv", ("round", "what"))
    table.start()
    table.append({"round": number, "what": number / 2} for number in range(1000, 1040))  # 11 bytes each
    assert latest_rows(table.path, table.size) == [{"round": k, "what": k / 2} for k in range(1032, 1040)]
    assert latest_rows(table.path, 33) == [{"round": k, "what": k / 2} for k in (1000, 1001)]  # all of them


def test_wandb_gets_the_histogram_of_the_clients_that_have_a_score():
    values = np.array([0.02, 0.99, 0.97, np.nan, 0.5])
    (histogram,) = media(
        SimpleNamespace(values=values, score=ACCURACY, tables={}, clusters=[]), {}, with_tables=False
    ).values()
    assert sum(histogram.histogram) == 4
    assert (histogram.histogram[0], histogram.histogram[-1]) == (1, 2)
    assert (histogram.bins[0], histogram.bins[-1]) == (0.0, 1.0)  # the whole range of an accuracy, whatever its values
