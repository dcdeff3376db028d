"""The figure of the clients' weights over models: order, values, and when there is none."""

from pathlib import Path

import numpy as np
import pytest

from lit_cfl.pictures.clusters import mixtures
from lit_cfl.report.run_figures import figures_of
from lit_cfl.report.run_files import read_run
from lit_cfl.scores import ACCURACY

WEIGHTS = np.array([[0.3, 0.7], [0.55, 0.45], [np.nan, np.nan], [1.0, 0.0]])
CLUSTER = np.array([1, 0, -1, 0])


def test_rows_are_clients_by_their_largest_weight():
    figure = mixtures(WEIGHTS, CLUSTER)
    (panel,) = figure.rows[0]
    matrix = panel.matrix
    assert matrix.values.tolist() == [[1.0, 0.0], [0.55, 0.45], [0.3, 0.7]]  # clients 3, 1 and 0; client 2 has no model
    assert (matrix.edges, matrix.low, matrix.high) == ([-0.5, 0.5, 1.5], 0.0, 1.0)
    assert panel.x_ticks == {0.0: "0", 1.0: "1"}
    assert "largest weights are 0.75 on average" in figure.alt


@pytest.mark.parametrize("weights", [np.empty((3, 0)), np.ones((3, 1)), np.full((3, 2), np.nan)])
def test_without_several_weights_there_is_none(weights: np.ndarray):
    assert mixtures(weights, np.zeros(3, int)) is None


def test_the_report_reads_the_weights_from_clients_csv(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text("round,val/weighted_accuracy\n1,0.5\n")
    rows = ["client,cluster,accuracy,weight_0,weight_1", "0,1,0.5,0.3,0.7", "1,,,,", "2,0,0.25,0.9,0.1"]
    (tmp_path / "clients.csv").write_text("\n".join(rows) + "\n")
    found = [one for one in figures_of(read_run(tmp_path), "x", ACCURACY, 1) if one.name == "x-mixtures"]
    assert [row[0] for row in found[0].table.rows] == [2, 0]
    assert found[0].table.rows[0] == [2, "0.900", "0.100"]
