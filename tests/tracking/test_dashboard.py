"""Tests the W&B workspace against the metrics of real runs and of docs/results.md, without account or network."""

import json
import re
import sys
from pathlib import Path

import pytest

from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.scores import CLASSIFIER
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking.dashboard import dashboard, workspace
from lit_cfl.tracking.dashboard import sections as sections_of

DOCS = Path(__file__).parents[2] / "docs"
RUNS = {
    "flexcfl": ["--config", "flexcfl/digits", "--rounds", "4"],
    "tuned": [
        *("--config", "fedavg/digits", "--rounds", "1", "--evaluation.fine_tune.length", "1"),
        *("--local.lr_schedule", "ExponentialLR", "--local.lr_schedule.gamma", "0.9"),
    ],
    "fedem": ["--config", "fedem/digits", "--rounds", "1", "--algorithm.num_clusters", "auto"],
    "stocfl": ["--config", "stocfl/digits", "--rounds", "2"],
}


def on_panels() -> list[str]:
    """Lists the metrics on the workspace's panels, from the content that would be sent to W&B."""
    pytest.importorskip("wandb_workspaces", reason="needs the extra dashboard")
    sections = workspace("project", "entity", "name")._to_model().spec.section.panel_bank_config.sections
    assert [section.name for section in sections] == list(sections_of(CLASSIFIER))
    configs = [panel.config for section in sections for panel in section.panels]
    assert {config.x_axis for config in configs} == {"round"}
    return [metric for config in configs for metric in config.metrics]


def documented() -> set[str]:
    """Returns the columns of `metrics.csv` that docs/results.md explains."""
    table = (DOCS / "results.md").read_text().partition("## `metrics.csv`")[2].partition("\nSearches use")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_documented_metric_is_on_one_panel():
    metrics = on_panels()
    assert len(metrics) == len(set(metrics))
    assert set(metrics) | {"round"} == documented()


def test_every_panel_has_a_metric_that_real_runs_know(tmp_path: Path):
    known = set()
    for name, words in RUNS.items():
        path = tmp_path / name
        assert main(["run", *words, "--tracking.wandb", "disabled", "--run_dir", str(path)]) == 0
        rows = read_table(path / "metrics.csv")
        known |= {column for row in rows for column, value in row.items() if value is not None}
    assert set(on_panels()) - known == set()


def test_panels_are_listed_without_an_account(capsys: pytest.CaptureFixture[str]):
    assert dashboard(["--list"]) == 0
    assert "Traffic: traffic/models_down, traffic/models_up, traffic/mib" in capsys.readouterr().out


def test_panels_are_of_the_scores_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    scores = [{"name": "mae", "higher_is_better": False}, {"name": "r"}]
    (tmp_path / "summary.json").write_text(json.dumps({"seed": 0, "scores": scores}))
    assert dashboard(["--list", "--run", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Scores: val/weighted_mae, val/mean_mae, val/std_mae, val/worst10_mae, val/weighted_r, ")
    assert "test/worst10_tuned_r\nLoss: val/loss, test/loss, train/loss, train/discrepancy, train/lr\n" in shown
    assert "/weighted_accuracy" not in shown
    with pytest.raises(InputError, match=r"nowhere is not a finished run: its summary\.json cannot be read"):
        dashboard(["--list", "--run", "nowhere"])


@pytest.mark.parametrize("key", ["", "a" * 40], ids=["no key", "no network"])
def test_without_a_key_or_a_network_it_says_what_to_do(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb_workspaces", reason="needs the extra dashboard")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "2")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    else:
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(InputError, match=r"W&B refused a workspace for mine .*; log in with `wandb login`"):
        dashboard(["--project", "mine"])


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(InputError, match=r'pip install "lit-cfl\[dashboard\]"'):
        workspace("project", "entity", "name")
