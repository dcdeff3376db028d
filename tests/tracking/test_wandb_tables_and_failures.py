"""Weights & Biases without a network: tables, odd names, its own settings, full disks, uploads."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import descendants, in_child, resume, start, wait
from wandb_runs import (
    KEY,
    Server,
    folders,
    history,
    logged,
    notes,
    numbers,
    own_rows,
    set_variables,
    tracked,
    tracked_command,
    upload,
)

from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking import trackers
from lit_cfl.tracking.offline import folders_of, sync_line

pytestmark = pytest.mark.slow  # each starts a process, and most of them the service of wandb


def often(**variables: str | None) -> None:
    """In a child: as `set_variables`, but pictures and tables are never left out."""
    set_variables(**variables)
    trackers.SHARE = float("inf")


def shown(run: Path, name: str, row: dict[str, Any]) -> dict[str, Any]:
    """A table of W&B that stands in an entry of the history."""
    content: dict[str, Any] = json.loads((folders(run)[0] / "files" / row[f"tables/{name}.path"]).read_text())
    return content


@pytest.mark.parametrize(
    ("config", "names", "options"),
    [
        ("flexcfl/digits", ("migrations", "shift"), ()),
        (
            "layercfl/digits",
            ("layers",),
            ("--algorithm.eps1", "100", "--algorithm.eps2", "0", "--algorithm.warmup_rounds", "0"),
        ),
    ],
)
def test_migrations_shifts_and_layers_are_shown_as_far_as_they_have_come(
    config: str, names: tuple[str, ...], options: tuple[str, ...], pictures: None, output: Path, tmp_path: Path
):
    run = tmp_path / "run"
    words = ["run", "--config", config, "--baseline", "null", "--rounds", "6", "--tracking.snapshots_every", "2"]
    assert wait(in_child([*words, *options, "--run_dir", str(run)], often)) == 0
    rows = logged(run)
    for name in names:
        own = read_table(run / f"{name}.csv")
        assert own
        first = min(row["round"] for row in own)
        assert [row["round"] for row in rows if f"tables/{name}.path" in row] == [r for r in (1, 3, 5, 6) if r >= first]
        for row in rows:
            if f"tables/{name}.path" in row:
                table = shown(run, name, row)
                assert table["columns"] == list(own[0])
                assert table["data"] == [list(line.values()) for line in own if line["round"] <= row["round"]]
    assert ("pictures/layers.path" in rows[-1] or "pictures/layers.path" in rows[4]) is ("layers" in names)
    assert (run / "pictures" / "layers.png").exists() is ("layers" in names)


def test_figures_that_are_no_numbers_are_left_out_and_names_arrive_as_they_are(output: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ["run", "--config", "fedavg/digits", "--rounds", "3", "--algorithm", "test_tracking.Odd"]
    assert tracked_command([*words, "--run_dir", str(run)]) == 0
    rows = logged(run)
    assert [numbers(row) for row in rows] == own_rows(run)
    assert [row.get("odd/figure") for row in rows] == [1.5, None, 1.5]
    table = shown(run, "odd", rows[-1])
    assert table["columns"] == ["round", "who, when", "what"]
    assert table["data"] == [[number, '<b>a</b>, "b"', "$x_1$"] for number in (1, 2, 3)]


def test_run_that_goes_on_for_more_rounds_is_one_run_and_uploaded_as_one(pictures: None, output: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert tracked(run, "--baseline", "null", rounds=3, MODE="offline") == 0
    assert tracked_command(resume(run, "--rounds", "5"), MODE="offline") == 0
    assert [[row["round"] for row in history(folder)] for folder in folders(run)] == [[1, 2, 3], [4, 5]]
    assert len({folder.name[-8:] for folder in folders(run)}) == 1
    server = upload(run / "wandb")
    assert [row["_step"] for row in server.history()] == list(range(5))
    assert server.rounds() == list(range(1, 6))
    assert sync_line([run]) is None  # nothing waits any more


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_a_run_stays_offline_after_wandb_was_told_so(mode: str, output: Path, tmp_path: Path):
    (tmp_path / "settings").write_text(f"[default]\nmode = {mode}\n")  # as `wandb offline` writes it
    server = Server()

    def prepare() -> None:
        set_variables(API_KEY=KEY, BASE_URL=server.address, CONFIG_DIR=str(tmp_path))

    assert wait(in_child(start(tmp_path / "run", "--baseline", "null", rounds=2), prepare)) == 0
    server.close()
    assert server.sent == []
    assert [line[:24] for line in notes(output)] == ["W&B keeps this offline; "]
    assert [numbers(row) for row in logged(tmp_path / "run")] == own_rows(tmp_path / "run")


def test_when_its_service_dies_wandb_is_left_out_with_one_notice_and_the_next_run_has_another(
    output: Path, tmp_path: Path
):
    child = in_child(start(tmp_path / "run", rounds=80), lambda: set_variables(MODE="offline"))
    while not (folders(tmp_path / "run") and logged(tmp_path / "run")):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    (service,) = [one for one in descendants(child) if b"wandb-core" in Path(f"/proc/{one}/cmdline").read_bytes()]
    os.kill(service, signal.SIGKILL)
    assert wait(child) == 0
    first, second = notes(output)
    assert first.startswith("W&B failed and is left out of the rest of this run")
    assert second.startswith("W&B keeps this offline")
    assert "Traceback" not in output.read_text()
    assert len(logged(tmp_path / "run")) < 80 == len(own_rows(tmp_path / "run"))
    assert [numbers(row) for row in logged(tmp_path / "run" / "baseline")] == own_rows(tmp_path / "run" / "baseline")


ON_A_SMALL_DISK = """
mkdir -p run/wandb
mount -t tmpfs -o size=96k none run/wandb
"$@" || exit
df --output=avail run/wandb
cp -r run/wandb kept
"""


def test_on_a_full_disk_wandb_is_left_out_with_one_notice_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "mount -t tmpfs none /mnt"], check=False).returncode
    ):
        pytest.skip("nobody may mount a small disk here")
    words = [
        sys.executable,
        "-m",
        "lit_cfl",
        *start(Path("run"), "--baseline", "null", "--pictures.formats", "[]", rounds=80),
    ]
    done = subprocess.run([*unshare, ON_A_SMALL_DISK, "sh", *words], capture_output=True, text=True, check=True)
    assert len(own_rows(Path("run"))) == 80
    first, second = (line for line in done.stderr.splitlines() if line.startswith("Note: "))
    assert first.startswith("Note: W&B failed and is left out of the rest of this run (OSError")
    assert int(done.stdout.split()[-1]) < 10, done.stderr  # KiB
    assert second.startswith("Note: W&B keeps this offline")
    kept = [row["round"] for folder in folders_of(Path("kept"), "*") for row in history(folder)]
    assert kept == list(range(1, len(kept) + 1))
    assert 10 < len(kept) < 80
