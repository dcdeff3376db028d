"""Tests pictures of runs: positions, colours, samples, and when they are drawn."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from digits_experiment import digits
from drawing import let_runs_draw
from matplotlib.figure import Figure as Drawn
from matplotlib.patches import Patch

from lit_cfl.algorithms import FedAvg
from lit_cfl.algorithms.base import Similarity
from lit_cfl.errors import InputError, Notice, SaveError
from lit_cfl.pictures.colours import MAX_COLOURS, cluster_styles, hex_of, match_colours
from lit_cfl.pictures.curves import Means, learning_curve, mean_curves, over_cost
from lit_cfl.pictures.figure import Figure, draw
from lit_cfl.pictures.figures import client_map, histogram, memberships, similarity
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.options import Pictures
from lit_cfl.pictures.panels import Curve, Panel, Points, Style, add_legend
from lit_cfl.runs import rows
from lit_cfl.runs.rows import snapshot
from lit_cfl.runs.run import run
from lit_cfl.scores import ACCURACY, Score
from lit_cfl.tracking import trackers
from lit_cfl.tracking.options import Tracking

pytestmark = pytest.mark.nightly  # a table of tests states these facts


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


def legend(figure: Figure) -> list[str]:
    """Returns the names in the legend, in the order of the styles."""
    return sorted((text.get_text() for text in draw(figure).legends[0].get_texts()), key=list(figure.styles).index)


def test_true_clusters_are_mentioned_only_if_they_are_known():
    matrix, rounds, found = np.arange(16.0).reshape(4, 4), np.array([1, 2]), np.array([[0, 1, 0, 1]] * 2)
    for true, is_known in (([0, 1, 1, 0], True), ([-1] * 4, False)):
        one = compared(found[0].tolist(), true, matrix)
        figures = (similarity(7, one), client_map(7, one, {}), memberships(rounds, found, np.array(true), {}))
        assert ["true" in figure.caption for figure in figures] == [is_known, False, is_known]


def test_map_of_a_perfect_result_looks_alike_on_both_sides_whatever_the_numbers():
    found, true = [2, 0, 0, 1, 2, 1], [0, 1, 1, 2, 0, 2]
    figure = client_map(1, compared(found, true), match_colours(np.array(found), np.array(true)))
    ((left, right),) = figure.rows
    looks = [
        {(*place, figure.styles[dots.name].colour, figure.styles[dots.name].marker)
         for dots in panel.points for place in zip(dots.x, dots.y, strict=True)}
        for panel in (left, right)
    ]  # fmt: skip
    assert looks[0] == looks[1]
    assert len(looks[0]) == 6
    assert [figure.styles[f"true cluster {k}"].colour for k in range(3)] == [hex_of(k) for k in range(3)]
    assert [style.label or name for name, style in figure.styles.items() if style.named] == [
        "cluster 0 (true 1)", "cluster 1 (true 2)", "cluster 2 (true 0)"
    ]  # fmt: skip
    assert (left.title, right.title) == ("found clusters", "true clusters")


def test_a_map_before_the_end_names_no_true_cluster_of_half_of_the_clients():
    later = {0: 0, 1: 1}  # at the end, cluster 0 is in true cluster 0
    figure = client_map(1, compared([0, 0, 1], [0, 2, 1]), later)
    assert [style.label or name for name, style in figure.styles.items() if style.named] == [
        "cluster 0", "cluster 1 (true 1)", "true cluster 0", "true cluster 2"
    ]  # fmt: skip


def test_map_of_clients_whose_true_clusters_nobody_knows_has_one_side():
    figure = client_map(1, compared([1, 0, -1], [-1, -1, -1]), {})
    ((panel,),) = figure.rows
    colours = {dots.name: figure.styles[dots.name].colour for dots in panel.points}
    assert colours == {"cluster 0": hex_of(0), "cluster 1": hex_of(1), "not assigned": "#dddddd"}
    assert legend(figure) == ["cluster 0", "cluster 1", "not assigned"]


@pytest.mark.parametrize(
    ("found", "true", "expected"),
    [
        ([0, 0, 1, 1], [1, 1, 0, 0], {0: 1, 1: 0}),
        ([5, 5, 5, 2], [0, 0, 1, 1], {5: 0, 2: 1}),
        # both lie in true cluster 0, which is that of the largest
        ([0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0], {0: 0, 1: 2}),
        # half of the clients, or three of eight, are not most of them
        ([0, 0, 0, 0, 1], [0, 0, 1, 2, 1], {0: 3, 1: 1}),
        ([0] * 8 + [1], [0, 0, 1, 1, 2, 2, 2, 3, 3], {0: 4, 1: 3}),
        # one cluster more than true clusters: it gets a colour of its own
        ([0, 1, 2, 2], [0, 0, 1, 1], {0: 0, 2: 1, 1: 2}),
        ([0, 0, 0], [2, 1, 2], {0: 2}),
        ([-1, 3, 3], [0, -1, 1], {3: 1}),
        ([0, 1], [1, -1], {0: 1, 1: 2}),  # cluster 1 has no client in common with a true cluster
        ([4, 7], [-1, -1], {4: 4, 7: 7}),
        ([-1], [0], {}),
    ],
)
def test_found_clusters_take_the_colours_of_the_true_ones_that_most_of_their_clients_are_in(
    found: list[int], true: list[int], expected: dict[int, int]
):
    assert match_colours(np.array(found), np.array(true)) == expected


def test_clusters_are_matched_over_all_rounds():
    rounds = np.array([[0, 0, 0, 0], [0, 0, 3, 3]])  # first one joint model, then two
    assert match_colours(rounds, np.array([1, 1, 0, 0])) == {0: 1, 3: 0}
    assert match_colours(np.array([[5, 5, 5, 2], [7, 7, 7, 7]]), np.array([0, 0, 1, 1])) == {5: 0, 2: 1, 7: 2}


def test_clients_with_a_model_each_have_no_memberships_since_their_numbers_change():
    local = np.array([[-1, 0, 1], [0, 1, 2]])
    assert memberships(np.array([1, 11]), local, np.array([0, 1, 1]), {}) is None
    assert memberships(np.array([1, 11]), np.array([[-1, 0, 1], [0, 1, 1]]), np.array([0, 1, 1]), {}) is not None


def test_memberships_of_many_clients_are_a_sample():
    many = np.arange(2500) % 2
    figure = memberships(np.array([0]), many[None], np.full(2500, -1), {})
    assert figure.first_panel.cells.places.shape == (500, 1)
    assert figure.first_panel.cells.side is None
    assert "500 of 2,500 clients" in figure.caption
    assert figure.first_panel.y == "clients"


@pytest.mark.parametrize("cluster", [np.zeros((2, 3), int), np.full((2, 3), -1), np.empty((0, 3), int)])
def test_one_model_for_all_and_nobody_with_a_model_have_no_memberships(cluster: np.ndarray):
    assert memberships(np.arange(len(cluster)), cluster, np.array([0, 1, 1]), {}) is None


def test_histogram_of_an_error_has_its_own_range():
    figure = histogram(np.array([3.5, 120.0, 7.0]), np.zeros(3, int), {}, Score("squared_error", False))
    (bars,) = figure.first_panel.bars
    assert (bars.x[0], bars.x[-1] + bars.width) == (3.5, pytest.approx(120.0))
    assert figure.first_panel.x == "test squared error of a client"


@pytest.mark.parametrize(("value", "low", "high"), [(1.0, 0.95, 1.05), (0.0, -0.5, 0.5), (-4e9, -4.2e9, -3.8e9)])
def test_histogram_of_equal_scores_has_bars_that_can_be_seen(value: float, low: float, high: float):
    (bars,) = histogram(np.full(3, value), np.zeros(3, int), {}, Score("r2")).first_panel.bars
    assert (bars.x[0], bars.x[-1] + bars.width) == pytest.approx((low, high))
    assert sum(bars.height) == 3


def metrics(*figures: float | None, name: str = "accuracy") -> list[dict[str, object]]:
    return [
        {
            "round": 2 * k + 2,
            f"test/weighted_{name}": figure,
            f"test/worst10_{name}": None,
            f"val/weighted_{name}": None,
        }
        for k, figure in enumerate(figures)
    ]


def test_learning_curve_has_a_line_for_run_and_baseline_and_reaches_the_last_round():
    figure = learning_curve({"IFCA": metrics(0.5, None, 0.75), "FedAvg (baseline)": metrics(0.25, 0.5, 0.5)}, ACCURACY)
    lines = [list(zip(curve.x, curve.y, strict=True)) for curve in figure.first_panel.curves]
    assert lines == [[(2, 0.5), (6, 0.75)], [(2, 0.25), (4, 0.5), (6, 0.5)]]
    assert legend(figure) == ["IFCA, test", "FedAvg (baseline), test"]
    assert (figure.first_panel.x, figure.first_panel.y, figure.first_panel.limits) == ("round", "accuracy", (0, 1))
    assert figure.title == "IFCA and FedAvg (baseline)"


def test_learning_curve_says_where_lower_is_better():
    figure = learning_curve({"IFCA": metrics(9.0, 3.0, name="squared_error")}, Score("squared_error", False))
    assert figure.first_panel.y == "squared error (lower is better)"
    assert figure.first_panel.limits is None


def test_a_cluster_without_a_match_has_its_own_colour_and_no_true_cluster():
    styles = cluster_styles([0, 1], {0: 1}, [0, 1])
    assert [(styles[name].colour, styles[name].label) for name in ("cluster 0", "cluster 1")] == [
        (hex_of(1), "cluster 0 (true 1)"),
        (hex_of(2), ""),
    ]


def test_legends_name_true_clusters_that_have_names():
    found, true, match = np.array([2, 0, 0, 1]), np.array([0, 1, 1, 2]), {0: 1, 1: 2, 2: 3}
    names = ("fan", "lance", "a gun with a name that is long")
    on_map = client_map(1, compared(found.tolist(), true.tolist()), match, true_names=names)
    over_rounds = memberships(np.array([1, 2]), np.stack([found, found]), true, match, true_names=names)
    for figure in (on_map, over_rounds):
        assert [style.label for style in figure.styles.values() if style.named and style.label] == [
            "cluster 0 (true 1, lance)", "cluster 1 (true 2, a gun with a name tha...)", "true cluster 0, fan"
        ]  # fmt: skip


def test_a_run_without_scores_has_no_learning_curve():
    assert learning_curve({"IFCA": metrics(None, None)}, ACCURACY) is None


def test_rounds_have_whole_numbers_and_so_have_counts():
    axes = draw(learning_curve({"IFCA": metrics(0.5, 0.75)}, ACCURACY)).axes[0]
    assert [tick for tick in axes.get_xticks() if tick % 1] == []
    assert [tick for tick in axes.get_yticks() if tick % 1] != []


def test_many_clusters_are_not_named_for_their_colours_repeat():
    numbers = np.arange(MAX_COLOURS + 1)
    assert draw(client_map(0, compared(numbers.tolist(), numbers.tolist()), {})).legends == []
    pairs = np.tile(numbers, 2)
    everyone = memberships(np.array([1]), pairs[None], pairs, {})
    assert "Colours repeat every 20 clusters." in everyone.caption
    assert [bars.name for bars in histogram(numbers / 20, numbers, {}, ACCURACY).first_panel.bars] == ["clients"]


def test_one_client_and_names_with_dollars_can_be_drawn(tmp_path: Path):
    one = compared([-1], [-1])
    assert similarity(1, one) is None  # one client makes no pair
    figures = [client_map(1, one, {}), learning_curve({"$_$": metrics(0.5)}, ACCURACY)]
    for figure in [*figures, histogram(np.array([0.5]), np.zeros(1, int), {}, ACCURACY)]:
        write_figure(figure, tmp_path / figure.name, ["png", "pdf"])
    assert len(list(tmp_path.iterdir())) == 6


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
    # distances are exact, since the angles lie in a plane
    assert apart == pytest.approx(torch.sqrt(2 - 2 * matrix).numpy(), abs=0.01)
    assert found["compared"] == 4


@pytest.mark.parametrize("clients", [1, 2])
def test_snapshot_of_few_clients_has_two_coordinates(clients: int):
    similarity_of_few = Similarity(torch.arange(clients), torch.eye(clients))
    found = snapshot(of_clients(clients), similarity_of_few, torch.zeros(clients, dtype=torch.int64))
    assert found["projection"].shape == (clients, 2)


def test_snapshot_of_many_clients_is_a_sample_of_them():
    alike = Similarity(torch.arange(2001), torch.ones(1, 1).expand(2001, 2001))
    found = snapshot(of_clients(2001), alike, torch.zeros(2001, dtype=torch.int64))
    assert (len(found["clients"]), int(found["compared"])) == (2000, 2001)


def test_snapshot_of_many_clients_has_clients_of_each_true_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "_MAX_SNAPSHOT_CLIENTS", 20)
    alike, found = Similarity(torch.arange(40), torch.ones(40, 40)), torch.arange(40) // 20
    one = snapshot(of_clients(40), alike, found)
    assert np.bincount(one["true_cluster"]).min() > 4  # clients 0, 2, 4, ... are all in true cluster 0
    assert one["cluster"].tolist() == found[one["clients"]].tolist()
    assert (np.diff(one["clients"]) > 0).all()


def drawn_in(path: Path, ending: str = ".png") -> list[str]:
    return sorted(file.stem for file in (path / "pictures").iterdir() if file.suffix == ending)


COMPARING = ["curve", "histogram", "map", "memberships", "similarity"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs an experiment with a baseline and all pictures; tests must not change its directory."""
    path = tmp_path_factory.mktemp("finished") / "run"
    let_runs_draw(True)
    run(digits(baseline=FedAvg()), path)
    let_runs_draw(False)
    return path


