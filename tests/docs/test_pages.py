"""Runs the commands and code of pages in an empty folder: they work, and print what the page says."""

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from own_pages import DOCS, blocks, commands, unpack
from sklearn.datasets import load_digits

from lit_cfl import load_run
from lit_cfl.cli.main import main
from lit_cfl.config.parser import parse_run
from lit_cfl.config.variants import load_experiment
from lit_cfl.scores import read_scores
from lit_cfl.storage import read_table
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.space_file import parse_space

NO_PICTURES = ("--pictures.formats", "[]")
RECIPES = [block for block in blocks("recipes", "yaml") if "space" not in parse_yaml(block)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provides an empty current folder; modules imported from it are removed from `sys.modules` afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run(command: str, *more: str) -> None:
    program, *words = shlex.split(command)
    if program == "python":
        runpy.run_path(words[0], run_name="__main__")
    else:
        assert (program, main([*words, *more])) == ("lit-cfl", 0), command


def execute(code: str, names: dict[str, object]) -> None:
    exec(compile(code, "page", "exec"), names)  # noqa: S102  # our own documentation


def last_row(path: str) -> dict[str, Any]:
    return read_table(Path(path, "metrics.csv"))[-1]


def require_same(said: str, printed: str) -> None:
    """Compares each line of a page with what was printed; the last digit after a decimal point may differ by one."""
    decimal = re.compile(r"\d+\.\d+")
    rows = {tuple(decimal.sub("x", line).split()): decimal.findall(line) for line in printed.splitlines()}
    for line in said.splitlines():
        for number, other in zip(decimal.findall(line), rows[tuple(decimal.sub("x", line).split())], strict=True):
            assert float(number) == pytest.approx(float(other), abs=1.1 / 10 ** len(number.partition(".")[2])), printed


def write_hospital() -> None:
    """Writes three wards with 60 digits each; those of the second ward are rotated by 90 degrees."""
    images, labels = load_digits(return_X_y=True)
    images = (images[:180] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    images[60:120] = np.rot90(images[60:120], 1, (2, 3))
    np.savez("hospital.npz", x=images, y=labels[:180], client=np.repeat(["ward-a", "ward-b", "ward-c"], 60))


@pytest.mark.parametrize(
    "page",
    [
        "algorithm_interface",
        "notebooks/found_clusters",
        pytest.param("notebooks/search_and_launch", marks=[pytest.mark.ray, pytest.mark.nightly]),
        "opening_runs",
    ],
)
def test_blocks_of_a_page_run_in_their_order_and_print_what_it_says(page: str, capsys: pytest.CaptureFixture[str]):
    write_hospital()
    text = (DOCS / f"{page}.md").read_text()
    names: dict[str, object] = {}
    for language, block in re.findall(r"^```(bash|python|text)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if language == "text":
            require_same(block, capsys.readouterr().out)
        elif language == "python":
            execute(block, names)
        else:
            for command in block.splitlines():
                run(command)
    assert all(Path(name).exists() for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text))


@pytest.mark.parametrize("page", ["../README", "experiment_file", "ground_truth"])
def test_python_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]):
    for block in blocks(page, "python"):
        execute(block, {})
    assert (capsys.readouterr().out.count("loss") == 3) == (page == "../README")  # three rounds


def test_readme_prints_exactly_the_two_commands_that_ci_runs():
    assert re.findall(r"^pip install .*$", (DOCS.parent / "README.md").read_text(), flags=re.MULTILINE) == [
        "pip install -c constraints.txt . && lit-cfl run --config configs/quickstart.yaml",
        'pip install -c constraints.txt ".[test]" && pytest -n auto',
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["own_algorithm", "own_model", "own_data"])
def test_commands_of_a_page_on_own_code_learn(page: str):
    for number, command in enumerate(unpack(page)):
        run(command, "--baseline", "null", "--run_dir", f"run{number}", *NO_PICTURES)
        score = read_scores(json.loads(Path(f"run{number}/summary.json").read_text()))[0]
        first, *_, last = (row[f"test/weighted_{score.name}"] for row in read_table(Path(f"run{number}/metrics.csv")))
        assert score.better(last, first)


@pytest.mark.parametrize(
    ("page", "config", "score"),
    [
        ("own_data", "sensors", "accuracy"),
        pytest.param("own_model", "loads", "mae", marks=pytest.mark.nightly),
        pytest.param("own_model", "talk", "perplexity", marks=pytest.mark.nightly),
    ],
)
def test_clusters_of_own_data_and_tasks_are_found_and_pay(page: str, config: str, score: str):
    (command,) = [command for command in unpack(page) if command.endswith(f" {config}.yaml")]
    run(command, "--run_dir", "run", *NO_PICTURES)
    ours, fedavg = (last_row(path)[f"test/weighted_{score}"] for path in ("run", "run/baseline"))
    assert last_row("run")["clusters/ari"] == 1
    assert ours > fedavg + 0.1 if score == "accuracy" else ours < 0.6 * fedavg


def test_own_algorithm_keeps_the_contract():
    unpack("own_algorithm")
    (check,) = [code for code in blocks("own_algorithm", "python") if "check_algorithm" in code]
    execute(check, {"__name__": "a_script"})


@pytest.mark.nightly
def test_commands_of_the_readme_run_in_their_order():
    for command in commands("../README"):
        if command.startswith("lit-cfl "):
            words = shlex.split(command)
            if "--rounds" in words:
                words[words.index("--rounds") + 1] = "3"
            elif words[1] == "run" and "--resume" not in words and "--dry-run" not in words:
                words += ["--rounds", "2"]
            run(shlex.join(words))


