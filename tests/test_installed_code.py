"""Tests that a user's own code is distinguished from installed code in every kind of environment."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from lit_cfl.errors import is_installed

ROOT = Path(__file__).parents[1]
OWN = "import helper\n\n\ndef call():\n    helper.fail()\n"
HELPER = "def fail():\n    raise ValueError('planted')\n"
FAIL = """
import site, sys
from lit_cfl.errors import find_user_frame
import own
try:
    own.call()
except ValueError as error:
    frame = find_user_frame(error)
print(frame.filename, frame.lineno)
"""


def install(folder: Path, name: str, files: dict[str, str]) -> None:
    """Writes a distribution with these files into a folder, as pip does."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in files.items():
        (folder / file).write_text(text)
    listed = [*files, f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in listed))


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Makes an empty virtual environment. Returns its folder of packages."""
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    return packages


def user_frame(packages: Path, folders: list[Path], **variables: str) -> list[str]:
    """Returns file and line of the user's code that raised an error, as seen in the environment."""
    python = packages.parents[2] / "bin" / "python"
    path = os.pathsep.join(map(str, [ROOT, *folders]))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run([python, "-c", FAIL], env=env, check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize("kind", ["layer", "target", "user"])
def test_an_error_in_an_installed_package_is_that_of_the_users_line(kind: str, environment: Path, tmp_path: Path):
    mine, below = tmp_path / "mine", tmp_path / "below"
    mine.mkdir()
    (mine / "own.py").write_text(OWN)
    variables = {}
    if kind == "layer":
        (environment / "layer.pth").write_text(f"import site; site.addsitedir({str(below)!r})")
    if kind == "user":  # --user, in an environment that sees the user's packages
        settings = environment.parents[2] / "pyvenv.cfg"
        settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
        variables["PYTHONUSERBASE"] = str(tmp_path / "base")
        below = tmp_path / "base" / "lib" / environment.parent.name / "site-packages"
    install(below, "helper", {"helper.py": HELPER})
    found = user_frame(environment, [mine, *([below] if kind == "target" else [])], **variables)
    assert found == [str(mine / "own.py"), "5"]


def test_code_that_is_installed_editable_is_the_users_own(environment: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "own.py").write_text(OWN)
    (mine / "helper.py").write_text(HELPER)
    install(environment, "helper", {"helper.pth": f"{mine}\n"})
    assert user_frame(environment, []) == [str(mine / "helper.py"), "2"]


def test_python_and_lit_cfl_are_not_the_users_own_but_files_next_to_installed_ones_are(tmp_path: Path, monkeypatch):
    """The user's folder is as after `pip install --target .` in it."""
    install(tmp_path, "helper", {"helper.py": HELPER})
    (tmp_path / "help.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    skew = ROOT / "lit_cfl" / "datamodules" / "skew.py"  # a link to another folder
    for file in (tmp_path / "helper.py", os.__file__, "<frozen importlib._bootstrap>", pytest.__file__, skew):
        assert is_installed(file), file
    for file in (tmp_path / "help.py", ROOT / "lit_cfl_of_mine" / "net.py", __file__):
        assert not is_installed(file), file
