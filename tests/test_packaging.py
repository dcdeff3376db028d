"""Tests the package's contents, what its parts import, and that it coexists with a user's folders of the same names."""

import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("datamodules", "tune")  # folders at the top of the repository, to which lit_cfl/ has links
TINY = ["run", "--config", "quickstart", "--tiny", "--pictures.formats", "[]", "--run_dir"]
USE = """
import datamodules, tune  # the user's own
import lit_cfl
from datamodules.mine import Mine
from lit_cfl.cli.main import main
from lit_cfl.datamodules import Digits
from lit_cfl.tune.options import parse_study

assert issubclass(Mine, Digits)
assert (datamodules.WHOSE, tune.WHOSE) == ("mine", "mine")
raise SystemExit(main({words}))
"""


def python(*words: str, cwd: Path, path: Path = ROOT) -> str:
    """Runs Python in a separate process with `path` on its path, and returns the output."""
    environment = os.environ | {"PYTHONPATH": str(path), "WANDB_MODE": "disabled", "LITCFL_CACHE": "off"}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("folder", ["lit_cfl", *LINKED, "tests", "benchmarks"])
def test_our_folders_are_imported_by_their_long_names_alone(folder: str):
    """Else a module would be loaded under two names, or a user's folder of that name in its place."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        found = re.findall(rf"^ *(?:from|import) (?:{'|'.join(LINKED)})\b.*", file.read_text("utf-8"), re.MULTILINE)
        assert not found or file == Path(__file__), f"{file}: {found}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds sdist and wheel of the checkout, and in `again/` the wheel of the unpacked sdist."""
    folder = tmp_path_factory.mktemp("built")
    for target in ("sdist", "wheel"):
        python("-m", "hatchling", "build", "-t", target, "-d", str(folder / target), cwd=ROOT)
    (archive,) = (folder / "sdist").iterdir()
    python("-m", "tarfile", "-e", str(archive), str(folder), cwd=ROOT)
    (unpacked,) = folder.glob("lit_cfl-*")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again"), cwd=unpacked)
    return folder


def members(folder: Path) -> Counter[str]:
    (wheel,) = folder.iterdir()
    with zipfile.ZipFile(wheel) as opened:
        return Counter(opened.namelist())


def modules() -> set[str]:
    """Returns every module of the checkout by its path in the package."""
    found = {f"lit_cfl/{file.relative_to(ROOT / 'lit_cfl')}" for file in (ROOT / "lit_cfl").rglob("*.py")}
    for name in LINKED:  # `rglob` does not follow these links
        found |= {f"lit_cfl/{name}/{file.relative_to(ROOT / name)}" for file in (ROOT / name).rglob("*.py")}
    return found


@pytest.mark.nightly
def test_a_wheel_holds_each_module_once_and_nothing_except_lit_cfl(built: Path):
    found = members(built / "wheel")
    assert set(found.values()) == {1}
    assert {name.split("/")[0].partition("-")[0] for name in found} == {"lit_cfl"}
    assert {name for name in found if name.endswith(".py")} == modules()
    assert "lit_cfl/py.typed" in found  # without it, a user's type checker treats everything as Any; see tests/typed
    page = {"page.html", "page.css"}
    assert page <= {name.removeprefix("lit_cfl/report/") for name in found}
    configs = {f"lit_cfl/configs/{file.relative_to(ROOT / 'configs')}" for file in (ROOT / "configs").rglob("*.yaml")}
    assert {name for name in found if name.endswith(".yaml")} == configs | {"lit_cfl/tune/packaged_spaces.yaml"}
    assert members(built / "again") == found  # the wheel of the sdist


@pytest.mark.nightly
def test_an_installed_wheel_runs_from_an_empty_folder(built: Path, tmp_path: Path):
    (wheel,) = (built / "again").iterdir()
    target, empty = tmp_path / "target", tmp_path / "empty"
    empty.mkdir()
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel), cwd=empty)
    words = ("run", "--config", "quickstart", "--rounds", "1", "--pictures.formats", "[]")
    out = python(str(target / "bin" / "lit-cfl"), *words, cwd=empty, path=target)
    assert "FedGroup  round 1/1" in out
    (run,) = (empty / "runs").iterdir()
    assert (run / "baseline" / "summary.json").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["script", "command"])
def test_own_folders_of_the_same_names_are_left_alone_and_found(way: str, tmp_path: Path):
    """Users of Lightning often have folders `datamodules` and `tune` next to their script."""
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('WHOSE = "mine"\n')
    mine = 'from lit_cfl.datamodules import Digits\n\nclass Mine(Digits):\n    """The digits as they are."""\n'
    (tmp_path / "datamodules" / "mine.py").write_text(mine)
    words = [*TINY, "here", "--data", "datamodules.mine.Mine"]
    if way == "script":
        (tmp_path / "use.py").write_text(USE.format(words=words))
        python("use.py", cwd=tmp_path)
    else:
        installed = tmp_path / "installed"  # as in site-packages, there is no bare `datamodules` here
        installed.mkdir()
        (installed / "lit_cfl").symlink_to(ROOT / "lit_cfl")
        python("-m", "lit_cfl", *words, cwd=tmp_path, path=installed)
    assert "datamodules.mine.Mine" in (tmp_path / "here" / "config.yaml").read_text()


# What a part imports: ray, wandb, datasets, jsonargparse and rich, for example, may be absent from GPU machines


TRAINING = """
import sys
for name in ("ray", "wandb", "datasets", "jsonargparse", "docstring_parser", "optuna"):
    sys.modules[name] = None  # importing it fails
import lit_cfl, torch
from functools import partial
from pathlib import Path
from lit_cfl.datamodules import Digits
from lit_cfl.algorithms import FedGroup
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.pictures.options import Pictures
from lit_cfl.runs.run import run
from lit_cfl.tasks import Classification
task = lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))
pictures = Pictures([])  # they would take two seconds
run(Experiment(Digits(8), task, FedGroup(2, 2), rounds=1, cohort_size=2, pictures=pictures), Path(sys.argv[1]))
assert "lit_cfl.progress" not in sys.modules  # it alone needs rich, which Lightning uses where it is installed
"""


# only the tables of an opened run need pandas
OPENING = """
import sys, lit_cfl.runs.load_run, lit_cfl.runs.run
from lit_cfl.cli.main import main
found = {"pandas"} & set(sys.modules)
main(["run", "--help"])
found |= {"ray", "wandb", "datasets", "sklearn", "optuna"} & set(sys.modules)
sys.exit(str(found) if found else 0)
"""
READING = """
import sys, lit_cfl.report.assemble, lit_cfl.report.page, lit_cfl.progress.console
from lit_cfl.cli.main import main
assert main(["doctor"]) == 0
sys.exit(str(found) if (found := {"lightning", "jsonargparse", "sklearn", "ray"} & set(sys.modules)) else 0)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("code", [TRAINING, OPENING, READING], ids=["training", "help and opening", "report, doctor"])
def test_each_part_imports_no_package_that_only_others_need(code: str, tmp_path: Path):
    python("-c", code, str(tmp_path / "run"), cwd=ROOT)
    assert code is not TRAINING or (tmp_path / "run" / "summary.json").exists()
