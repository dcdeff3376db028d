"""Tests Weights & Biases without a network: its files, unusual names, uploads, and that it never stops a run."""

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing import let_runs_draw
from processes import descendants, in_child, resume, start, wait, wait_for
from wandb_runs import (
    KEY,
    Server,
    entries,
    folders,
    history,
    logged,
    notes,
    numbers,
    own_rows,
    records,
    server_that_refuses,
    set_variables,
    tracked,
    tracked_command,
    upload,
)

from lit_cfl.runs.load_run import load_run
from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking import trackers, wandb_run
from lit_cfl.tracking.offline import folders_of, sync_line
from lit_cfl.tracking.trackers import Trackers

pytestmark = pytest.mark.nightly  # each test starts a process, and most of them the service of wandb
MIN_LOGGED = 20  # rounds in a folder before its process is killed
REFUSES = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs an experiment offline, without a W&B key or `WANDB_*` variables."""
    folder = tmp_path_factory.mktemp("offline")
    os.environ["CHILD_OUTPUT"] = str(folder / "output.txt")
    let_runs_draw(True)
    assert tracked(folder / "run", "--name", "a, b <b>&c", "--tracking.notes", "first, <i>try</i>") == 0
    let_runs_draw(False)
    return folder


def test_without_a_key_runs_are_kept_offline_and_one_line_says_how_to_upload_them(offline: Path):
    line = f"W&B keeps this offline; `wandb sync {offline}/run/wandb {offline}/run/baseline/wandb` uploads it"
    assert notes(offline / "output.txt") == [line]


def test_baseline_is_a_run_of_its_own(offline: Path):
    ids = [folders(run)[0].name[-8:] for run in (offline / "run", offline / "run" / "baseline")]
    assert ids[0] != ids[1]


def test_offline_files_hold_every_figure_of_metrics_csv(offline: Path):
    for run in (offline / "run", offline / "run" / "baseline"):
        assert [path.name[:12] for path in folders(run)] == ["offline-run-"]
        assert [numbers(row) for row in logged(run)] == own_rows(run)


def test_pictures_and_tables_stand_in_the_entry_of_their_round(offline: Path):
    rows = logged(offline / "run")
    media = [{name.partition(".")[0] for name in row if "." in name} for row in rows]
    drawn = {f"pictures/{name}" for name in ("curve", "similarity", "map", "memberships", "histogram")}
    assert media == [set(), set(), set(), {"clients/accuracy", "tables/clusters"} | drawn]
    files = folders(offline / "run")[0] / "files"
    for name in drawn:
        assert (files / str(rows[-1][f"{name}.path"])).read_bytes().startswith(b"\x89PNG")
    table = json.loads((files / str(rows[-1]["tables/clusters.path"])).read_text())
    assert table["columns"] == ["round", "cluster", "size", "n_test", "accuracy", "loss"]
    assert len(table["data"]) == rows[-1]["clusters/count"]
    assert sum(rows[-1]["clients/accuracy.values"]) == rows[-1]["clients/evaluated"]


def test_configuration_and_summary_are_logged_and_round_is_the_step(offline: Path):
    found = records(folders(offline / "run")[0])
    begun = next(record.run for record in found if record.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["algorithm"]["init_args"]["num_clusters"] == 4
    assert config["plan"]["engine"] in ("chain", "loop")
    steps = [record.metric for record in found if record.WhichOneof("record_type") == "metric"]
    assert [(step.glob_name, step.step_metric) for step in steps] == [("*", "round")]
    summary = concluded(folders(offline / "run")[0])
    own = json.loads((offline / "run" / "summary.json").read_text())
    for name in ("algorithm", "seed", "partition", "test/max_weighted_accuracy"):
        assert summary[name] == own[name]


def concluded(folder: Path) -> dict[str, object]:
    """Reads the summary from a W&B folder."""
    return {
        item.key: json.loads(item.value_json)
        for record in records(folder)
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
        if item.key
    }


def test_names_with_commas_and_html_arrive_unchanged(offline: Path):
    found = records(folders(offline / "run")[0])
    begun = next(record.run for record in found if record.WhichOneof("record_type") == "run")
    assert (begun.display_name, begun.notes) == ("a, b <b>&c", "first, <i>try</i>")


def test_artifact_holds_models_memberships_and_partition(offline: Path):
    folder = folders(offline / "run")[0]
    artifacts = [r.request.log_artifact.artifact for r in records(folder) if r.request.HasField("log_artifact")]
    artifacts += [record.artifact for record in records(folder) if record.WhichOneof("record_type") == "artifact"]
    kept = next(artifact for artifact in artifacts if artifact.type == "clusters")
    assert sorted(entry.path for entry in kept.manifest.contents) == ["memberships.npz", "models.pt", "partition.npz"]
    models = torch.load(folder / "artifact" / "models.pt", weights_only=True)
    saved = load_run(offline / "run")
    assert sorted(models) == ["0", "1", "2", "3", "global"]
    module = saved.module(2)
    for name, value in module.state_dict().items():
        assert torch.equal(value, models["2"][name])
    for name in ("memberships.npz", "partition.npz"):
        assert (folder / "artifact" / name).read_bytes() == (offline / "run" / name).read_bytes()


def test_nothing_of_machine_user_and_folders_is_logged_but_where_files_wait(offline: Path):
    found = records(folders(offline / "run")[0])
    assert {"run", "history", "summary", "artifact"} <= {record.WhichOneof("record_type") for record in found}
    for record in found:
        kind = record.WhichOneof("record_type")
        assert kind not in ("environment", "stats", "output", "output_raw")
        if kind != "artifact":  # artifacts name files that wait for their upload
            words = str(record)
            assert socket.gethostname() not in re.findall(r'"([^"]*)"', words)
            assert f'"{getpass.getuser()}"' not in words
            assert str(Path.home()) not in words.replace("/root/.", "")
            assert str(offline) not in words


def kill_after(rounds: int, words: list[str], run: Path, already: int) -> None:
    """Starts a run offline, and kills it by -9 once it has trained some rounds and its W&B folder has the last ones.

    The file of that folder is cut off in the middle of an entry, as a kill often does.
    """

    def stop() -> None:
        set_variables(MODE="offline")
        add_row = RunDirectory.add_row

        def waiting(directory: RunDirectory, row: dict[str, object]) -> dict[str, object]:
            if len(directory.rows) == rounds:
                signal.pause()
            return add_row(directory, row)

        RunDirectory.add_row = waiting  # type: ignore[method-assign]  # in the child alone, which is killed

    child = in_child(words, stop)
    deadline = time.monotonic() + 120
    while len(folders(run)) <= already or len(list(history(folders(run)[-1]))) < MIN_LOGGED:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    (torn,) = folders(run)[-1].glob("*.wandb")
    os.truncate(torn, list(entries(torn.read_bytes()))[-1][0] - 5)


def test_run_that_was_killed_twice_is_uploaded_with_every_round_once(output: Path, tmp_path: Path):
    run = tmp_path / "run"
    kill_after(60, start(run, "--checkpoint.every_seconds", "0", "--baseline", "null", rounds=90), run, already=0)
    kill_after(75, resume(run), run, already=1)
    assert tracked_command(resume(run), MODE="offline") == 0
    assert len(folders(run)) == 3
    assert [numbers(row) for row in history(folders(run)[-1])] == own_rows(run)
    server = upload(run / "wandb")
    assert server.rounds() == list(range(1, 91))
    assert sync_line([run]) is None


def test_online_run_whose_process_was_killed_continues_after_the_rounds_on_the_server(output: Path, tmp_path: Path):
    run, server = tmp_path / "run", Server()
    assert tracked(run, "--baseline", "null", rounds=2, API_KEY=KEY, BASE_URL=server.address) == 0
    (mark,) = (run / "wandb").glob("lit-cfl-complete-*")
    mark.unlink()  # as if the process had been killed
    assert tracked_command(resume(run, "--rounds", "4"), API_KEY=KEY, BASE_URL=server.address) == 0
    server.close()
    assert server.rounds() == [1, 2, 3, 4]


def test_run_killed_after_its_summary_is_concluded_by_a_resume(output: Path, tmp_path: Path):
    run = tmp_path / "run"

    def die_before_the_conclusion() -> None:
        set_variables(MODE="offline")
        Trackers.conclude = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]

    assert wait(in_child(start(run, "--baseline", "null", rounds=2), die_before_the_conclusion)) == -signal.SIGKILL
    own = json.loads((run / "summary.json").read_text())
    assert not any(set(own) <= set(concluded(folder)) for folder in folders(run))
    assert tracked_command(resume(run), MODE="offline") == 0
    found, kept = concluded(folders(run)[-1]), records(folders(run)[-1])
    assert {name: found[name] for name in ("algorithm", "seed", "round", "test/max_weighted_accuracy")} == {
        name: own[name] for name in ("algorithm", "seed", "round", "test/max_weighted_accuracy")
    }
    assert any(record.WhichOneof("record_type") == "artifact" for record in kept) or any(
        record.request.HasField("log_artifact") for record in kept
    )
    assert [row["round"] for row in history(folders(run)[-1])] == [1, 2]


def test_server_that_cannot_be_reached_leaves_the_run_offline_with_one_notice(output: Path, tmp_path: Path):
    assert tracked(tmp_path / "run", "--baseline", "null", API_KEY=KEY, BASE_URL=REFUSES) == 0
    first, second = notes(output)
    assert first == f"W&B stays offline: {REFUSES} does not answer"
    assert second.startswith("W&B keeps this offline")
    assert [numbers(row) for row in logged(tmp_path / "run")] == own_rows(tmp_path / "run")


def test_wrong_key_leaves_the_run_offline_with_one_notice(output: Path, tmp_path: Path):
    with server_that_refuses() as address:
        assert tracked(tmp_path / "run", API_KEY=KEY, BASE_URL=address) == 0
    first, second = notes(output)  # the baseline gives the same notice
    assert "401" in first
    assert second.startswith("W&B keeps this offline")
    for run in (tmp_path / "run", tmp_path / "run" / "baseline"):
        assert [numbers(row) for row in logged(run)] == own_rows(run)


@pytest.mark.parametrize(("key", "why"), [(None, "no key is set"), ("short", "API key must have 40+ characters")])
def test_online_without_a_usable_key_is_offline_with_one_notice(
    key: str | None, why: str, output: Path, tmp_path: Path
):
    options = ("--baseline", "null", "--tracking.wandb", "online")
    assert tracked(tmp_path / "run", *options, rounds=1, API_KEY=key, BASE_URL=REFUSES, MODE="offline") == 0
    assert why in notes(output)[0]
    assert len(logged(tmp_path / "run")) == 1


def test_folder_that_cannot_be_written_leaves_wandb_out_with_one_notice(output: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").write_text("in the way")
    assert tracked(tmp_path / "run", "--baseline", "null") == 0
    assert [line.startswith("W&B failed and is left out of the rest of this run") for line in notes(output)] == [True]
    assert len(own_rows(tmp_path / "run")) == 4


def test_with_a_key_every_round_goes_to_the_server_and_nothing_personal_does(
    pictures: None, output: Path, tmp_path: Path
):
    server = Server()
    options = ("--baseline", "null", "--tracking.entity", "them", "--tracking.group", "g", "--tracking.tags", "[a, b]")
    assert tracked(tmp_path / "run", *options, API_KEY=KEY, BASE_URL=server.address) == 0
    server.close()
    assert notes(output) == []
    assert server.rounds() == [1, 2, 3, 4]
    assert [numbers(row) for row in logged(tmp_path / "run")] == own_rows(tmp_path / "run")
    run = next(json.loads(body)["variables"] for _, body in server.sent if b"mutation UpsertBucket" in body)
    assert (run["entity"], run["groupName"], run["tags"], run["program"]) == ("them", "g", ["a", "b"], "lit-cfl")
    assert {json.loads(body)["variables"]["input"]["artifactTypeName"] for body in server.artifacts()} == {
        "clusters",
        "run_table",
    }
    for path, body in server.sent:
        for word in (str(tmp_path), str(Path.home()), f'"{socket.gethostname()}"', f'"{getpass.getuser()}"'):
            assert word.encode() not in body.replace(b"\\", b""), path


def test_server_that_goes_away_does_not_stop_the_run(output: Path, tmp_path: Path):
    server = Server()
    words = start(tmp_path / "run", "--baseline", "null", rounds=60)

    def prepare() -> None:
        set_variables(API_KEY=KEY, BASE_URL=server.address)
        wandb_run.FINISH_SECONDS = 3.0

    child = in_child(words, prepare)
    wait_for(tmp_path / "run" / "metrics.csv", "\n10,")
    server.close()
    assert wait(child) == 0
    (line,) = notes(output)
    command = f"wandb sync --include-online {folders(tmp_path / 'run')[0]}"
    assert line.startswith("W&B failed and is left out")
    assert command in line
    assert [row["round"] for row in logged(tmp_path / "run")] == list(range(1, 61))


def often(**variables: str | None) -> None:
    """Sets W&B variables as `set_variables` does, and lets pictures and tables be drawn as often as they are due."""
    set_variables(**variables)
    trackers.DRAW_SECONDS = 0.0


def shown(run: Path, name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Reads a W&B table to which an entry of the history refers."""
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
    assert (run / "pictures" / "shifts.png").exists() is ("shift" in names)


