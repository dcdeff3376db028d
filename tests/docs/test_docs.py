"""Tests that commands, links and paths in the documentation work, and that its tables are complete."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import lit_cfl.algorithms
from lit_cfl import load_run
from lit_cfl.cli.main import main
from lit_cfl.config import catalogue
from lit_cfl.config.parser import parse_run
from lit_cfl.early_stopping import StopRule
from lit_cfl.experiment import CheckpointPlan, EvaluationPlan, Experiment, LocalTraining, Pictures
from lit_cfl.metric_names import CHOSEN, CLIENTS, CLUSTERS, ENTROPY, METRICS, RATE, SHIFTS, tuned_columns
from lit_cfl.runs.run import run
from lit_cfl.scores import CLASSIFIER

ROOT = Path(__file__).parents[2]
ALGORITHMS = [getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")]
README = (ROOT / "README.md").read_text()
BASH = "\n".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL))
COMMANDS = [line.partition("#")[0].strip() for line in BASH.splitlines() if line.startswith("lit-cfl ")]


def test_readme_prints_exactly_the_two_commands_that_ci_runs():
    assert [line for line in README.splitlines() if line.startswith("pip install ")] == [
        "pip install -c constraints.txt . && lit-cfl run --config configs/quickstart.yaml",
        'pip install -c constraints.txt ".[test]" && pytest -n auto',
    ]


@pytest.mark.nightly
def test_commands_of_the_readme_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # one test for all commands, since later ones use the runs of earlier ones
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        if "--rounds" in words:
            words[words.index("--rounds") + 1] = "3"  # whole runs belong to the slow tests
        elif words[0] == "run" and "--resume" not in words and "--dry-run" not in words:
            words += ["--rounds", "2"]
        assert main(words) == 0, command


def test_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102  # our own documentation
    assert capsys.readouterr().out.count("loss") == 3


def test_a_table_of_ones_own_runs_by_the_file_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (header,) = re.findall(r"whose first line is `(.*?)`", README)
    (experiment,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    rows = [f"u{k % 12},{k % 7},{k % 5},{'ab'[k % 2]}" for k in range(240)]
    Path("own.csv").write_text("\n".join([header, *rows, ""]))
    Path("own.yaml").write_text(experiment)
    assert main(["run", "--config", "own.yaml", "--rounds", "2", "--run_dir", "mine"]) == 0
    assert len(load_run("mine").clients) == 12


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


EXPERIMENTS = ROOT / "experiments"
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)")
NAMED_PATH = re.compile(
    r"`((?:lit_cfl|tune|datamodules|tests|benchmarks|configs|docs)/"
    r"(?:[\w/-]*/|[\w/-]+\.(?:py|md|yaml|yml|toml|csv|json|sh|png)))`"
)


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_exist(page: Path):
    text = page.read_text()
    for target, anchor in LINK.findall(text):
        linked = (page.parent / target).resolve() if target else page
        if linked.is_relative_to(EXPERIMENTS) and not EXPERIMENTS.exists():
            continue  # the package and its pages need nothing of this folder
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"
    if page.name != "CHANGELOG.md":  # the changelog names files that have moved
        for path in NAMED_PATH.findall(text):
            assert (ROOT / path).exists(), path


def test_links_and_paths_of_pages_are_found():
    """The patterns must find links on most pages, and paths on many."""
    texts = [page.read_text() for page in PAGES]
    assert sum(bool(LINK.search(text)) for text in texts) > len(texts) / 2
    assert sum(bool(NAMED_PATH.search(text)) for text in texts) > len(texts) / 5


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {
        (ROOT / "docs" / target).resolve() for target in re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", index, re.MULTILINE)
    }
    # the README of this folder lists the other pages
    of_folders = {page for page in (ROOT / "docs" / "algorithms").glob("*.md") if page.name != "README.md"}
    assert listed == set(PAGES) - of_folders - {ROOT / name for name in ("README.md", "CHANGELOG.md", "docs/README.md")}


def test_every_page_is_in_the_menu_of_the_site():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = re.findall(r"[\w/-]+\.md", menu)
    # docs/site_hooks.py copies these pages into the site
    moved = {"index.md", "pages.md", "contributing.md", "changelog.md"}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages | moved)


def test_versions_of_the_page_on_cpus_are_those_that_are_tested():
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    named = re.findall(r"\btorch\w*==[\d.]+", (ROOT / "docs" / "cpu_only.md").read_text())
    assert len(named) == 2
    assert set(named) <= set(constraints)


def test_every_algorithm_is_in_the_table_of_the_readme_with_its_configuration():
    for entry in catalogue.entries("algorithms"):
        assert re.search(rf"^\| {entry.name} \|.*`{entry.config}`", README, flags=re.MULTILINE), entry


def test_every_metric_and_column_is_explained():
    page = (ROOT / "docs" / "results.md").read_text()
    for name in (*METRICS, *CLUSTERS, *CLIENTS, *SHIFTS):
        assert f"`{name}`" in page, name


def section(heading: str) -> list[str]:
    """Returns the rows of the table under a heading of docs/results.md."""
    page = (ROOT / "docs" / "results.md").read_text()
    text = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_all_existing_metrics_are_explained_and_no_others():
    explained = [name for row in section("`metrics.csv`") for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(explained) == sorted(
        {
            *METRICS,
            RATE,
            CHOSEN,
            ENTROPY,
            *tuned_columns(CLASSIFIER),
            *(name for kind in ALGORITHMS for name in kind.score_columns),
        }
    )


def test_all_existing_tables_of_algorithms_are_explained_and_no_others():
    explained = set()
    for row in section("Tables of algorithms"):
        file, _, columns = (re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:4])
        explained.add((file[0].removesuffix(".csv"), tuple(columns)))
    assert explained == {(name, tuple(columns)) for kind in ALGORITHMS for name, columns in kind.tables.items()}


@pytest.mark.nightly
def test_quickstart_as_a_person_would_type_it(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "lit_cfl", "run", "--config", "configs/quickstart.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (path,) = (tmp_path / "runs").iterdir()
    assert done.stderr == "loading PyTorch and Lightning\n"
    assert f"Files: runs/{path.name}" in done.stdout
    table = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if re.match(r"Fed\w+\s+0\.", line)}
    assert float(table["FedGroup"][3]) >= 0.95
    assert float(table["FedGroup"][0]) - float(table["FedAvg"][0]) >= 0.15


@pytest.mark.nightly
def test_quickstart_finds_its_clusters_under_five_seeds(tmp_path: Path):
    aris, gains = [], []
    for seed in range(5):
        found = run(parse_run(["--config", "quickstart", "--seed", str(seed)]).experiment, tmp_path / str(seed))
        mine, theirs = found.summary, found.baseline.summary
        aris.append(mine["clusters/ari"])
        gains.append(mine["test/weighted_accuracy"] - theirs["test/weighted_accuracy"])
    assert fmean(aris) >= 0.95
    assert fmean(gains) >= 0.15


GROUPS = {
    "local": LocalTraining,
    "evaluation": EvaluationPlan,
    "stop": StopRule,
    "checkpoint": CheckpointPlan,
    "pictures": Pictures,
}


def keys_and_defaults() -> Iterator[tuple[str, str]]:
    """Yields each key of an experiment file with its default, in the order of the classes."""
    for field in fields(Experiment):
        if field.name == "stop" or field.name not in GROUPS:
            yield field.name, written_default(field)
        for part in fields(GROUPS[field.name]) if field.name in GROUPS else ():
            yield f"{field.name}.{part.name}", written_default(part)


def written_default(field: Field[Any]) -> str:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default if isinstance(default, str) else "-" if default is MISSING else json.dumps(default, default=str)


def test_the_page_of_an_experiment_file_has_every_key_and_its_default():
    page = (ROOT / "docs/experiment_file.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `?(.*?)`? \|", page, flags=re.MULTILINE))
    assert rows.pop("tracking") == "see there"
    expected = {key: default for key, default in keys_and_defaults() if key not in ("config", "tracking")}
    assert rows == expected