def test_run_draws_its_pictures_at_the_end_without_wandb_too(finished: Path, pictures: None, tmp_path: Path):
    shutil.copytree(finished, tmp_path / "run")
    # PDFs are drawn only on request
    assert (drawn_in(tmp_path / "run"), drawn_in(tmp_path / "run", ".pdf")) == (COMPARING, [])
    # the baseline compares no clients, and has one model
    assert drawn_in(tmp_path / "run" / "baseline") == ["curve", "histogram"]
    assert (tmp_path / "run" / "pictures" / "curve.png").read_bytes().startswith(b"\x89PNG")
    names = {file.name for file in (tmp_path / "run").iterdir()}
    run(digits(baseline=FedAvg(), pictures=Pictures([])), tmp_path / "without")
    assert {file.name for file in (tmp_path / "without").iterdir()} == names - {"pictures"}


def test_formats_are_those_of_the_option(pictures: None, tmp_path: Path):
    run(digits(pictures=Pictures(["pdf"])), tmp_path / "run")
    assert (drawn_in(tmp_path / "run"), drawn_in(tmp_path / "run", ".pdf")) == ([], COMPARING)
    assert (tmp_path / "run" / "pictures" / "curve.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match=r"pictures\.formats has 'jpg'; give png, pdf, both or none"):
        Pictures(["jpg"])


def test_pictures_of_the_same_run_have_the_same_bits(pictures: None, tmp_path: Path, monkeypatch):
    for name, day in (("one", 1), ("two", 2)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(day * 86400))
        run(digits(rounds=1), tmp_path / name)
    assert drawn_in(tmp_path / "one") == drawn_in(tmp_path / "two") == COMPARING
    for file in (tmp_path / "one" / "pictures").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / "pictures" / file.name).read_bytes(), file.name


