"""Damage to a file of a run directory is healed or named: files by damages, of finished and of killed runs.

`heals`: resuming ends with exit code 0 and the files of an undamaged run. `named`: it ends with exit code 2 and one
line that has the file's name, and changes no file. `either`: a bit of an archive may lie between its checked parts.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hurt import Hurt
from kills import Trials, run_in_child
from processes import replace_text
from same_files import find_damages, find_differences

OPTIONS = """
    run --config quickstart --baseline null --name run --rounds 4 --data.num_clients 8 --cohort_size 4
    --algorithm.pretrain_scale 2 --personal [fc1.bias] --local.epochs 1 --evaluation.per_client true
    --pictures.formats [] --tracking.wandb disabled --tracking.snapshots_every 2 --checkpoint.every_seconds 0
"""


def flip(file: Path, other: Path) -> None:
    """Flips a bit in the middle half of the file."""
    drawn, content = random.Random(file.name), bytearray(file.read_bytes())
    content[drawn.randrange(len(content) // 4, 3 * len(content) // 4)] ^= 1 << drawn.randrange(8)
    file.write_bytes(content)


def flip_in_model(file: Path, other: Path) -> None:
    model, content = torch.load(file, weights_only=True)["state"]["models"][0], bytearray(file.read_bytes())
    content[content.index(model[:4].numpy().tobytes())] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {  # functions of a file, and of that of a run with another seed
    "flip": flip,
    "truncate": lambda file, other: os.truncate(file, file.stat().st_size * 2 // 3),
    "delete": lambda file, other: file.unlink(),
    "replace": lambda file, other: shutil.copy(other, file),
    "flip_in_model": flip_in_model,
    "edit": lambda file, other: replace_text(file, "epochs: 1", "epochs: 2"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Makes directories of the same run, finished and killed in the save of its third round, and of another run."""
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("runs")
    torch.set_num_threads(1)  # forks of a process that has computed in several threads may hang
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # a run records where its code was
        trials = Trials(OPTIONS.split(), folder)
        trials.count_operations()
        listed = (folder / "operations.txt").read_text().splitlines()
        saves = [at for at, line in enumerate(listed) if line.startswith("os.rename") and "checkpoint" in line]
        killed = folder / "killed"
        run_in_child(trials.start(killed), trials.output, lambda: Hurt(killed, "kill", saves[2]) and None)
        assert run_in_child([*trials.start(folder / "other"), "--seeds", "[1]"], trials.output) == 0
        yield {"finished": trials.reference, "killed": killed, "other": folder / "other"}
    torch.set_num_threads(threads)


ANSWERS = """
checkpoint.pt           truncate replace flip_in_model  named
checkpoint.pt           flip                            either
checkpoint.pt           delete                          heals
config.yaml             flip truncate delete replace edit named
metrics.csv             flip truncate delete replace    heals
clusters.csv            flip truncate delete replace    heals
snapshots/1.npz         flip truncate delete replace    named
client_rounds.parquet/* flip truncate delete replace    named
rows/*                  truncate delete replace         named
rows/*                  flip                            either
environment.json        flip truncate delete replace    heals
partition.npz           flip truncate delete replace    heals
clients.csv             flip truncate delete replace    heals
memberships.npz         flip truncate delete replace    heals
summary.json            flip truncate delete replace    heals
SHA256SUMS              flip truncate delete replace    heals
"""
CELLS = [
    (name, damage, answer)
    for name, *words, answer in map(str.split, ANSWERS.strip().splitlines())
    for damage in DAMAGES
    if damage in words
]
AT_THE_END = ("clients.csv", "memberships.npz", "summary.json", "SHA256SUMS")  # a killed run has none of them


@pytest.mark.parametrize(("name", "damage", "answer"), CELLS)
@pytest.mark.parametrize("state", ["finished", pytest.param("killed", marks=pytest.mark.nightly)])
def test_a_damaged_file_is_healed_or_named(
    state: str, name: str, damage: str, answer: str, runs: dict[str, Path], tmp_path: Path
):
    if state == "killed" and name in AT_THE_END:
        assert not (runs["killed"] / name).exists()
        return
    path, output = tmp_path / "run", tmp_path / "output.txt"
    shutil.copytree(runs[state], path)
    file = find_file(path, name)
    DAMAGES[damage](file, find_file(runs["other"], name))
    before = contents(path)
    code, said = run_in_child(["run", "--resume", str(path)], output), output.read_text()
    if answer == "heals" or (answer == "either" and code == 0):
        assert code == 0, said
        assert find_differences(path, runs["finished"]) + find_damages(path) == []
    else:
        assert code == 2, said
        (line,) = [line for line in said.splitlines() if line.startswith("lit-cfl: error: ")]
        option = name == "config.yaml" and damage != "edit"  # then an option may be named that has an impossible value
        assert file.name in line or option
        assert contents(path) == before


def find_file(path: Path, name: str) -> Path:
    """Finds a file that the run needs: a kill in a save leaves files in `rows/` that no checkpoint names."""
    rows = torch.load(path / "checkpoint.pt", weights_only=True)["rows"].values()
    used = {file for places in rows for file in places["files"]}
    return min(file for file in path.glob(name) if file.parent.name != "rows" or file.name in used)


def contents(path: Path) -> dict[Path, bytes]:
    """Reads all files but the lock and those that a kill left half-written."""
    files = [file for file in path.rglob("*") if file.is_file() and file.name != ".lock" and file.suffix != ".tmp"]
    return {file: file.read_bytes() for file in files}
