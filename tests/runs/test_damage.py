"""Tests changed, truncated and foreign files and locked directories: each is named, and nothing is lost."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from processes import (
    ROUNDS,
    contents,
    edit_checkpoint,
    in_child,
    replace_everywhere,
    replace_text,
    resume,
    same_but_saves,
    start,
    wait,
    wait_for,
)

from lit_cfl import load_run
from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.pictures import folder
from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.storage import csv_log
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.csv_log import read_frame
from lit_cfl.storage.digests import SUMS, find_changed

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("output")]


@pytest.fixture(scope="module")
def half(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the same experiment as `whole`, interrupted halfway; tests must not change its directory."""
    path, add_row = tmp_path_factory.mktemp("half") / "run", RunDirectory.add_row

    def interrupted(directory: RunDirectory, row: dict[str, object]) -> dict[str, object]:
        if len(directory.rows) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return add_row(directory, row)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(RunDirectory, "add_row", interrupted)
        assert main(start(path)) == 128 + signal.SIGTERM
    return path


@pytest.fixture
def interrupted(half: Path, tmp_path: Path) -> Path:
    """Copies the interrupted run `half` to `run` in the test's folder."""
    return Path(shutil.copytree(half, tmp_path / "run"))


def test_second_real_process_is_refused_and_the_first_continues(tmp_path: Path, capsys):
    path, tried = tmp_path / "run", tmp_path / "tried"
    add_row = RunDirectory.add_row

    def wait_after_the_first_round() -> None:
        def waiting(directory: RunDirectory, row: dict[str, object]) -> dict[str, object]:
            if directory.rows:
                wait_for(tried)
            return add_row(directory, row)

        RunDirectory.add_row = waiting

    child = in_child(start(path, "--baseline", "null"), wait_after_the_first_round)
    wait_for(path / "metrics.csv", "\n1,")
    assert main(resume(path)) == 2
    assert f"{path} is in use by process {child}" in capsys.readouterr().err
    tried.touch()
    assert wait(child) == 0


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(
            lambda p: (p / "checkpoint.pt").write_bytes((p / "checkpoint.pt").read_bytes()[:900]),
            "truncated",
            id="truncated",
        ),
        pytest.param(lambda p: (p / "checkpoint.pt").write_bytes(b""), "truncated", id="empty"),
        pytest.param(
            lambda p: torch.save({"weights": torch.ones(3)}, p / "checkpoint.pt"),
            "is not a checkpoint of Lit-CFL",
            id="foreign",
        ),
        pytest.param(
            lambda p: edit_checkpoint(p, format=99),
            "checkpoint.pt has format 99, but this version of Lit-CFL reads format 1; start a new run",
            id="format",
        ),
        pytest.param(
            lambda p: edit_config_in_checkpoint(p, epochs=9),
            "local.epochs: 9 -> 3",
            id="other run's checkpoint",
        ),
        pytest.param(
            lambda p: replace_text(p / "config.yaml", "epochs: 3", "epochs: 4"),
            "config.yaml is not the file that the run was saved with: local.epochs: 3 -> 4. Put the original back",
            id="edited",
        ),
        pytest.param(
            lambda p: replace_text(p / "config.yaml", "rounds: 8", "rounds: 9"),
            "config.yaml is not the file that the run was saved with: rounds: 8 -> 9. Put the original back",
            id="more rounds",
        ),
        pytest.param(
            lambda p: replace_text(p / "config.yaml", "seeds:\n- 0", "seeds:\n- 7"),
            "config.yaml is not the file that the run was saved with: seeds: [0] -> [7]. Put the original back",
            id="other run's config",
        ),
        pytest.param(
            lambda p: (p / "config.yaml").write_text("a: [1"),
            "config.yaml holds no configuration; put the original back",
            id="yaml",
        ),
        pytest.param(
            lambda p: replace_everywhere(p, "device: cpu", "device: cuda:31"),
            "which this machine cannot run",
            id="plan",
        ),
    ],
)
def test_damage_is_named_and_nothing_is_lost(damage, expected: str, ended: Path, capsys):
    (ended / "summary.json").unlink()  # as if the run had been killed just before its end
    damage(ended)
    before = {p.name: p.read_bytes() for p in ended.iterdir() if p.is_file() and p.name != ".lock"}
    assert main(resume(ended)) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
    assert {p.name: p.read_bytes() for p in ended.iterdir() if p.is_file() and p.name != ".lock"} == before


