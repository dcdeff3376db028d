"""The section on who gains in a comparison: each client's gain over the first algorithm, and who loses by cluster."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lit_cfl.pictures.colours import line_styles, shorten
from lit_cfl.pictures.figure import short, thin
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.panels import Bars, Panel, Points, plain
from lit_cfl.pictures.sample import describe_sample, sample
from lit_cfl.report.blocks import Block, Figure, Section, Table
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_frame, read_table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_MOST_BARS = 60  # maximum number of clients shown as bars
_MOST_CLIENTS, _FEWEST = 1500, 60  # maximum number of clients in all scatter plots, and the minimum in each
_MOST_ROWS = 20  # a longer table is folded


def section(file: Path, name: str, score: Score, guard: DrawingGuard) -> Section:
    """Builds the section of a comparison's `client_gains.csv`, named if the page shows several; empty without pairs."""
    gains = read_frame(file, "algorithm", "name")
    names = [row["algorithm"] for row in read_table(file.with_name("results.csv"), text=("algorithm",))]
    blocks: list[Block] = []
    if len(gains):
        figure = guard("gains of the clients", partial(_figure, f"{name}-gains".strip("-"), gains, names, score))
        blocks = [_table(gains, names[0]), *([figure] if figure else [])]
    return Section(f"Who gains: {name}" if name else "Who gains", blocks)


def _table(gains: "DataFrame", first: str) -> Table:
    known = bool((gains["true_cluster"] >= 0).any())
    by, note = ("true cluster", "") if known else ("cluster", " Clusters are those found under the first seed.")
    rows = []
    for name, whole in gains.groupby("algorithm", sort=False):
        some = whole[whole["true_cluster"] >= 0 if known else whole["seed"] == whole["seed"].iat[0]]
        own = [(int(number), gain) for number, gain in some.groupby(by.replace(" ", "_"))["gain"]]
        for cluster, gain in [("all", whole["gain"]), *(own if len(own) > 1 else [])]:
            figures = f"{(gain < 0).mean():.1%}", f"{gain.mean():+z.3f}", f"{gain.min():+z.3f}"
            rows.append([name, cluster, len(gain), *figures])
    head = ["algorithm", by, "clients", "lose", "mean gain", "lowest gain"]
    about = (
        f"Gain over {first}, above 0 is better.{note} Of equal algorithms, up to half of the clients lose by chance; "
        "client_gains.csv has each client."
    )
    return Table("Clients that lose", head, rows, folded=len(rows) > _MOST_ROWS, note=about)


def _figure(name: str, gains: "DataFrame", names: Sequence[str], score: Score) -> Figure:
    """Draws the sorted gains of each algorithm's clients, and their scores against those under the first one."""
    parts = {str(algorithm): own for algorithm, own in gains.groupby("algorithm", sort=False)}
    most = max(_FEWEST, _MOST_CLIENTS // len(parts))
    drawn = {one: own.iloc[sample(own["true_cluster"].fillna(-1).to_numpy(), most)] for one, own in parts.items()}
    margin = 0.05 * (gains["gain"].max() - gains["gain"].min() or 1)
    limits = (min(0, gains["gain"].min()) - margin, max(0, gains["gain"].max()) + margin)
    styles = {one: replace(style, size=2.5, alpha=0.4, named=False) for one, style in line_styles(names).items()}
    rows = [
        [_sorted(one, own["gain"], limits), _against(one, drawn[one], names[0], score)] for one, own in parts.items()
    ]
    ends = "; ".join(f"{one} {short(own['gain'].min())} to {short(own['gain'].max())}" for one, own in parts.items())
    return Figure(
        name,
        f"Gains of the clients over {names[0]}",
        rows,
        f"Left: gains in test {score.title} in ascending order, of at most {_MOST_BARS} clients; above 0 is better. "
        "Right: a point is a client; on the line both are equal. Means over the seeds under which both runs score it."
        f"{describe_sample(sum(map(len, drawn.values())), len(gains))}",
        f"Sorted gains, and scatter plots of the scores, one row per algorithm. Gains: {ends}.",
        styles,
        height=1.7,
    )


def _sorted(name: str, gains: "Series", limits: tuple[float, float]) -> Panel:
    values, shown = sorted(gains), thin(len(gains), _MOST_BARS)
    width = len(values) / len(shown)
    bars = Bars(name, [width * k for k in range(len(shown))], width, [values[k] for k in shown])
    return Panel(plain(shorten(name)), "clients", "gain", limits=limits, x_limits=(0, len(values)), bars=[bars])


def _against(name: str, own: "DataFrame", first: str, score: Score) -> Panel:
    known = own[["client", "name", "seed", "true_cluster", "gain"]].astype(object)
    notes = known.where(known.notna(), None).to_dict("records")
    points = Points(name, own["reference"].tolist(), own["score"].tolist(), notes=notes)
    axis = f"{score.title}\nunder {plain(shorten(first))}"
    return Panel("", axis, score.title, points=[points], diagonal=0.0)