def test_nan_figures_are_left_out_and_names_arrive_unchanged(output: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ["run", "--config", "fedavg/digits", "--rounds", "3", "--algorithm", "test_tracking.Odd"]
    assert tracked_command([*words, "--run_dir", str(run)]) == 0
    rows = logged(run)
    assert [numbers(row) for row in rows] == own_rows(run)
    assert [row.get("odd/figure") for row in rows] == [1.5, None, 1.5]
    table = shown(run, "odd", rows[-1])
    assert table["columns"] == ["round", "who, when", "what"]
    assert table["data"] == [[number, '<b>a</b>, "b"', "$x_1$"] for number in (1, 2, 3)]


def test_run_extended_by_more_rounds_is_uploaded_as_one_run(pictures: None, output: Path, tmp_path: Path):
    run = tmp_path / "run"
    assert tracked(run, "--baseline", "null", rounds=3, MODE="offline") == 0
    assert tracked_command(resume(run, "--rounds", "5"), MODE="offline") == 0
    assert [[row["round"] for row in history(folder)] for folder in folders(run)] == [[1, 2, 3], [4, 5]]
    assert len({folder.name[-8:] for folder in folders(run)}) == 1
    server = upload(run / "wandb")
    assert [row["_step"] for row in server.history()] == list(range(5))
    assert server.rounds() == list(range(1, 6))
    assert sync_line([run]) is None  # no run waits for an upload any more


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_a_run_stays_offline_after_wandb_offline(mode: str, output: Path, tmp_path: Path):
    (tmp_path / "settings").write_text(f"[default]\nmode = {mode}\n")  # the line that `wandb offline` writes
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


def test_on_a_full_disk_wandb_is_left_out_with_one_notice_and_the_run_continues(
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