def edit_config_in_checkpoint(path: Path, part: str = "local", **options: object) -> None:
    config = json.loads(torch.load(path / "checkpoint.pt", weights_only=True)["config"])
    config[part] |= options
    edit_checkpoint(path, config=json.dumps(config))


def test_plan_for_another_machine_is_taken_only_if_asked_for(ended: Path, whole: Path, capsys):
    (ended / "summary.json").unlink()
    replace_everywhere(ended, "device: cpu", "device: cuda:31")
    assert main(resume(ended)) == 2
    assert "device cuda:31" in capsys.readouterr().err
    assert main(resume(ended, "--new_plan")) == 0
    assert yaml.safe_load((ended / "config.yaml").read_text())["plan"]["device"] == "cpu"
    assert same_but_saves(contents(ended), contents(whole))


def test_half_written_directory_starts_again(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    path.mkdir()
    shutil.copy(whole / "config.yaml", path)  # as if the run had been killed after writing its first file
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


# A flipped bit


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def place_of(path: Path, content: bytes) -> int:
    at = path.read_bytes().find(content)
    assert at > 0
    return at


def test_flipped_bit_in_a_model_of_the_checkpoint_is_noticed(ended: Path, capsys):
    model = torch.load(ended / "checkpoint.pt", weights_only=True)["state"]["models"][0]
    flip(ended / "checkpoint.pt", place_of(ended / "checkpoint.pt", model[:4].numpy().tobytes()))
    for command in (resume(ended), ["evaluate", str(ended)]):
        assert main(command) == 2
        assert f"{ended}/checkpoint.pt cannot be read: it is lost, truncated, damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "damage"),
    list(
        product(
            [("summary.json",), ("partition.npz", "environment.json", "clients.csv", "memberships.npz")],
            ["flip", "delete", "empty"],
        )
    ),
)
def test_damaged_files_of_a_finished_run_are_written_again(
    names: tuple[str, ...], damage: str, ended: Path, whole: Path
):
    for name in names:
        hurt(ended / name, damage)
        assert find_changed(ended, [name]) == [name]
    assert sorted(find_changed(ended) or []) == sorted(names)
    assert main(resume(ended)) == 0
    for name in names:
        # summary.json contains times
        assert name == "summary.json" or (ended / name).read_bytes() == (whole / name).read_bytes()
    assert same_but_saves(contents(ended), contents(whole))
    assert find_changed(ended) == []


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_files_of_the_start_that_are_damaged_in_mid_run_are_made_again(damage: str, interrupted: Path, whole: Path):
    names = ("partition.npz", "environment.json")
    before = [(interrupted / name).read_bytes() for name in names]
    for name in names:
        hurt(interrupted / name, damage)
    assert main(resume(interrupted)) == 0
    assert [(interrupted / name).read_bytes() for name in names] == before
    assert same_but_saves(contents(interrupted), contents(whole))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("snapshots/1.npz", "flip"), ("snapshots/1.npz", "delete")],
)
def test_file_that_is_not_written_again_is_named(name: str, damage: str, interrupted: Path, capsys):
    hurt(interrupted / name, damage)
    assert main(resume(interrupted)) == 2
    message = capsys.readouterr().err
    assert f"{interrupted}/{name} was changed" in message
    assert "remove checkpoint.pt to start again at round 1" in message


def test_removing_the_checkpoint_starts_again(interrupted: Path, whole: Path):
    hurt(interrupted / "snapshots" / "1.npz", "flip")
    (interrupted / "checkpoint.pt").unlink()
    assert main(resume(interrupted)) == 0
    assert same_but_saves(contents(interrupted), contents(whole))


def test_damaged_digests_are_written_again(ended: Path):
    flip(ended / SUMS, 3)
    assert find_changed(ended) == ["checkpoint.pt"]  # whose digest it is
    assert main(resume(ended)) == 0
    assert find_changed(ended) == []