def test_curve_shows_the_baseline_after_a_kill_between_the_two_as_well(finished: Path, pictures: None, tmp_path: Path):
    curve = shutil.copytree(finished, tmp_path / "run") / "pictures" / "curve.png"
    both = curve.read_bytes()
    curve.unlink()
    run(digits(baseline=FedAvg()), tmp_path / "run", mode="resume")
    assert curve.read_bytes() == both


def test_pictures_come_every_few_rounds_while_they_cost_little(pictures: None, tmp_path: Path, monkeypatch):
    drawn: list[tuple[int, list[str]]] = []
    draw = trackers.PictureFolder.draw

    def noted(folder, view):
        found = draw(folder, view)
        if found:
            drawn.append((view.memberships()["rounds"][-1], sorted(found)))
        return found

    monkeypatch.setattr(trackers.PictureFolder, "draw", noted)
    experiment = digits(rounds=6, tracking=Tracking(snapshots_every=2), pictures=Pictures(["png"]))
    monkeypatch.setattr(trackers, "DRAW_SECONDS", float("inf"))
    run(experiment, tmp_path / "dear")
    assert [number for number, _ in drawn] == [6]
    drawn.clear()
    monkeypatch.setattr(trackers, "DRAW_SECONDS", 0.0)
    run(experiment, tmp_path / "cheap")
    first, *others, last = drawn
    assert first == (1, ["curve", "map", "memberships", "similarity"])
    assert others == [(number, ["curve", "map", "memberships", "similarity"]) for number in (3, 5)]
    assert last == (6, COMPARING)


