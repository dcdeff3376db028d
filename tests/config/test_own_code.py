"""Tests user code in files: it is found again on a resume, announced, and never loaded from what is opened."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from own_pages import unpack

from lit_cfl import load_run
from lit_cfl.cli.main import main
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.config_file import write_config
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import STUDY


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


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
def test_no_code_is_loaded_from_the_directory_that_is_opened(name: str, here, whole: Path, monkeypatch, capsys):
    run = Path(shutil.copytree(whole, Path.cwd() / "runs" / "x"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["algorithm"]["class_path"] = name
    write_config(run, config)
    (run / "evil_code.py").write_text(EVIL)
    monkeypatch.syspath_prepend(Path.cwd())  # as the command of the run left it
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(Path.cwd())  # as with `python -m`
    for command in (["evaluate", str(run)], ["run", "--resume", str(run)], ["assign", str(run), "--data.seed", "3"]):
        assert main(command) == 2
        assert "evil_code" in capsys.readouterr().err
    with pytest.raises(InputError, match="evil_code"):
        load_run(run)
    assert not (run / "ran").exists()


def recorded_study(class_path: str, study: Path) -> None:
    words = ["--config", "tune/quickstart", "--limits.trials", "2", "--space", '{"local.epochs": {"randint": [1, 3]}}']
    begun = parse_study(words).study
    study.mkdir()
    replace(begun, base=begun.whole_base | {"algorithm": {"class_path": class_path}}, points=None).write(study / STUDY)


@pytest.mark.parametrize("here", [".", "study"])
def test_no_code_is_loaded_from_a_study_that_is_opened(here: str, empty_folder: Path, monkeypatch, capsys):
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