def test_digests_without_their_end_are_not_believed(ended: Path):
    lines = (ended / SUMS).read_text().splitlines(keepends=True)
    (ended / SUMS).write_text("".join(lines[:4]))
    assert find_changed(ended) is None
    assert main(resume(ended)) == 0
    assert (ended / SUMS).read_text().count("\n") == len(lines)


def test_tables_that_were_edited_are_written_again(interrupted: Path, whole: Path):
    replace_text(interrupted / "metrics.csv", "\n1,0.", "\n1,1.")
    (interrupted / "clusters.csv").unlink()
    assert main(resume(interrupted)) == 0
    assert same_but_saves(contents(interrupted), contents(whole))


def test_tables_of_several_parts_are_resumed(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_log, "_PART", 1500)  # longer than a header
    path = tmp_path / "run"
    assert main(start(path, rounds=3)) == 0
    assert len(load_run(path).metrics) == 3
    assert main(resume(path, "--rounds", str(ROUNDS))) == 0
    assert list(path.glob("rows/metrics.csv-*.pt"))
    assert same_but_saves(contents(path), contents(whole))
    assert load_run(path).metrics.equals(read_frame(path / "metrics.csv"))


def test_a_snapshot_that_is_damaged_before_the_end_does_not_match_the_digests(interrupted: Path):
    """The digest in `SHA256SUMS` is that of the snapshot when it was written, not that of its damage."""
    directory = RunDirectory(interrupted)
    directory.digests = torch.load(interrupted / "checkpoint.pt", weights_only=True)["digests"]
    hurt(interrupted / "snapshots" / "1.npz", "flip")
    directory.conclude([])
    assert find_changed(interrupted) == ["snapshots/1.npz"]


def test_digests_are_those_of_sha256sum(whole: Path):
    checked = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=whole, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    names = {line.partition(":")[0] for line in checked.stdout.splitlines()}
    written = {str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file()}
    assert names == {name for name in written if not name.startswith(("baseline", ".lock", SUMS))}


def test_every_flipped_bit_of_a_configuration_is_named_or_changes_nothing(interrupted: Path, capsys):
    rng, original = random.Random(3), (interrupted / "config.yaml").read_bytes()
    refused = 0
    for _ in range(40):
        (interrupted / "config.yaml").write_bytes(original)
        flip(interrupted / "config.yaml", rng.randrange(len(original)), rng.randrange(8))
        if stored_or_none(interrupted) == stored_or_none(interrupted, original):
            continue
        refused += 1
        assert main(resume(interrupted)) == 2
        message = capsys.readouterr().err  # names the file, or the option that has an impossible value
        assert message.count("\n") == 1
    assert refused > 30


def stored_or_none(path: Path, content: bytes | None = None) -> object:
    """Reads a configuration, or this content of it; None if it is not YAML."""
    try:
        return yaml.safe_load((path / "config.yaml").read_bytes() if content is None else content)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None


def test_edited_copy_of_a_configuration_starts_a_new_run(whole: Path, tmp_path: Path):
    edited = tmp_path / "edited.yaml"
    edited.write_text((whole / "config.yaml").read_text().replace("rounds: 8", "rounds: 1"))
    assert main(["run", "--config", str(edited), "--run_dir", str(tmp_path / "new")]) == 0
    assert find_changed(tmp_path / "new") == []


@pytest.mark.parametrize("name", ["../outside.pt", "/etc/passwd", "models.pt"])
def test_row_outside_of_its_folder_is_refused(name: str, tmp_path: Path):
    torch.save({"outside.pt": torch.ones(1, 3)}, tmp_path / "outside.pt")
    Checkpoint(tmp_path).save({"round": 0}, {"models": {0: torch.ones(3)}})
    rows = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["rows"]
    rows["models"]["files"] = [name]
    edit_checkpoint(tmp_path, rows=rows)
    with pytest.raises(InputError, match=rf"{tmp_path}/rows/{Path(name).name} cannot be read: it is lost"):
        Checkpoint(tmp_path).load()


