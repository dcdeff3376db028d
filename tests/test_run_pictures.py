"""Pictures of runs: what stands where, colours, samples, and when they are drawn."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_run import digits

from lit_cfl.algorithms import FedAvg
from lit_cfl.algorithms.base import Similarity
from lit_cfl.pictures import accuracies, client_map, layer_scores, memberships, similarity
from lit_cfl.pictures.colours import MAX_COLOURS, colours_of
from lit_cfl.run import run
from lit_cfl.run_contents import snapshot
from lit_cfl.tracking import Tracking, beside

GREY = (0xDD / 255,) * 3


def compared(found: list[int], true: list[int], matrix: np.ndarray | None = None) -> dict[str, np.ndarray]:
    n = len(found)
    points = np.stack([np.arange(n), np.arange(n) % 3], axis=1)
    return {
        "clients": np.arange(n),
        "similarity": np.eye(n) if matrix is None else matrix,
        "projection": points.astype(np.float16),
        "cluster": np.array(found),
        "true_cluster": np.array(true),
        "compared": np.array(n),
    }


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_similarity_is_ordered_by_found_and_then_by_true_cluster():
    matrix = np.arange(16.0).reshape(4, 4)
    figure = similarity(compared([1, 0, 1, 0], [0, 1, 1, 0], matrix), 7)
    drawn = figure.axes[0].images[0].get_array()
    order = [3, 1, 0, 2]
    assert drawn.tolist() == matrix[np.ix_(order, order)].tolist()
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0", "1"]
    assert figure.axes[0].get_title() == "How alike clients were in round 7 (4 clients)"


def test_range_of_similarities_leaves_each_client_with_itself_out():
    matrix = np.where(np.eye(20, dtype=bool), 1.0, np.where(np.arange(20) % 2, 0.2, 0.3))
    image = similarity(compared([0] * 20, [0] * 20, matrix), 0).axes[0].images[0]
    assert image.get_clim() == pytest.approx((0.2, 0.3), abs=1e-3)


def test_sample_of_clients_is_stated_on_the_figure():
    shown = compared([0, 1], [0, 1]) | {"compared": np.array(5)}
    for figure in (similarity(shown, 0), client_map(shown, 0)):
        words = [text.get_text() for text in [figure.axes[0].title, *figure.texts]]
        assert any("(2 of 5 clients, 1 in 3)" in text for text in words)


def test_map_is_coloured_by_found_and_by_true_cluster():
    figure = client_map(compared([1, 0, -1], [-1, 2, 2]), 0)
    found, true = (axes.collections[0] for axes in figure.axes)
    assert found.get_offsets().tolist() == true.get_offsets().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert np.allclose(found.get_facecolors()[:, :3], colours_of(np.array([1, 0, -1])))
    assert np.allclose(true.get_facecolors()[:, :3], colours_of(np.array([-1, 2, 2])))
    assert legend(figure.axes[0]) == ["cluster 0", "cluster 1", "not assigned"]
    assert legend(figure.axes[1]) == ["cluster 2", "unknown"]


def test_memberships_are_ordered_by_true_and_then_by_last_cluster():
    cluster = np.array([[-1, -1, 0, 0], [1, 0, 0, 1]])
    figure = memberships(np.array([0, 10]), cluster, np.array([1, 0, 1, 0]))
    axes = figure.axes[0]
    order = [1, 3, 2, 0]
    assert np.allclose(axes.images[0].get_array(), colours_of(cluster[:, order].T))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "10"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1"]
    assert legend(axes) == ["cluster 0", "cluster 1", "not assigned"]


def test_memberships_of_many_clients_are_a_sample():
    many = np.arange(2500) % 2
    figure = memberships(np.array([0]), many[None], np.full(2500, -1))
    assert figure.axes[0].images[0].get_array().shape == (834, 1, 3)
    assert figure.axes[0].get_title() == "Cluster of each client (834 of 2,500 clients, 1 in 3)"
    assert figure.axes[0].get_ylabel() == "clients"


def test_histogram_counts_each_tested_client_once_in_the_colour_of_its_cluster():
    accuracy, cluster = np.array([0.0, 0.52, 0.54, 1.0, np.nan]), np.array([0, 0, 1, 1, 1])
    axes = accuracies(accuracy, cluster, 3).axes[0]
    heights: dict[tuple[float, ...], float] = {}
    for bar in axes.patches:
        colour = bar.get_facecolor()[:3]
        heights[colour] = heights.get(colour, 0) + bar.get_height()
    assert heights == {tuple(colours_of(np.array(0))): 2, tuple(colours_of(np.array(1))): 2}
    assert max(bar.get_y() + bar.get_height() for bar in axes.patches) == 2  # both in [0.50, 0.55)
    assert axes.get_title() == "Test accuracy of 4 clients after round 3"


def test_many_clusters_have_no_legend_of_them_all():
    numbers = np.arange(MAX_COLOURS + 1)
    axes = client_map(compared(numbers.tolist(), numbers.tolist()), 0).axes[0]
    assert axes.get_legend().get_title().get_text() == "17 clusters:\ncolours repeat\nevery 16"
    assert accuracies(numbers / 20, numbers, 0).axes[0].get_legend() is None


def test_sixteen_clusters_have_colours_of_their_own_and_nobodys_is_grey():
    colours = colours_of(np.arange(-1, MAX_COLOURS))
    assert len(np.unique(colours, axis=0)) == MAX_COLOURS + 1
    assert np.allclose(colours[0], GREY)


def test_one_client_and_names_with_dollars_can_be_drawn(tmp_path: Path):
    one = compared([-1], [-1])
    for figure in (similarity(one, 0), client_map(one, 0), accuracies(np.array([0.5]), np.array([0]), 0)):
        figure.savefig(tmp_path / "one.png")
    rows = [{"round": 0, "cluster": 0, "layer": "a$_$b<i>, $c", "silhouette": 0.5, "gap": None, "chosen": 1}]
    layer_scores(rows).savefig(tmp_path / "layers.png")


def of_clients(n: int) -> SimpleNamespace:
    return SimpleNamespace(data=SimpleNamespace(true_clusters=torch.arange(n) % 2))


def test_snapshot_places_clients_by_their_similarity():
    angles = torch.tensor([0.0, 0.1, 1.5, 1.6])
    matrix = torch.cos(angles[:, None] - angles)
    found = snapshot(of_clients(4), Similarity(torch.arange(4), matrix), torch.tensor([0, 0, 1, 1]))
    x = found["projection"][:, 0].astype(float)
    assert x[0] * x[2] < 0
    assert x[:2] == pytest.approx(x[0], abs=0.1)
    apart = np.linalg.norm(found["projection"][:, None].astype(float) - found["projection"], axis=2)
    assert apart == pytest.approx(torch.sqrt(2 - 2 * matrix).numpy(), abs=0.01)  # the angles lie in a plane
    assert found["compared"] == 4


@pytest.mark.parametrize("clients", [1, 2])
def test_snapshot_of_few_clients_has_two_coordinates(clients: int):
    similarity_of_few = Similarity(torch.arange(clients), torch.eye(clients))
    found = snapshot(of_clients(clients), similarity_of_few, torch.zeros(clients, dtype=torch.int64))
    assert found["projection"].shape == (clients, 2)


def test_snapshot_of_many_clients_is_a_sample_of_them():
    alike = Similarity(torch.arange(2001), torch.ones(1, 1).expand(2001, 2001))
    found = snapshot(of_clients(2001), alike, torch.zeros(2001, dtype=torch.int64))
    assert (len(found["clients"]), int(found["compared"])) == (1001, 2001)


def pictures(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "pictures").iterdir())


def test_run_draws_its_pictures_at_the_end_where_that_is_asked_for(tmp_path: Path):
    run(digits(tracking=Tracking(pictures=True), baseline=FedAvg()), tmp_path / "run")
    assert pictures(tmp_path / "run") == ["accuracy.png", "clients.png", "memberships.png", "similarity.png"]
    assert pictures(tmp_path / "run" / "baseline") == ["accuracy.png", "memberships.png"]  # it compares nobody
    run(digits(rounds=1), tmp_path / "without")
    assert not (tmp_path / "without" / "pictures").exists()  # W&B is disabled in tests


def test_pictures_come_every_few_rounds_while_they_cost_little(tmp_path: Path, monkeypatch):
    drawn: list[tuple[int, list[str]]] = []
    draw = beside.PictureFolder.draw

    def noted(folder, look):
        found = draw(folder, look)
        if found:
            drawn.append((look.round, sorted(found)))
        return found

    monkeypatch.setattr(beside.PictureFolder, "draw", noted)
    experiment = digits(rounds=6, tracking=Tracking(pictures=True, snapshots_every=2))
    monkeypatch.setattr(beside, "SHARE", 0.0)
    run(experiment, tmp_path / "dear")
    assert [number for number, _ in drawn] == [6]
    drawn.clear()
    monkeypatch.setattr(beside, "SHARE", float("inf"))
    run(experiment, tmp_path / "cheap")
    first, *others, last = drawn
    assert first == (1, ["clients", "memberships", "similarity"])
    assert others == [(3, ["memberships"]), (5, ["memberships"])]  # nobody was compared again
    assert last == (6, ["accuracy", "memberships"])


def test_pictures_that_an_earlier_process_could_not_draw_are_drawn_on_resume(tmp_path: Path):
    experiment = digits(tracking=Tracking(pictures=True))
    run(experiment, tmp_path / "run")
    for file in (tmp_path / "run" / "pictures").iterdir():
        file.unlink()
    (tmp_path / "run" / "summary.json").unlink()  # killed between its last round and its end
    run(experiment, tmp_path / "run", going="resume")
    assert pictures(tmp_path / "run") == ["accuracy.png", "clients.png", "memberships.png", "similarity.png"]


def test_failing_to_draw_stops_nothing(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pictures").write_text("in the way")
    with pytest.warns(UserWarning, match="The drawing of pictures failed and is left out"):
        run(digits(tracking=Tracking(pictures=True)), tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
