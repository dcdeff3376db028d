"""Tests pictures of runs: when they are drawn, into which files, and cases that golden figures do not have."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digits_experiment import digits
from golden import check_golden
from inside_shown import figure_on, page_of
from made_runs import made_run, write_table

from lit_cfl import algorithms
from lit_cfl.config.parser import parse_run
from lit_cfl.metric_names import CLIENTS
from lit_cfl.pictures.figures import RUN_FIGURES, client_map, histogram, memberships, similarity
from lit_cfl.pictures.options import Format, Pictures
from lit_cfl.pictures.run_files import RunFiles, read_run
from lit_cfl.runs.run import run
from lit_cfl.tracking import trackers
from lit_cfl.tracking.options import Tracking

pytestmark = pytest.mark.nightly  # golden figures and definitions state most of what is drawn


def with_clusters(path: Path, found: Sequence[Sequence[int]], true: Sequence[int]) -> RunFiles:
    """Makes a run with these memberships, and a snapshot of the clients in its second round."""
    made_run(path, snapshots=0, over=False)
    cluster, truth = np.array(found), np.array(true)
    rounds = np.arange(1, len(found) + 1)
    np.savez(path / "memberships.npz", rounds=rounds, cluster=cluster, true_cluster=truth)
    clients = np.arange(len(true))
    plane = np.stack([clients, clients % 3], axis=1).astype(np.float16)
    known = {"clients": clients, "similarity": np.eye(len(true)), "projection": plane, "compared": len(true)}
    np.savez(path / "snapshots" / "2.npz", **known, cluster=cluster[-1], true_cluster=truth)
    return read_run(path)


def legend(figure: Any) -> list[str]:
    return [style.label or name for name, style in figure.styles.items() if style.named]


def test_legends_name_true_clusters_of_a_majority_and_captions_name_true_clusters_that_are_known(tmp_path: Path):
    made = with_clusters(tmp_path / "names", [[2, 0, 0, 1]] * 2, [0, 1, 1, 2])
    names = ["fan", "lance", "a gun with a name that is long"]
    np.savez(made.path / "partition.npz", about=np.array(json.dumps({"cluster_names": names})))
    for draw in (client_map, memberships):
        assert legend(draw(made, 500)) == [
            *("cluster 0 (true 1, lance)", "cluster 1 (true 2, a gun with a name tha...)", "cluster 2 (true 0, fan)")
        ]
    # at the end, cluster 0 is in true cluster 0, but half of its clients in the snapshot are not
    made = with_clusters(tmp_path / "later", [[0, 0, 1], [0, 0, 1]], [0, 0, 1])
    file = made.path / "snapshots" / "2.npz"
    with np.load(file) as arrays:
        np.savez(file, **{**arrays, "true_cluster": np.array([0, 2, 1])})
    assert legend(client_map(made, 500)) == ["cluster 0", "cluster 1 (true 1)", "true cluster 0", "true cluster 2"]
    unknown = with_clusters(tmp_path / "unknown", [[1, 0, -1, 0]] * 2, [-1] * 4)
    assert len(client_map(unknown, 500).panels) == 1
    assert all("true" not in draw(unknown, 500).caption for draw in (similarity, memberships))
    many = with_clusters(tmp_path / "many", [[*range(21)] * 2] * 2, [*range(21)] * 2)
    assert "Colours repeat every 20 clusters." in memberships(many, 500).caption
    assert legend(client_map(many, 500)) == []  # colours do not tell clusters apart


@pytest.mark.parametrize("found", [[[-1, 0, 1], [0, 1, 2]], [[0, 0, 0]] * 2, [[-1, -1, -1]] * 2], ids=str)
def test_memberships_need_clusters_of_several_clients(found: list[list[int]], tmp_path: Path):
    assert memberships(with_clusters(tmp_path / "run", found, [0, 1, 1]), 500) is None


@pytest.mark.parametrize(("values", "low", "high"), [((3.5, 120.0, 7.0), 3.5, 120.0), ((1.0,) * 3, 0.95, 1.05)])
def test_a_histogram_has_the_range_of_its_score_and_bars_that_can_be_seen(
    values: Sequence[float], low: float, high: float, tmp_path: Path
):
    made = made_run(tmp_path / "run", over=False)
    about = {"scores": [{"name": "mae", "higher_is_better": False}]}
    (made / "environment.json").write_text(json.dumps(about))
    table = [{"client": k, "cluster": 0, "mae": value, "newcomer": 0} for k, value in enumerate(values)]
    table.append({"client": 9, "cluster": 0, "mae": 500.0, "newcomer": 1})
    write_table(made / "clients.csv", tuple("mae" if name == "accuracy" else name for name in CLIENTS), table)
    (bars,) = histogram(read_run(made), 500).panels[0].bars
    assert (bars.x[0], bars.x[-1] + bars.width) == pytest.approx((low, high))
    assert sum(bars.height) == 3


def test_a_timeline_of_many_rounds_has_bars_that_can_be_seen(tmp_path: Path):
    made = made_run(tmp_path / "run", over=False)
    write_table(made / "shift.csv", ("round", "client"), [{"round": k, "client": 0} for k in range(1, 301)])
    figure = figure_on(page_of(made), "shifts")
    (bars,) = figure.first_panel.bars
    assert (set(bars.height), sum(bars.height)) == ({4}, 300)
    assert "A bar counts 4 rounds." in figure.caption


def drawn_in(path: Path, ending: str = ".png") -> list[str]:
    return sorted(file.stem for file in (path / "pictures").iterdir() if file.suffix == ending)


COMPARING = ["curve", "histogram", "map", "memberships", "similarity"]


def test_formats_are_those_of_the_option_and_equal_runs_have_equal_bits(
    pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    both: list[Format] = ["pdf", "png"]
    for day, (name, formats) in enumerate({"one": both, "two": both, "none": []}.items()):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(day * 86400))
        run(digits(rounds=1, pictures=Pictures(formats)), tmp_path / name)
    assert not (tmp_path / "none" / "pictures").exists()
    assert drawn_in(tmp_path / "one") == drawn_in(tmp_path / "one", ".pdf") == COMPARING
    for file in (tmp_path / "one" / "pictures").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / "pictures" / file.name).read_bytes(), file.name


def test_pictures_come_every_few_rounds_unless_the_last_ones_are_recent(
    pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn: list[tuple[int, list[str]]] = []
    draw = trackers.PictureFolder.draw

    def noted(folder: Any, view: Any) -> dict[str, Path]:
        found = draw(folder, view)
        drawn.extend([(view.memberships()["rounds"][-1], sorted(found))] if found else [])
        return found

    monkeypatch.setattr(trackers.PictureFolder, "draw", noted)
    experiment = digits(rounds=6, tracking=Tracking(snapshots_every=2), pictures=Pictures(["png"]))
    for seconds, rounds in ((float("inf"), []), (0.0, [1, 3, 5])):
        monkeypatch.setattr(trackers, "DRAW_SECONDS", seconds)
        run(experiment, tmp_path / str(seconds))
        before = ["curve", "map", "memberships", "similarity"]
        assert drawn == [*((number, before) for number in rounds), (6, COMPARING)]
        drawn.clear()


def test_each_algorithm_has_the_figures_that_were_recorded(tmp_path: Path):
    found = {}
    for name in sorted(set(algorithms.__all__) - {"Algorithm", "Assignment", "Info", "Similarity"}):
        words = ["--config", f"{name.lower()}/digits", "--baseline", "null", "--rounds", "12"]
        path = run(parse_run([*words, "--pictures.formats", "[]"]).experiment, tmp_path / name).path
        found[name] = [kind.name for kind in RUN_FIGURES if kind.draw(read_run(path), 500) is not None]
    check_golden(Path(__file__).with_name("golden") / "names.json", found)
