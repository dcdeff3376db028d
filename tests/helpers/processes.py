"""Runs commands in child processes that are forks of this one, so that they need not load PyTorch again."""

import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import yaml

from lit_cfl.cli.main import main

ROUNDS = 8
OPTIONS = """--config quickstart --data.num_clients 12 --cohort_size 5 --algorithm.pretrain_scale 2
    --tracking.snapshots_every 3"""


# The first backward pass starts threads if Inductor was imported before; a fork could then not train.
torch.zeros(1, requires_grad=True).sum().backward()


def start(path: Path, *more: str, rounds: int = ROUNDS) -> list[str]:
    return ["run", *OPTIONS.split(), "--rounds", str(rounds), "--run_dir", str(path), *more]


def resume(path: Path, *more: str) -> list[str]:
    return ["run", "--resume", str(path), *more]


def in_child(arguments: list[str], prepare: Callable[[], None] = lambda: None) -> int:
    """Starts the command in a fork, with its output in the file `$CHILD_OUTPUT`; returns the process id."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 99
    try:
        torch.set_num_threads(1)  # a fork lacks the threads that OpenMP has started, and would wait for them
        target = os.environ["CHILD_OUTPUT"]
        with open(target, "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            prepare()
            code = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """Returns the exit code of a child process, or the negative signal number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def descendants(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process may just have ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                child = int(path.parent.name)
                found += [child, *descendants(child)]
    return found


def left(mark: str, *, agents: bool = True, seconds: float = 100) -> list[int]:
    """Waits until all processes with this mark in their environment end; after `seconds`, returns those still running.

    The `agents` of a Ray that was killed live for a minute, and try to report to its store, which is gone.
    """
    deadline = time.monotonic() + seconds
    while (found := marked(mark, agents=agents)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def marked(mark: str, *, agents: bool = True) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has just ended, or belongs to another user
            words = path.with_name("cmdline").read_bytes()
            if mark.encode() in path.read_bytes() and (agents or not re.match(rb"ray::\w+Agent", words)):
                found.append(int(path.parent.name))
    return found


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and text in path.read_text(errors="replace")):
        assert time.monotonic() < deadline, f"waited for {path}"
        time.sleep(0.002)


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def replace_everywhere(path: Path, old: str, new: str) -> None:
    """Replaces a value in a run's configuration and checkpoint, as if another machine had written them."""
    replace_text(path / "config.yaml", old, new)
    config = yaml.safe_load((path / "config.yaml").read_text())
    del config["format"]
    content = torch.load(path / "checkpoint.pt", weights_only=True)
    content |= dict.fromkeys(("config", "config before"), json.dumps(config))
    torch.save(content, path / "checkpoint.pt")
