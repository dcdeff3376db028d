import errno
import os
import tempfile
from pathlib import Path

import pytest
import torch

from lit_cfl import memmap_rows
from lit_cfl.errors import InputError
from lit_cfl.memmap_rows import collect_rows, keep_row, store_rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_come_back_in_order_and_leave_no_file(folder: Path, dtype: torch.dtype):
    rows = torch.arange(15, dtype=dtype).reshape(5, 3)
    found = store_rows(iter([rows[:2], rows[2:2], rows[2:]]), at_most=8)
    assert torch.equal(found, rows)
    assert found.dtype == dtype
    assert list(folder.iterdir()) == []


ROWS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


@pytest.mark.parametrize("in_a_file", [False, True])
def test_rows_are_collected_and_kept_in_a_file_where_they_would_take_too_much_memory(folder, monkeypatch, in_a_file):
    monkeypatch.setattr(memmap_rows, "_IN_MEMORY", 24 - in_a_file)
    found = collect_rows(iter([ROWS[:1], ROWS[1:]]), at_most=2)
    assert found.tolist() == ROWS.tolist()
    assert (found.untyped_storage().filename is not None) == in_a_file
    monkeypatch.setattr(memmap_rows, "_IN_MEMORY", 23)
    monkeypatch.setattr(memmap_rows, "machine_memory", lambda: 48 - in_a_file)  # twice the bytes of two rows
    rows = ROWS.clone()
    found = keep_row(rows[1], of=2)
    rows.zero_()
    assert found.tolist() == [4, 5, 6]
    assert found.untyped_storage().nbytes() == 12  # no other rows are kept in memory
    assert (found.untyped_storage().filename is not None) == in_a_file


def test_full_disk_is_an_error_that_names_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"No space left on device.*TMPDIR"):
        store_rows(iter([torch.zeros(2, 3)]), at_most=2)
    assert list(folder.iterdir()) == []
