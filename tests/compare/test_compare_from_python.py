"""`lit_cfl.compare(...)` in Python: what the command does, and its files as pandas tables."""

from pathlib import Path

import pandas as pd
import pytest
from small_comparison import SMALL

import lit_cfl
from lit_cfl.cli.main import main
from lit_cfl.compare.from_python import ComparisonTables
from lit_cfl.errors import InputError
from lit_cfl.storage.csv_log import read_table

pytestmark = pytest.mark.usefixtures("no_figures")
WORDS = [*SMALL[3:], "--pictures.formats", "[]"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_tables_are_those_of_the_command():
    found = lit_cfl.compare("quickstart", ["FedAvg", "Ditto"], [0, 1], WORDS, compare_dir="python")
    assert isinstance(found, ComparisonTables)
    command = [*SMALL, *WORDS[-2:], "--algorithms", "FedAvg", "Ditto", "--seeds", "0", "1", "--compare_dir", "command"]
    assert main([*command, "--quiet"]) == 0
    timeless = [column for column in found.results if column != "seconds"]
    expected = pd.read_csv("command/results.csv")
    pd.testing.assert_frame_equal(found.results[timeless], expected[timeless])
    timeless = [column for column in found.runs if column != "seconds"]
    pd.testing.assert_frame_equal(found.runs[timeless], pd.read_csv("command/runs.csv")[timeless])
    assert list(found.runs["seed"]) == [0, 1, 0, 1]
    assert any(note.startswith("Difference to FedAvg") for note in found.notes)
    last = found.rounds.query("algorithm == 'Ditto' and seed == 1").iloc[-1]
    assert last["round"] == 3
    assert (
        last["test/weighted_accuracy"]
        == read_table(Path("command/Ditto/seed-1/metrics.csv"))[-1]["test/weighted_accuracy"]
    )
    again = lit_cfl.compare(resume="python", target=0.01)
    assert list(again.results["target"]) == [0.01, 0.01]


@pytest.mark.long
def test_content_of_a_configuration_takes_the_place_of_a_file():
    content = lit_cfl.load_experiment("quickstart", ["--seeds", "[3]"]).to_dict()
    found = lit_cfl.compare(content, ["FedAvg", "two=IFCA"], words=[*WORDS, "--two.num_clusters", "2"])
    assert list(found.results["algorithm"]) == ["FedAvg", "two"]
    assert list(found.runs["seed"]) == [3, 3]
    assert found.path.parent.name == "runs"


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        (("quickstart",), {}, "no algorithms are given"),
        ((), {"algorithms": ["FedAvg"]}, "no experiment is given"),
        (("quickstart", ["FedAvg"], [0], ["--dry-run"]), {}, "--dry-run is for the command"),
        (("quickstart", ["FedAvg"]), {"num_cpus": 0}, "--num_cpus is 0; give 1 or more"),
        ((), {"resume": "nothere"}, "nothere holds no comparison to resume"),
        (("quickstart",), {"resume": "nothere"}, "leave out --config"),
        (({"rounds": 3}, ["Ditto"]), {}, "Ditto|task"),
    ],
)
def test_what_the_command_refuses_is_refused(arguments, options, expected: str):
    with pytest.raises(InputError, match=expected):
        lit_cfl.compare(*arguments, **options)
