"""Draws FedGroup's Figure 5, EDC against MADC, from the pairs that `benchmarks/edc_madc.py` measures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.reproduction.files import Row
from benchmarks.reproduction.measured_figure import MeasuredFigure
from lit_cfl.pictures.panels import BLUE, VERMILLION, Curve, Panel, Points, Style
from lit_cfl.storage import read_table

FILE = "edc_madc.csv"
_STYLES = {"a pair of clients": Style(BLUE, marker=".", size=1.5, alpha=0.35), "least squares": Style(VERMILLION)}


def edc_madc_figure(folder: Path) -> MeasuredFigure:
    """Makes FedGroup's Figure 5 from the pairs recorded in a folder of reproductions."""
    rows = read_table(folder / FILE) if (folder / FILE).exists() else []
    by_data = {
        data: [row for row in rows if row["data"] == data] for data in dict.fromkeys(row["data"] for row in rows)
    }
    listed = [f"{data} {np.corrcoef(*_measures(own))[0, 1]:.3f}" for data, own in by_data.items()]
    seeds = ", ".join(dict.fromkeys(str(row["seed"]) for row in rows))
    return MeasuredFigure(
        "FedGroup",
        "fedgroup-5",
        "Figure 5: EDC against MADC",
        "with alpha = 20, EDC is approximately a linear function of MADC.",
        [[_panel(data, own) for data, own in by_data.items()]] if rows else [],
        f"Each point is a pair of clients of the group cold start (seed {seeds}). Correlations of the two measures: "
        f"{', '.join(listed)}.",
        _STYLES,
        FILE,
        "python benchmarks/edc_madc.py",
    )


def _panel(data: str, rows: Sequence[Row]) -> Panel:
    madc, edc = _measures(rows)
    slope, intercept = np.polyfit(madc, edc, 1)
    ends = np.array([madc.min(), madc.max()])
    line = Curve("least squares", ends.tolist(), (slope * ends + intercept).tolist())
    points = Points("a pair of clients", madc.tolist(), edc.tolist())
    return Panel(data, "MADC", "EDC", curves=[line], points=[points])


def _measures(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the MADC and the EDC of all pairs as arrays."""
    return np.array([row["madc"] for row in rows]), np.array([row["edc"] for row in rows])
