"""Tests the pages on user code: their files and commands work in an empty folder as described."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from own_pages import DOCS, unpack

from lit_cfl import load_run
from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError, Notice
from lit_cfl.scores import ACCURACY, read_scores, title_of
from lit_cfl.storage.config_file import write_config
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import STUDY

PAGES = ("own_algorithm", "own_model", "own_data")
OTHERS = {"loads": "mae", "talk": "perplexity"}  # configurations of other tasks, and their scores


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page_run(page: str, capsys: pytest.CaptureFixture[str]):
    commands = [command for command in unpack(page) if not command.endswith(tuple(f"{name}.yaml" for name in OTHERS))]
    assert commands
    for number, command in enumerate(commands):
        shorter = ["--rounds", "6", "--baseline", "null"] if "quickstart" in command else []
        assert main([*shlex.split(command)[1:], *shorter, "--run_dir", f"run{number}"]) == 0
        score = read_scores(json.loads(Path(f"run{number}/summary.json").read_text()))[0]
        assert f"weighted {score.title}" in capsys.readouterr().out
        first, *_, last = (row[f"test/weighted_{score.name}"] for row in read_table(Path(f"run{number}/metrics.csv")))
        if score == ACCURACY:
            assert last > 0.3  # well above chance, after a few rounds
        else:
            assert score.better(last, first)


@pytest.mark.nightly
@pytest.mark.parametrize(("config", "score"), OTHERS.items())
def test_clusters_of_other_tasks_are_found_and_pay(config: str, score: str, capsys: pytest.CaptureFixture[str]):
    (command,) = [command for command in unpack("own_model") if command.endswith(f" {config}.yaml")]
    assert main([*shlex.split(command)[1:], "--run_dir", "run"]) == 0
    assert f"weighted {title_of(score)}" in capsys.readouterr().out
    last, baseline = (read_table(Path(path, "metrics.csv"))[-1] for path in ("run", "run/baseline"))
    assert last["clusters/ari"] == 1
    assert last[f"test/weighted_{score}"] < 0.6 * baseline[f"test/weighted_{score}"]


def test_clusters_of_own_data_are_found():
    command, _ = unpack("own_data")
    assert main([*shlex.split(command)[1:], "--run_dir", "run"]) == 0
    last, baseline = (read_table(Path(path, "metrics.csv"))[-1] for path in ("run", "run/baseline"))
    assert last["clusters/ari"] == 1
    assert last["test/weighted_accuracy"] > baseline["test/weighted_accuracy"] + 0.1


def test_own_algorithm_keeps_the_contract(empty_folder: Path, monkeypatch: pytest.MonkeyPatch):
    unpack("own_algorithm")
    text = (DOCS / "own_algorithm.md").read_text()
    (check,) = [code for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "check_algorithm" in code]
    monkeypatch.delitem(sys.modules, "nearest", raising=False)  # another test may have imported it
    sys.path.insert(0, str(empty_folder))
    exec(check, {"__name__": "a_script"})  # noqa: S102  # written on the page
    del sys.modules["nearest"]


def test_own_run_is_resumed_from_another_folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The command that resumes must not rely on modules or folders that the first command imported."""
    folder, path = empty_folder / "elsewhere", list(sys.path)
    folder.mkdir()
    monkeypatch.chdir(folder)
    unpack("own_data")
    Path("sensors.py").rename("probes.py")
    Path("sensors.yaml").write_text(Path("sensors.yaml").read_text().replace("sensors.Sensors", "probes.Sensors"))
    monkeypatch.chdir(empty_folder)
    first = "run --config=elsewhere/sensors.yaml --rounds 1 --baseline null --pictures.formats [] --run_dir run"
    assert main(first.split()) == 0
    third = empty_folder / "third"
    third.mkdir()
    monkeypatch.chdir(third)
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.delitem(sys.modules, "probes")
    assert main(["run", "--resume", "../run", "--rounds", "2"]) == 0
    assert Path(sys.modules["probes"].__file__).parent == folder
    saved = load_run("../run")
    assert saved.round == 2
    assert saved.module(0)(torch.zeros(2, 5)).shape == (2, 3)


