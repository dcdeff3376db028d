"""Draws FedGroup's Figure 5, EDC against MADC, from the pairs that `benchmarks/edc_madc.py` measures."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lit_cfl.pictures.panels import BLUE, VERMILLION, Curve, Panel, Points, Style
from lit_cfl.storage.csv_log import read_table

FILE = "edc_madc.csv"
_STYLES = {"a pair of clients": Style(BLUE, marker=".", size=1.5, alpha=0.35), "least squares": Style(VERMILLION)}
_TITLE = "## FedGroup, Figure 5: EDC against MADC"
_SHOWS = "What the paper shows: with alpha = 20, EDC is about a linear function of MADC."


def edc_madc_panels(folder: Path) -> tuple[list[list[Panel | None]], Mapping[str, Style], list[str]]:
    """Reads the pairs.

    Returns:
        The panels in a row (none without the file), their styles, and the section of the page.
    """
    file = folder / FILE
    if not file.exists():
        return (
            [],
            _STYLES,
            [_TITLE, "", _SHOWS, "", f"Not measured yet: `python benchmarks/edc_madc.py` writes {FILE}.", ""],
        )
    rows = read_table(file)
    panels: list[Panel | None] = []
    told = []
    for data in dict.fromkeys(row["data"] for row in rows):
        madc, edc = (np.array([row[name] for row in rows if row["data"] == data]) for name in ("madc", "edc"))
        slope, intercept = np.polyfit(madc, edc, 1)
        ends = np.array([madc.min(), madc.max()])
        line = Curve("least squares", ends.tolist(), (slope * ends + intercept).tolist())
        points = Points("a pair of clients", madc.tolist(), edc.tolist())
        panels.append(Panel(str(data), "MADC", "EDC", curves=[line], points=[points]))
        told.append(f"{data} {np.corrcoef(madc, edc)[0, 1]:.3f}")
    section = [
        _TITLE,
        "",
        _SHOWS,
        "",
        "![EDC against MADC](figures/fedgroup-5.png)",
        "",
        f"Each point is a pair of the clients of the group cold start, seed {rows[0]['seed']}: [{FILE}]({FILE}), "
        f"written by `python benchmarks/edc_madc.py`. Correlations: {', '.join(told)}.",
        "",
    ]
    return [panels], _STYLES, section
