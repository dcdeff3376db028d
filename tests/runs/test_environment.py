"""A run that is resumed where sums round differently says so, and records it."""

import json
import warnings
from pathlib import Path

import pytest
from digits_experiment import digits

from lit_cfl import run
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import Notice
from lit_cfl.runs import environment as module


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "key", "now"),
    [("describe_steps", "chains", "compiled elsewhere"), ("processor_name", "processor", "another processor")],
)
def test_resumed_where_sums_round_differently(
    name: str, key: str, now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "run"
    run(digits(rounds=2), path)
    before = json.loads((path / "environment.json").read_text())
    monkeypatch.setattr(module, name, lambda: now)
    with pytest.warns(Notice, match=f"run is resumed with .*{now}, not .*: sums may round differently from here on"):
        run(digits(rounds=3), path, mode="resume")
    after = json.loads((path / "environment.json").read_text())
    assert after.pop("earlier") == [
        f"after round 2: {'small nets' if key == 'chains' else key} {now}, not {before[key]}"
    ]
    assert after == before | {key: now}
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        run(digits(rounds=4), path, mode="resume")  # said once
    assert len(json.loads((path / "environment.json").read_text())["earlier"]) == 1


def test_only_what_the_plan_uses_counts(monkeypatch: pytest.MonkeyPatch):
    now = module.environment()
    other = now | {"chains": "compiled elsewhere", "gpus": ["a GPU"]}
    assert module.resumed_environment(other, Plan("loop"), 2) == (other, "")
    assert module.resumed_environment(other, Plan("chain", "cuda:0"), 2)[1] == "GPUs none, not a GPU"
    older = now | {"packages": now["packages"] | {"torch": "1.0"}}
    assert module.resumed_environment(older, Plan("loop"), 2)[1] == f"torch {now['packages']['torch']}, not 1.0"
    assert module.resumed_environment({"run_id": "a"}, Plan("chain"), 2) == ({"run_id": "a"}, "")  # 0.2 had neither
