"""Commands in processes of their own, which begin as forks of one that has loaded PyTorch and has started nothing."""

import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

# Ray's agents of a killed driver try to tell its store, which is gone, too, that Ray has ended: else for 60 seconds.
_QUICK_AGENTS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}
Begin = Callable[[Sequence[str], Path, Path], BaseProcess]


@pytest.fixture(scope="session")
def begin() -> Begin:
    """Starts a command: its words, the folder it runs in, and a file for what it prints. Its variables are the test's.

    Processes that it starts have them in `/proc/<id>/environ`; it does not itself.
    """
    server = get_context("forkserver")
    server.set_forkserver_preload(["lit_cfl.cli.main", "lit_cfl.compare.side_by_side", "lit_cfl.tune.command"])
    forkserver.ensure_running()  # now, with no test's variables

    def begin(words: Sequence[str], folder: Path, printed: Path) -> BaseProcess:
        process = server.Process(target=_run, args=(words, folder, printed, os.environ | _QUICK_AGENTS))
        process.start()
        return process

    return begin


def _run(words: Sequence[str], folder: Path, printed: Path, variables: dict[str, str]) -> None:
    from lit_cfl.cli.main import main

    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    with printed.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.exit(main(words))
