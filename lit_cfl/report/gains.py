"""The section on who gains in a comparison: figures, and the share of clients that lose by cluster."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lit_cfl.compare.gains import FILE, loses
from lit_cfl.pictures.gains import gain_figures
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.report.blocks import Section, Table
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_frame, read_table

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_ROWS = 20  # a longer table is folded


def section(path: Path, title: str, prefix: str, score: Score, guard: DrawingGuard) -> Section:
    """Builds the section of a comparison; empty if no client was paired.

    Args:
        path: Directory of the comparison.
        title: Heading.
        prefix: Beginning of the figures' names.
        score: Score that was compared.
        guard: Handles figures that cannot be drawn.
    """
    gains = read_frame(path / FILE, "algorithm", "name")
    names = [row["algorithm"] for row in read_table(path / "results.csv", text=("algorithm",))]
    if gains.empty:
        return Section(title, [])
    figures = guard(title, lambda: gain_figures(gains, names, score)) or []
    return Section(
        title, [_table(gains, names[0]), *(replace(figure, name=prefix + figure.name) for figure in figures)]
    )


def _table(gains: "DataFrame", first: str) -> Table:
    known = gains["true_cluster"].ge(0)
    by, some = (
        ("true cluster", gains[known]) if known.any() else ("cluster", gains[gains["seed"] == gains["seed"].iat[0]])
    )
    column = by.replace(" ", "_")
    rows = []
    for name, whole in gains.groupby("algorithm", sort=False):
        own = some[some["algorithm"] == name]
        groups = [("all", whole), *((int(number), part) for number, part in own.groupby(column))]
        for cluster, part in groups if own[column].nunique() > 1 else groups[:1]:
            share, gain = 100 * loses(part).mean(), part["gain"]
            rows.append([name, cluster, len(part), f"{share:.1f} %", f"{gain.mean():+.3f}", f"{gain.min():+.3f}"])
    note = (
        f"Gain: of a client over {first}, in the mean over the seeds under which both runs score it; above 0 is better."
        f"{'' if known.any() else ' Clusters are those found under the first seed.'} If two algorithms are equal, up to half"
        " of the clients lose by chance."
    )
    head = ["algorithm", by, "clients", "lose", "mean gain", "lowest gain"]
    return Table("Clients that lose", head, rows, folded=len(rows) > _MOST_ROWS, note=note)
