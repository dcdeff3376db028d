"""Tests StoCFL's figures on hand-made measurements, and that similar clients are neighbours on the map."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduction.stocfl_figures import FOLDER, MeasuredFigure, stocfl_figures
from lit_cfl.datamodules import ArrayData
from lit_cfl.metric_names import Row
from lit_cfl.pictures.panels import HeatMap, Panel, draw_panels
from lit_cfl.storage.csv_log import write_rows


def figure(folder: Path, name: str, files: dict[str, list[Row]]) -> MeasuredFigure:
    (folder / FOLDER).mkdir()
    for file, rows in files.items():
        write_rows(folder / FOLDER / f"{file}.csv", list(rows[0]), rows)
    (found,) = (each for each in stocfl_figures(folder) if each.name == name)
    return found


def test_cosines_of_pairs_become_a_symmetric_matrix_and_ranges(tmp_path: Path):
    cosines = {(0, 0): 1.0, (0, 1): 0.8, (0, 2): 0.1, (1, 1): 1.0, (1, 2): 0.7, (2, 2): 1.0}
    rows = [
        {"panel": panel, "psi": "update", "i": i, "j": j, "cosine": cosine}
        for panel in ("labels", "rotation", "label shift", "domain")
        for (i, j), cosine in cosines.items()
    ]
    found = figure(tmp_path, "stocfl-2", {"cosines": rows})
    (panels,) = found.grid
    matrix = panels[0].matrix if panels[0] else None
    assert matrix is not None
    assert matrix.values.tolist() == [[1, 0.8, 0.1], [0.8, 1, 0.7], [0.1, 0.7, 1]]
    assert (matrix.low, matrix.high) == (0.1, 1)
    assert "| range of the cosines of two sets | by update |" in found.notes
    assert "| labels: one label more | 0.70 to 0.80 |\n| labels: several more | 0.10 to 0.10 |" in found.notes
    assert "| domain: one domain | 0.10 to 0.80 |" in found.notes


def clients(**columns: list[int]) -> list[Row]:
    """Makes rows of six clients, three in each true cluster, with these columns of found clusters."""
    given = list(zip(*columns.values(), strict=True))
    return [
        {"data": "rotated", "client": k, "truth": k // 3, "x": float(k), "y": 0.0}
        | dict(zip(columns, row, strict=True))
        for k, row in enumerate(given)
    ]


def test_clusters_keep_the_colour_of_the_true_one_while_their_numbers_change(tmp_path: Path):
    rows = clients(cluster_5=[7, 7, 4, 2, -1, -1], cluster_10=[-1, -1, -1, 5, 5, 5], cluster_40=[5, 5, 5, 1, 1, 1])
    found = figure(tmp_path, "stocfl-6a", {"clients": rows})
    (alone,), (early,), (second,), (late,) = found.grid
    assert alone
    assert early
    assert second
    assert late
    assert [(points.name, points.x) for points in alone.points] == [("a client", [0, 1, 2, 3, 4, 5])]
    assert {points.name: points.x for points in early.points} == {
        "not sampled yet": [4, 5],
        "cluster 1": [0, 1],
        "cluster 2": [3],
        "smaller clusters": [2],
    }
    assert {points.name: points.x for points in second.points} == {"not sampled yet": [0, 1, 2], "cluster 2": [3, 4, 5]}
    assert {points.name: points.x for points in late.points} == {"cluster 1": [0, 1, 2], "cluster 2": [3, 4, 5]}


def test_clients_that_were_not_sampled_are_clusters_of_their_own(tmp_path: Path):
    rows = [
        {
            "data": "hybrid",
            "psi": psi,
            "seed": seed,
            "round": number,
            "clusters": 2,
            "unobserved": left,
            "objective": 0.5,
        }
        for psi, seed, number, left in (
            ("update", 0, 1, 8),
            ("update", 0, 2, 1),
            ("update", 1, 1, 6),
            ("update", 1, 2, 0),
        )
    ]
    found = figure(tmp_path, "stocfl-6b", {"rounds": [*rows, rows[0] | {"psi": "gradient", "unobserved": 99}]})
    (counts,), (objective,) = found.grid
    assert counts
    assert objective
    assert [list(values) for values in (counts.curves[0].x, counts.curves[0].y)] == [[1, 2], [9, 2.5]]
    assert (list(counts.curves[0].low), list(counts.curves[0].high)) == ([8, 2], [10, 3])
    assert list(objective.curves[0].y) == [0.5, 0.5]
    assert (
        "0 to 1 clients have not been sampled, and the others form these numbers of clusters: hybrid 2." in found.notes
    )


def test_page_says_which_tau_separates_which_clusters(tmp_path: Path):
    ends = [
        {"psi": "gradient", "tau": tau, "clusters": count, "ari": exact, "ari_labels": labels}
        for tau, count, exact, labels in (
            (0.5, 4, 0.6, 1),
            (0.6, 4, 0.6, 1),
            (0.7, 6, 0.8, 0.8),
            (0.8, 8, 1, 0.6),
            (0.9, 4, 0.6, 1),
        )
    ]
    mapped = [{"psi": "gradient"} | row for row in clients(**{"cluster_0.6": [0] * 6})]
    found = figure(tmp_path, "stocfl-7", {"taus": ends, "tau_clients": mapped})
    ((first, second),) = found.grid
    assert first
    assert second
    assert first.title == "tau 0.6"
    assert list(second.curves[0].y) == [4, 4, 6, 8, 4]
    assert (
        "With Psi a gradient: eight clusters with tau 0.8 to 0.8, four with tau 0.5 to 0.6, 0.9 to 0.9" in found.notes
    )


def test_a_figure_without_measurements_is_not_drawn(tmp_path: Path):
    assert [(each.name, each.grid) for each in stocfl_figures(tmp_path)] == [
        ("stocfl-2", []),
        ("stocfl-6a", []),
        ("stocfl-6b", []),
        ("stocfl-7", []),
    ]


def test_matrices_of_a_row_share_a_bar_of_colours():
    panel = Panel("t", "s", "s", matrix=HeatMap(np.eye(3), 0.0, 1.0, "cosine"))
    shown = draw_panels([[panel, panel, None]], {})
    *_, bar = shown.axes
    assert len(shown.axes) == 4
    assert bar.get_ylabel() == "cosine"
    assert shown.axes[0].images[0].get_clim() == (0.0, 1.0)


def test_clients_of_one_kind_are_neighbours_on_the_map(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    import stocfl_figures as script

    rng = np.random.default_rng(0)
    kind = np.arange(40) // 20
    y = rng.integers(0, 10, (40, 30))
    # labels depend on different inputs in each kind
    x = rng.normal(0, 0.3, (40, 30, 784)) + np.eye(784)[(y + 10 * kind[:, None])]
    owner = np.arange(40).repeat(30)
    module = ArrayData(x.reshape(-1, 784).astype(np.float32), y.ravel(), owner, kind.repeat(30), test=0.0)
    rows, truth = script.compute_psi(module, "gradient")
    assert rows.shape == (40, 7850)
    assert truth.tolist() == kind.tolist()
    places = np.array([(row["x"], row["y"]) for row in script.map_clients(module, "gradient")])
    apart = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(40, np.inf))
    assert (kind[apart.argmin(1)] == kind).all()