def test_a_table_of_ones_own_runs_by_the_file_of_the_readme():
    unpack("../README")
    (header,) = re.findall(r"whose first line is `(.*?)`", (DOCS.parent / "README.md").read_text())
    rows = [f"u{k % 12},{k % 7},{k % 5},{'ab'[k % 2]}" for k in range(240)]
    Path("own.csv").write_text("\n".join([header, *rows, ""]))
    run("lit-cfl run --config own.yaml --rounds 2 --run_dir mine")
    assert len(load_run("mine").clients) == 12


@pytest.mark.nightly
def test_quickstart_finds_its_clusters_under_five_seeds():
    aris, gains = [], []
    for seed in range(5):
        run(f"lit-cfl run --config quickstart --seed {seed} --run_dir run{seed}", *NO_PICTURES)
        ours, fedavg = last_row(f"run{seed}"), last_row(f"run{seed}/baseline")
        aris.append(ours["clusters/ari"])
        gains.append(ours["test/weighted_accuracy"] - fedavg["test/weighted_accuracy"])
    assert fmean(aris) >= 0.95
    assert fmean(gains) >= 0.15


def test_machines_without_labels_join_the_cluster_of_their_make(capsys: pytest.CaptureFixture[str]):
    for command in unpack("newcomers"):
        if "machines" in command:
            run(command)
    table = capsys.readouterr().out
    assert "ARI with their true clusters: 1.00" in table
    assert "weighted" not in table.partition("newcomer  cluster")[2]  # nothing is scored


@pytest.mark.nightly
def test_clusters_of_data_in_files_pay():
    runs = 0
    for command in unpack("data_files"):
        runs += " run " in command
        run(command, *(("--run_dir", f"run{runs}", *NO_PICTURES) if " run " in command else ()))
    assert runs == 3
    for number in range(1, 4):
        ours, fedavg = last_row(f"run{number}"), last_row(f"run{number}/baseline")
        assert ours["test/weighted_accuracy"] > fedavg["test/weighted_accuracy"] + 0.2
        assert ours["clusters/ari"] == (1 if number == 2 else None)  # only the arrays have true clusters


@pytest.mark.nightly
@pytest.mark.parametrize("base", ["own", "transformers"])
def test_clusters_train_adapters_of_2_026_parameters_in_one_frozen_transformer(base: str, capsys):
    """With `transformers` and `peft` in the environment that `.ci/full` makes for them."""
    pretrain, train, pretrain_hf, train_hf = unpack("fine_tuning")
    run(pretrain)
    if base == "own":
        found = float(capsys.readouterr().out.split()[-1])
        assert found == pytest.approx(0.844, abs=0.03)  # 0.867 on an AMD Zen 5, as the page says
    else:
        pytest.importorskip("peft")
        pytest.importorskip("transformers")
        run(pretrain_hf)
        train = train_hf
    run(train, "--run_dir", "run", *NO_PICTURES)
    last, fedavg = last_row("run"), last_row("run/baseline")
    assert last["clusters/ari"] > 0.8  # on a Zen 5, rounding changes the pre-training
    assert last["test/weighted_accuracy"] > fedavg["test/weighted_accuracy"] + 0.15
    assert last["traffic/round_mib"] == pytest.approx(2 * 10 * 2_026 * 4 / 2**20)  # sent to and from 10 clients
    one, other = (load_run("run").module(number) for number in (0, 1))
    trained = {name for name, tensor in one.named_parameters() if tensor.requires_grad}
    same = {name for name, tensor in one.state_dict().items() if torch.equal(tensor, other.state_dict()[name])}
    assert same == set(one.state_dict()) - trained


@pytest.mark.nightly
@pytest.mark.parametrize("block", RECIPES, ids=lambda block: "-".join(parse_yaml(block)))
def test_recipe_over_the_quickstart_runs(block: str):
    recipe = parse_yaml(block)
    section = next(part for part in re.split(r"^## ", (DOCS / "recipes.md").read_text(), flags=re.M) if block in part)
    for code in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        execute(code, {})
    Path("recipe.yaml").write_text(block)
    run("lit-cfl run --config quickstart --config recipe.yaml --baseline null --tiny --run_dir run --quiet")
    row = last_row("run")
    assert ("train/lr" in row) == ("lr_schedule" in recipe.get("local", {}))
    assert ("test/undefined_auroc" in row) == ("auroc" in recipe.get("task", {}).get("init_args", {}).get("scores", []))
    assert ("test/tuned_accuracy" in row) == ("fine_tune" in recipe.get("evaluation", {}))


def test_options_of_schedules_server_optimizers_and_personal_layers_can_be_searched():
    (study,) = [parse_yaml(block) for block in blocks("recipes", "yaml") if "space" in block]
    Path("recipe.yaml").write_text(RECIPES[-1])
    base = parse_run(["--config", "quickstart", "--config", "recipe.yaml"]).experiment.to_dict()
    values = {"local.lr_schedule.gamma": 0.9, "server.lr": 0.5, "personal": ["linear[-1]"]}
    options = load_experiment(base, parse_space(study["space"]).words(values)).to_dict()
    assert options["local"]["lr_schedule"]["init_args"]["gamma"] == 0.9
    assert options["personal"] == ["linear[-1]"]
    assert options["server"]["init_args"] | {"lr": 0.5, "momentum": 0.9} == options["server"]["init_args"]
