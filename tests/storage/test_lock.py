"""Tests that a directory held by another process is waited for briefly, and then refused."""

import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from lit_cfl.errors import InputError
from lit_cfl.storage.lock import lock_directory


def test_a_directory_that_is_held_for_a_moment_is_waited_for_and_else_refused(tmp_path: Path):
    other = FileLock(tmp_path / ".lock", thread_local=False)
    other.acquire()
    (tmp_path / ".lock").write_text("4711")
    with pytest.raises(InputError, match="in use by process 4711"), lock_directory(tmp_path):
        pass
    free = threading.Thread(target=lambda: (time.sleep(0.1), other.release()))
    free.start()
    with lock_directory(tmp_path):
        assert not other.is_locked
    free.join()
