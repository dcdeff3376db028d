"""Tests that every recipe of `docs/recipes.md` runs and has the described effect."""

import re
from pathlib import Path
from typing import Any

import pytest

from lit_cfl.cli.main import main
from lit_cfl.config.variants import base_config, load_experiment
from lit_cfl.storage import read_table
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.space_file import parse_space

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
BLOCKS = [parse_yaml(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)]
RECIPES = [block for block in BLOCKS if "space" not in block]
(STUDY,) = [block for block in BLOCKS if "space" in block]


def named(value: Any) -> Any:
    """Replaces class paths in options by class names without their modules."""
    if isinstance(value, dict):
        return {k: v.rpartition(".")[2] if k == "class_path" else named(v) for k, v in value.items()}
    return [named(part) for part in value] if isinstance(value, list) else value


def holds(whole: Any, part: Any) -> bool:
    """Returns whether the options `whole` contain all entries of `part`."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(holds(one, other) for one, other in zip(whole, part, strict=True))
    return bool(whole == part or str(whole).endswith(f"/{part}"))  # files may be given by their whole path


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", RECIPES, ids=map("-".join, RECIPES))
def test_recipe_over_the_quickstart_runs(recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    block = next(
        block for block in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL) if parse_yaml(block) == recipe
    )
    (tmp_path / "recipe.yaml").write_text(block)
    section = next(part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if block in part)
    for code in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(compile(code, "recipes.md", "exec"), {})  # noqa: S102  # our own documentation
    words = ["--config", "quickstart", "--config", str(tmp_path / "recipe.yaml"), "--baseline", "null", "--tiny"]
    assert main(["run", *words, "--run_dir", str(tmp_path / "run"), "--quiet"]) == 0
    (row,) = read_table(tmp_path / "run" / "metrics.csv")
    recorded = parse_yaml((tmp_path / "run" / "config.yaml").read_text())
    assert holds(named(recorded["data"]), named(recipe.get("data", {})))
    assert ("train/lr" in row) == ("lr_schedule" in recipe.get("local", {}))
    assert ("test/undefined_auroc" in row) == ("auroc" in recipe.get("task", {}).get("init_args", {}).get("scores", []))
    assert ("test/tuned_accuracy" in row) == ("fine_tune" in recipe.get("evaluation", {}))


def test_options_of_schedules_server_optimizers_and_personal_layers_can_be_searched():
    base = base_config("quickstart")
    for name, part in RECIPES[-1].items():
        base[name] = {**base[name], **part} if name == "local" else part
        if name == "task":
            base[name]["init_args"]["optimizer"] = base_config("quickstart")["task"]["init_args"]["optimizer"]
    values = {"local.lr_schedule.gamma": 0.9, "server.lr": 0.5, "personal": ["linear[-1]"]}
    options = load_experiment(base, parse_space(STUDY["space"]).words(values)).to_dict()
    assert options["local"]["lr_schedule"]["init_args"]["gamma"] == 0.9
    assert options["personal"] == ["linear[-1]"]
    assert options["server"]["init_args"] | {"lr": 0.5, "momentum": 0.9} == options["server"]["init_args"]