def test_pictures_that_an_earlier_process_could_not_draw_are_drawn_on_resume(
    finished: Path, pictures: None, tmp_path: Path
):
    shutil.copytree(finished, tmp_path / "run")
    for file in (tmp_path / "run" / "pictures").iterdir():
        file.unlink()
    (tmp_path / "run" / "summary.json").unlink()  # as if the run had been killed between its last round and its end
    run(digits(baseline=FedAvg()), tmp_path / "run", mode="resume")
    assert drawn_in(tmp_path / "run") == COMPARING


def test_pictures_that_cannot_be_written_are_an_error_after_the_run(pictures: None, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pictures").write_text("in the way")
    with (
        pytest.warns(Notice, match="cannot be drawn and is left out") as said,
        pytest.raises(SaveError, match="pictures could not be written"),
    ):
        run(digits(), tmp_path / "run")
    assert len(said) == 1  # one warning for the folder, not one per picture
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_legend_below_a_figure_reads_line_by_line():
    figure = Drawn(layout="constrained")
    figure.subplots()
    names = ["not assigned", "cluster 0", "cluster 1", "cluster 2", "cluster 3"]
    add_legend(figure, [Patch(label=name) for name in names], 3)
    (drawn,) = figure.legends
    figure.draw_without_rendering()
    found = [(text.get_window_extent(), text.get_text()) for text in drawn.get_texts()]
    # the middle between the two lines of the legend
    middle = np.mean([(place.y0 + place.y1) / 2 for place, _ in found])
    by_line = sorted((bool(place.y0 < middle), place.x0, name) for place, name in found)
    assert [name for _, _, name in by_line] == names


def test_a_curve_of_points_shows_their_marker_in_the_legend():
    styles = {"front": Style("red", marker="s"), "line": Style("blue")}
    points = Panel("", "x", "y", [Curve("front", [1], [2]), Curve("line", [1, 2], [2, 3])], [Points("front", [1], [2])])
    drawn = draw(Figure("pareto", "", [[points]], "", "", styles))
    assert [(one.get_marker(), one.get_linestyle()) for one in drawn.legends[0].get_lines()] == [
        ("s", "-"),
        ("None", "-"),
    ]


def curves_of(*runs: list[float]) -> Figure:
    """Makes the mean curve of an algorithm whose runs have these accuracies in rounds 1, 2, ..."""
    tables = [[{"round": k, "test/weighted_accuracy": value} for k, value in enumerate(run, 1)] for run in runs]
    figure = mean_curves({"A": tables}, None)
    assert figure is not None
    return figure


def test_one_seed_has_no_mean_and_no_band():
    one = Means([1, 2], [0.25, 0.5])
    (curve,) = (figure := curves_of([0.25, 0.5])).first_panel.curves
    assert (figure.title, list(curve.low)) == ("One seed", [])
    caption = over_cost("traffic", {"A": (one, one)}, ACCURACY).caption
    assert caption == "Weighted test accuracy against all traffic up to that round."
    several = Means([1, 2], [0.25, 0.5], [0.0, 0.125])
    assert over_cost("traffic", {"A": (several, one)}, ACCURACY).caption.endswith(
        "up to that round; means over the seeds."
    )


def test_bands_of_an_accuracy_end_with_the_scale():
    figure = curves_of([0.0, 0.9], [0.9, 1.0])
    (curve,) = figure.first_panel.curves
    assert figure.title == "Mean over seeds, band: one standard deviation"
    assert (min(curve.low), max(curve.high)) == (0.0, 1.0)  # cut off: 0.45 - 0.64 is below 0, and 0.95 + 0.07 above 1