@pytest.mark.parametrize("damage", ["flip", "delete", "empty", "swap"])
def test_damaged_row_is_named(damage: str, tmp_path: Path):
    writer, models = Checkpoint(tmp_path), {client: torch.full((9,), client + 0.5) for client in range(3)}
    writer.save({"round": 0}, {"models": models})
    (first,) = (tmp_path / "rows").iterdir()
    writer.save({"round": 1}, {"models": models | {0: torch.zeros(9)}})
    (row,) = {*(tmp_path / "rows").iterdir()} - {first}
    shutil.copy(first, row) if damage == "swap" else hurt(row, damage)
    why = "it is a copy of another file" if damage == "swap" else "it is lost, truncated, damaged"
    with pytest.raises(InputError, match=rf"rows/{row.name} cannot be read: {why}"):
        Checkpoint(tmp_path).load()


def test_a_checkpoint_of_another_run_whose_rows_do_not_fit_is_named(tmp_path: Path):
    for name, value in (("mine", 1.0), ("other", 2.0)):
        (tmp_path / name).mkdir()
        Checkpoint(tmp_path / name).save({"round": 0}, {"models": {1: torch.tensor([value])}})
    shutil.copy(tmp_path / "other" / "checkpoint.pt", tmp_path / "mine")
    with pytest.raises(InputError, match=rf"{tmp_path}/mine/rows/models-[0-9a-f]+\.pt cannot be read: it is lost"):
        Checkpoint(tmp_path / "mine").load()


def test_files_of_the_user_are_left_in_folders_of_ours(tmp_path: Path):
    (tmp_path / "rows").mkdir()
    for name in ("mine.pt", "table.csv"):
        (tmp_path / "rows" / name).write_text("keep")
    Checkpoint(tmp_path).save({"round": 0}, {"models": {0: torch.ones(3)}})
    assert {"mine.pt", "table.csv"} < {file.name for file in (tmp_path / "rows").iterdir()}


def hurt(file: Path, damage: str) -> None:
    if damage == "flip":
        flip(file, file.stat().st_size // 2)
    elif damage == "delete":
        file.unlink()
    else:
        file.write_bytes(b"")


# Runs killed at their start or end


def test_directory_is_a_run_only_when_all_of_its_first_files_are_there(tmp_path: Path, monkeypatch):
    seen: list[list[str]] = []
    replace = Path.replace

    def noting(self: Path, target: Path) -> Path:
        if target.name == "config.yaml":
            seen.append(sorted(file.name for file in target.parent.iterdir()))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noting)
    assert main(start(tmp_path / "run", "--baseline", "null", rounds=1)) == 0
    assert {"clusters.csv", "environment.json", "metrics.csv", "partition.npz"} <= set(seen[0])


@pytest.mark.usefixtures("pictures")
def test_run_killed_before_its_pictures_draws_them_when_resumed(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    options = ["--baseline", "null", "--pictures.formats", "[png]"]
    assert main(start(tmp_path / "other", *options, rounds=2)) == 0

    def die(*_: object) -> None:
        wait_for(path / "summary.json")
        os.kill(os.getpid(), signal.SIGKILL)

    def instead_of_drawing() -> None:
        folder.write_figure = die

    assert wait(in_child(start(path, *options, rounds=2), instead_of_drawing)) == -signal.SIGKILL
    assert not (path / "pictures").exists()
    (path / ".clients.csv.lit-cfl.tmp").write_text("half of it")
    assert main(resume(path)) == 0
    expected = {file.name: file.read_bytes() for file in (tmp_path / "other" / "pictures").iterdir()}
    assert {file.name: file.read_bytes() for file in (path / "pictures").iterdir()} == expected
    assert len(expected) >= 4
    assert not list(path.rglob("*.tmp"))
    assert find_changed(path) == []


def test_recorded_code_is_the_same_after_a_resume(interrupted: Path, half: Path, tmp_path: Path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(resume(interrupted)) == 0
    assert yaml.safe_load((interrupted / "config.yaml").read_text())["code"] == code_of(half)
    assert json.loads(torch.load(interrupted / "checkpoint.pt", weights_only=True)["config"])["code"] == code_of(half)


def code_of(path: Path) -> list[str]:
    return yaml.safe_load((path / "config.yaml").read_text())["code"]
