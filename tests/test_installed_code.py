"""Tests that a user's own code is distinguished from installed code in every kind of environment."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from lit_cfl.errors import is_installed

ROOT = Path(__file__).parents[1]
ASK = "import helper; from lit_cfl.errors import is_installed; print(is_installed(helper.__file__))"


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


def is_helper_installed(packages: Path, folders: list[Path], **variables: str) -> bool:
    python = packages.parents[2] / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join(map(str, [ROOT, *folders]))
    env |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run([python, "-c", ASK], env=env, check=True, capture_output=True, text=True).stdout == "True\n"


def test_packages_of_a_layer_of_the_user_and_of_a_target_are_installed(environment: Path, tmp_path: Path):
    layer, base, target = tmp_path / "layer", tmp_path / "base", tmp_path / "target"
    install(target, "helper", {"helper.py": ""})
    assert is_helper_installed(environment, [target])
    user = base / "lib" / environment.parent.name / "site-packages"
    install(user, "helper", {"helper.py": ""})
    settings = environment.parents[2] / "pyvenv.cfg"  # --user, in an environment that sees the user's packages
    settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
    assert is_helper_installed(environment, [], PYTHONUSERBASE=str(base))
    install(layer, "helper", {"helper.py": ""})
    (environment / "layer.pth").write_text(f"import site; site.addsitedir({str(layer)!r})")
    assert is_helper_installed(environment, [])


def test_code_that_is_installed_editable_is_the_users_own(environment: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "helper.py").touch()
    install(environment, "helper", {"helper.pth": f"{mine}\n"})
    assert not is_helper_installed(environment, [])


def test_python_and_lit_cfl_are_not_the_users_own_but_files_next_to_installed_ones_are(tmp_path: Path, monkeypatch):
    """The user's folder is as after `pip install --target .` in it."""
    install(tmp_path, "helper", {"helper.py": ""})
    (tmp_path / "help.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    skew = ROOT / "lit_cfl" / "datamodules" / "skew.py"  # a link to another folder
    for file in (tmp_path / "helper.py", os.__file__, "<frozen importlib._bootstrap>", pytest.__file__, skew):
        assert is_installed(file), file
    for file in (tmp_path / "help.py", ROOT / "lit_cfl_of_mine" / "net.py", __file__):
        assert not is_installed(file), file
