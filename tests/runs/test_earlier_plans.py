"""Tests runs trained by versions before 0.3, and configurations that request plans of that time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_cfl.cli.main import main
from lit_cfl.engines.earlier_plans import is_earlier, refuse_earlier, without_earlier_plan
from lit_cfl.errors import InputError
from lit_cfl.experiment import PreparedRun
from lit_cfl.runs.load_run import load_run

PLAN = {
    "engine": "stacked",
    "device": "cpu",
    "precision": "32-true",
    "threads": 1,
    "rows_mib": 1024,
    "lanes": 1,
    "narrow": 1,
    "steps_per_call": 1,
    "compile": False,
    "products": "own",
    "fused": True,
    "dual": False,
    "workers": 1,
}
START = [
    *("run", "--config", "quickstart", "--baseline", "null", "--quiet"),
    *("--data.num_clients", "8", "--cohort_size", "3", "--rounds", "2"),
]


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a run as version 0.2 recorded it."""
    config, path = PreparedRun.config, tmp_path / "run"

    def recorded(prepared: PreparedRun) -> dict[str, Any]:
        found = config(prepared) | {"engine": "stacked", "plan": PLAN}
        return found | {"local": {name: value for name, value in found["local"].items() if name != "last_batch"}}

    with monkeypatch.context() as patch:
        patch.setattr(PreparedRun, "config", recorded)
        assert main([*START, "--run_dir", str(path)]) == 0
    assert yaml.safe_load((path / "config.yaml").read_text())["plan"] == PLAN
    return path


@pytest.mark.long
def test_earlier_run_is_loaded_evaluated_reported_and_assigns(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # the page is written into the current folder
    saved = load_run(earlier)
    assert saved.prepared.engine.plan.engine != "stacked"
    assert len(saved.module(0).state_dict()) > 0
    for command, *options in (["report"], ["evaluate"], ["assign", "--data.num_clients", "8"]):
        assert main([command, str(earlier), *options]) == 0


@pytest.mark.long
def test_earlier_run_is_resumed_under_a_new_plan_alone(earlier: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--resume", str(earlier), "--rounds", "3"]) == 2
    said = capsys.readouterr().err
    assert f"{earlier} was trained by Lit-CFL " in said
    assert "(engine stacked, fused): resume it with that version, or add --new_plan" in said
    assert main(["run", "--resume", str(earlier), "--rounds", "3", "--new_plan", "--quiet"]) == 0
    assert set(yaml.safe_load((earlier / "config.yaml").read_text())["plan"]) == {
        *("engine", "device", "precision", "threads", "rows_mib", "lanes", "workers")
    }


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"engine": "stacked"}, "engine stacked was removed in version 0.3"),
        ({"plan": {"engine": "stacked"}}, "plan.engine stacked was removed in version 0.3"),
        ({"plan": {"fused": False}}, "plan.fused was removed in version 0.3: .* leave it out"),
        ({"plan": {"lanes": 4, "narrow": 2}}, "plan.narrow was removed in version 0.3"),
    ],
)
def test_what_went_is_refused_in_a_file_and_on_the_command_line(
    config: Mapping[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(InputError, match=f"here: {said}"):
        refuse_earlier("here: ", config)
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main([*START, "--config", str(file)]) == 2
    assert f"{file}: " in capsys.readouterr().err
    (name, value), *_ = config.items()
    (name, value) = (f"plan.{[*value][-1]}", [*value.values()][-1]) if name == "plan" else (name, value)
    for words in ([f"--{name}", str(value).lower()], [f"--{name}={str(value).lower()}"]):
        assert main([*START, *words]) == 2
        assert "was removed in version 0.3" in capsys.readouterr().err


def test_only_plans_of_earlier_versions_are_earlier():
    now = {"engine": "auto", "plan": {"engine": "loop", "lanes": 1, "workers": 0}}
    assert not is_earlier(now)
    assert not is_earlier({"plan": None})
    assert is_earlier({"plan": PLAN})
    refuse_earlier("", now)
    assert without_earlier_plan({"engine": "ray", "plan": PLAN}) == {"engine": "ray", "plan": None}