@pytest.mark.nightly
def test_users_files_never_hide_installed_packages(empty_folder: Path):
    for name in ("datasets.py", "rich.py", "torch.py"):
        (empty_folder / name).write_text("raise RuntimeError('the wrong file')")
    code = "import sys; sys.path.pop(0); from lit_cfl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = ["run", "--config", "quickstart", "--tiny", "--baseline", "null", "--pictures.formats", "[]"]
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=empty_folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


EVIL = """
from pathlib import Path
from lit_cfl.algorithms import FedAvg

Path(__file__).with_name("ran").touch()

class Evil(FedAvg): ...
"""


@pytest.mark.parametrize("name", ["evil_code.Evil", "runs.x.evil_code.Evil"])
@pytest.mark.parametrize("here", [".", "runs/x"])
def test_no_code_is_loaded_from_the_directory_that_is_opened(
    name: str, here: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    words = ["--config", "quickstart", "--algorithm", "FedAvg", "--baseline", "null", "--tiny", "--run_dir", "runs/x"]
    assert main(["run", *words]) == 0
    run = empty_folder / "runs" / "x"
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["algorithm"]["class_path"] = name
    write_config(run, config)
    (run / "evil_code.py").write_text(EVIL)
    monkeypatch.chdir(run if here == "runs/x" else empty_folder)
    monkeypatch.syspath_prepend(Path.cwd())  # as with `python -m`
    for command in (["evaluate", str(run)], ["run", "--resume", str(run)], ["assign", str(run), "--data.seed", "3"]):
        assert main(command) == 2
        assert "evil_code" in capsys.readouterr().err
    with pytest.raises(InputError, match="evil_code"):
        load_run(run)
    assert not (run / "ran").exists()


def recorded_study(class_path: str, study: Path) -> None:
    """Makes a study directory without trials."""
    words = ["--config", "tune/quickstart", "--limits.trials", "2", "--space", '{"local.epochs": {"randint": [1, 3]}}']
    begun = parse_study(words).study
    study.mkdir()
    replace(begun, base=begun.whole_base | {"algorithm": {"class_path": class_path}}, points=None).write(study / STUDY)


@pytest.mark.parametrize("here", [".", "study"])
def test_no_code_is_loaded_from_a_study_that_is_opened(
    here: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    study = empty_folder / "study"
    recorded_study("evil_code.Evil", study)
    (study / "evil_code.py").write_text(EVIL)
    monkeypatch.chdir(empty_folder / here)
    monkeypatch.syspath_prepend(Path.cwd())
    assert main(["tune", "--resume", str(study)]) == 2
    assert f"evil_code.Evil lies in {study}" in capsys.readouterr().err
    assert not (study / "ran").exists()


@pytest.mark.parametrize(("kind", "code"), [("run", "sensors.Sensors"), ("study", "nearest.Nearest")])
def test_opening_a_run_or_a_study_names_the_code_that_it_loads(kind: str, code: str, empty_folder: Path):
    unpack("own_data" if kind == "run" else "own_algorithm")
    if kind == "run":
        assert main(["run", "--config", "sensors.yaml", "--run_dir", "run", "--tiny"]) == 0
    else:
        recorded_study(code, empty_folder / "study")
    with pytest.warns(Notice, match=f"opening {kind} loads code") as caught:
        load_run("run") if kind == "run" else parse_study(["--resume", "study"])
    notices = [str(one.message) for one in caught if one.category is Notice and "opening" in str(one.message)]
    assert notices == [f"opening {kind} loads code that is not part of Lit-CFL: {code} from {empty_folder}"]


UNTYPED = """
from torch import nn

class Flat(nn.Module):
    def __init__(self, norm="layer", name: str = "x", **rest):
        super().__init__()
        self.got = [norm, name]
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1))
"""


@pytest.mark.parametrize(("word", "norm"), [([], "layer"), (["null"], None), (["3"], 3)])
def test_a_value_of_an_option_without_a_type_is_read_as_in_a_file(
    word: list[str], norm: object, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(empty_folder)
    Path("untyped_net.py").write_text(UNTYPED)
    words = ["--config", "quickstart", "--baseline", "null", "--task.net", "untyped_net.Flat", "--task.net.name", "3"]
    words += [f"--task.net.norm={one}" for one in word]
    assert parse_run(words).experiment.task().net.got == [norm, "3"]  # text is not converted to a number
