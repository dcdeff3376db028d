"""Runs the measurements of LayerCFL's figures, and writes what the figures say beside what we measured."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reproduction.files import Row, append_compressed, rounded, write_picture
from benchmarks.reproduction.layer_gaps import PAIRS, WHOLE, GapMeasurement, core_hours, measure, measurements, plan
from benchmarks.reproduction.layer_verdicts import EARLY, GapCurves, Gaps, curves_of, judged
from benchmarks.reproduction.markdown import markdown_table
from lit_cfl.pictures.panels import (
    BLACK,
    BLUE,
    ORANGE,
    PAGE,
    SKY,
    VERMILLION,
    Curve,
    HeatMap,
    Panel,
    Points,
    Style,
    draw_panels,
)
from lit_cfl.storage import read_table, write_rows, write_text

TABLE = "layercfl"
GAPS, MATRICES = "gaps/layercfl.csv.xz", "gaps/matrices.csv.xz"
GAP_COLUMNS = ("measurement", "round", "column", "value")
COLUMNS = ("id", "figure", "net", "images", "seeds", "words", "verdict", "numbers")
_UPDATES, _WEIGHTS = "the layer's updates, cosine", "the layer's weights, cosine"
_L2 = "the layer's updates or weights, l2"
_FMTL, _ADACFL = "all updates, cosine (FMTL)", "all weights, l2 (AdaCFL)"
_STYLES = {
    _UPDATES: Style(VERMILLION),
    _WEIGHTS: Style(ORANGE),
    _L2: Style(BLACK, line="--"),
    _FMTL: Style(BLUE),
    _ADACFL: Style(SKY),
}
_DISTANCES = {"cos": "weights, cosine", "l2": "weights, l2", "delta_cos": "updates, cosine"}
_ACROSS, _FEW = 2, 6  # panels in a row; convolutions of which all are drawn
_CAPTION = (
    "The VGG16 here is one an eighth as wide as the paper's; LeNet stands in for it, too. Means over the seeds;",
    "Figures 5 and 8 after the last round. The layer is the chosen one. A first round beyond the last one means never.",
    "l2 distances of a layer's updates and of its weights are the same, as all clients of a round start alike. Gaps of",
    "cosines and of l2 distances compare by their signs alone, and those of weights by cosines are some thousandths at",
    "most.",
    "",
)
_SKEWS = {
    "rotation": "images rotated, an angle a cluster",
    "labels": "{beta:.0%} of a client's images from its cluster's class",
}
_HEAD = """\
# LayerCFL: figures

Written by `python -m benchmarks.reproduction layercfl`. The paper has no table of accuracies; its figures say in which
layers clients differ. Each line is one thing that a figure says, written down before any measurement unless
`afterwards` is said, and what the committed Gaps say of it (`benchmarks/reproduction/layer_figures.yaml`;
`gaps/layercfl.csv.xz` has every layer and distance, `layer_verdicts.py` the rules). Gap: least similarity of
two clients within a true cluster minus the greatest across; above 0 the layer tells the clusters apart. The chosen
layer is the one that the paper chose by hand: the fourth convolution, or the last of fewer, under rotation, and the
first fully connected one under label skew. FMTL compares whole updates by cosines, AdaCFL whole weights by l2
distances.

**Not the paper's setting:** VGG16 is one an eighth as wide, with a head of 64, 64 and 10, or LeNet stands in for it;
Fashion-MNIST for EMNIST letters. Learning rate and epochs are not stated: Adam with 0.001, one epoch a round, batches
of 50. Figure 7 has steps of 200 images here, 100 in the paper. The paper's Figures 4 and 5 are of CIFAR-10 alone, 8 and
9 of EMNIST alone: the other set is ours. AdaCFL's l2 is of all weights ([LayerCFL](../algorithms/layercfl.md), 9).

**How to read it:** a tie, or what nobody reaches, is `undecided`; of all statements this was decided afterwards. Shares
of rounds are pooled over the seeds, and the rounds of a run are much alike: a few rounds more tell nothing. Weights of
one layer have nearly the same norm for all clients, so that cosines and l2 distances of weights order pairs of clients
alike: what the paper sees in Figures 4 and 9 is no difference in who is apart. Where the best convolution and the best
fully connected layer are compared, VGG16 has 13 of the first and 3 of the second. That l2 distances of weights and of
updates coincide (Figure 10) follows from how clients start.
"""
_MATRICES = """\
## Distances of all pairs of clients

Figures 4 and 9 of the paper are the upper two rows, of a VGG16 eight times as wide as the one here; LeNet stands in
for it. After the last round of the first seed; the clients of a true cluster are beside each other. Bright is alike, as
in the paper. Each matrix has a scale of its own: 1 is its least distance of two clients, 0 its largest. Of many
convolutions every third is drawn.
"""


def recorded_curves(out: Path, content: Mapping[str, Any]) -> dict[GapMeasurement, list[Row]]:
    """Reads the measurements that are over."""
    found = _by_key(out / GAPS)
    return {m: _rounds(found[m.key]) for m in measurements(content) if m.key in found}


def _rounds(cells: Sequence[Row]) -> list[Row]:
    """Puts the cells of a measurement together, a row for each round; of one that was recorded twice the later ones."""
    rows: dict[int, Row] = {}
    for cell in cells:
        rows.setdefault(cell["round"], {"round": cell["round"]})[cell["column"]] = cell["value"]
    return list(rows.values())


def _by_key(file: Path) -> dict[str, list[Row]]:
    """Reads the rows of each measurement."""
    found: dict[str, list[Row]] = {}
    for row in read_table(file) if file.exists() else ():
        found.setdefault(row["measurement"], []).append(row)
    return found


def missing_measurements(out: Path, content: Mapping[str, Any]) -> list[GapMeasurement]:
    """Lists the measurements that are not recorded, or without the matrices that they should have."""
    gaps, matrices = _by_key(out / GAPS), _by_key(out / MATRICES)
    return [
        m
        for m in measurements(content)
        if m.key not in gaps or (m.has_matrices(content["measured"][m.measured]) and m.key not in matrices)
    ]


def run_missing(
    out: Path,
    wanted: Sequence[GapMeasurement],
    device: str = "cpu",
) -> None:
    """Makes the measurements that are missing; each is recorded when it has ended."""
    content = plan()
    for number, measurement in enumerate(wanted, 1):
        what = content["measured"][measurement.measured]
        rows, pairs = zip(*measure(measurement, what, device), strict=True)
        if measurement.has_matrices(what):
            record_matrices(out, measurement, pairs[-1])
        record_gaps(out, measurement, rows)
        print(f"{number}/{len(wanted)}  {measurement}", flush=True)
        write_page(out)


def record_gaps(out: Path, measurement: GapMeasurement, rows: Sequence[Row]) -> None:
    """Records the rows of the rounds of a measurement."""
    cells = (
        {"measurement": measurement.key, "round": row["round"], "column": column, "value": value}
        for row in rows
        for column, value in row.items()
        if column != "round"
    )
    append_compressed(out / GAPS, GAP_COLUMNS, (rounded(cell, 5) for cell in cells))


def record_matrices(out: Path, measurement: GapMeasurement, pairs: Sequence[Row]) -> None:
    """Records the distances of all pairs of clients in the last round of a measurement."""
    rows = ({"measurement": measurement.key} | pair for pair in pairs)
    append_compressed(out / MATRICES, ("measurement", *PAIRS), (rounded(row, 4) for row in rows))


def write_page(out: Path) -> list[Row]:
    """Writes `layercfl.csv`, `layercfl.md` and its picture; returns the verdicts."""
    content = plan()
    curves = recorded_curves(out, content)
    rows = judged(content, curves)
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / f"{TABLE}.csv", COLUMNS, rows)
    panels = _panels(content, curves)
    if panels:
        places = [*panels, *[None] * (-len(panels) % _ACROSS)]
        grid = [places[start : start + _ACROSS] for start in range(0, len(places), _ACROSS)]
        write_picture(draw_panels(grid, _STYLES, PAGE, 1.9), out / "figures" / TABLE)
    left_out = _left_out(content, curves)
    shown = [row for row in rows if row["net"] not in left_out]
    lines = [_HEAD, *_settings(content), *_totals(content, shown)]
    for net in left_out:
        lines += _not_run(content, net)
    for statement in content["statements"]:
        figure = statement["figure"]
        source = f"Figure {figure}" if figure.isdecimal() else "Beside the paper"
        source += " (afterwards)" if statement.get("later") else ""
        heads = ["net", "images", "verdict", "numbers"]
        found = [[str(row[head]) for head in heads] for row in shown if row["id"] == statement["id"]]
        lines += [f"**{source}**: {statement['words']}.", "", *markdown_table(heads, found)]
    if panels:
        lines += ["![What the figures show, from our measurements](figures/layercfl.png)", "", *_CAPTION]
    lines += _write_matrices(out, content)
    write_text(out / f"{TABLE}.md", "\n".join([*lines, ""]))
    return rows


def _settings(content: Mapping[str, Any]) -> list[str]:
    """Tabulates what is measured for each figure."""
    heads = ["figures", "clients", "true clusters", "skew", "images a client", "rounds", "seeds"]
    rows = []
    for what in content["measured"].values():
        images = ", ".join(map(str, what["examples"]))
        numbers = [str(what[name]) for name in ("figures", "clients", "clusters")]
        skew, rounds, seeds = _SKEWS[what["skew"]].format(**what), str(what["rounds"]), str(len(what["seeds"]))
        rows.append([*numbers, skew, images, rounds, seeds])
    return markdown_table(heads, rows)


def _totals(content: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Counts the verdicts on the paper's figures, and the statements that were written afterwards."""
    papers = {one["id"]: one.get("later", False) for one in content["statements"] if one["figure"].isdecimal()}
    found = Counter(row["verdict"] for row in rows if row["id"] in papers)
    told = ", ".join(f"{number} {verdict}" for verdict, number in found.most_common())
    return [
        f"{found.total()} verdicts on the paper's figures: {told}. They are about {len(papers)} statements, of which",
        f"{sum(papers.values())} were written, or written anew, when the measurements were there.",
        "",
    ]


def _left_out(content: Mapping[str, Any], curves: GapCurves) -> list[str]:
    """Lists the nets for a GPU of which nothing has been measured."""
    begun = {one.net for one in curves}
    return [net for net, short in content["nets"].items() if short in content["with_device"] and short not in begun]


def _not_run(content: Mapping[str, Any], net: str) -> list[str]:
    """Says how long the figures of a net would take."""
    hours: dict[str, float] = {}
    for one in measurements(content):
        if one.net == content["nets"][net]:
            figures = content["measured"][one.measured]["figures"]
            hours[figures] = hours.get(figures, 0.0) + core_hours(content, one)
    told = [f"{number:.0f} for {figures.replace(', ', ' and ')}" for figures, number in hours.items()]
    return [
        f"Not run: {net} as wide as the paper's, which takes about {sum(hours.values()):.0f} core-hours without a GPU",
        f"(figures: {', '.join(told)}).",
        f"`python -m benchmarks.reproduction layercfl --only '*-{content['nets'][net]}-*' --device cuda` measures it.",
        "",
    ]


def _write_matrices(out: Path, content: Mapping[str, Any]) -> list[str]:
    """Draws the matrices that are recorded; returns the lines of the page."""
    lines, found = [_MATRICES], _by_key(out / MATRICES)
    for measurement in measurements(content):
        what = content["measured"][measurement.measured]
        if not (measurement.has_matrices(what) and measurement.key in found):
            continue
        figure, net, images = what["matrices"][measurement.images], *_names(content, measurement)
        instead = "" if "VGG16" in net else " in place of VGG16"
        grid, title = _matrices(found[measurement.key], what["clients"]), f"Figure {figure}: {net}{instead}, {images}"
        picture = f"layercfl-{figure}-{measurement.net}"
        write_picture(draw_panels(grid, {}, PAGE, PAGE / len(grid[0]) + 0.1), out / "figures" / picture)
        lines += [f"![{title}](figures/{picture}.png)", "", f"{title}.", ""]
    return lines if len(lines) > 1 else []


def _names(content: Mapping[str, Any], measurement: GapMeasurement) -> list[str]:
    """Returns what the page calls a measurement's net and images."""
    return [
        next(name for name, short in content[kind].items() if short == value)
        for kind, value in (("nets", measurement.net), ("images", measurement.images))
    ]


def _matrices(rows: Sequence[Row], clients: int) -> list[list[Panel | None]]:
    """A row of panels for each distance, a column for each layer; of many convolutions some."""
    layers = _few_of(list(dict.fromkeys(row["layer"] for row in rows)))
    values = {(row["layer"], row["distance"]): np.zeros((clients, clients)) for row in rows}
    for row in rows:
        i, j = row["i"], row["j"]
        values[row["layer"], row["distance"]][[i, j], [j, i]] = row["value"]
    return [
        [
            Panel(layer, "", name, matrix=HeatMap(_alike(values[layer, distance]), 0.0, 1.0, ""), bare=True)
            for layer in layers
        ]
        for distance, name in _DISTANCES.items()
    ]


def _few_of(layers: Sequence[str]) -> list[str]:
    """Keeps every third convolution where there are many, but the last: its name would touch that of the next layer."""
    convolutions = [layer for layer in layers if layer.startswith("conv")]
    kept = convolutions[:-1:3] if len(convolutions) > _FEW else convolutions
    return [layer for layer in layers if layer not in convolutions or layer in kept]


def _alike(distances: np.ndarray) -> np.ndarray:
    """Scales distances to 0 for the largest and 1 for the least of two clients."""
    low = distances[~np.eye(len(distances), dtype=bool)].min()
    scaled: np.ndarray = (distances.max() - distances) / (distances.max() - low)
    return scaled.clip(max=1)


def _panels(content: Mapping[str, Any], curves: GapCurves) -> list[Panel]:
    """Returns a panel of each figure, net and images."""
    draw = {
        "rotation": {"5": _by_layer},
        "labels": {"8": _by_layer},
        "rotation by images": {"6": _first_rounds, "7": _early_gaps},
        "labels over rounds": {"10": _over_rounds},
        "labels by images": {"11": _shares},
    }
    panels = []
    for name, what in content["measured"].items():
        for (figure, drawn), net, images in product(draw[name].items(), content["nets"], content["images"]):
            if own := curves_of(curves, name, content["nets"][net], content["images"][images]):
                panels.append(drawn(f"Fig. {figure}: {net}, {images}", Gaps(what, own)))
    return panels


def _by_layer(title: str, gaps: Gaps) -> Panel:
    places = list(range(len(gaps.layers)))
    points = [Points(_UPDATES, places, [fmean(gaps.last(layer, "delta_cos")) for layer in gaps.layers])]
    ticks = {float(gaps.layers.index(layer)): layer for layer in _few_of(gaps.layers)}
    return Panel(title, "layer", "Gap", points=points, x_ticks=ticks)


def _first_rounds(title: str, gaps: Gaps) -> Panel:
    return _by_images(title, "first round with Gap > 0", gaps, lambda one, layer, name: one.first(layer, name)[0])


def _early_gaps(title: str, gaps: Gaps) -> Panel:
    number = EARLY[next(iter(gaps.curves)).images]
    return _by_images(title, f"Gap in round {number}", gaps, lambda one, layer, name: one.early(layer, name)[0])


def _shares(title: str, gaps: Gaps) -> Panel:
    return _by_images(title, "share of rounds, Gap > 0", gaps, lambda one, layer, name: one.share(layer, name))


def _by_images(title: str, y: str, gaps: Gaps, figure: Callable[[Gaps, str, str], float]) -> Panel:
    known = sorted(gaps.curves, key=lambda m: m.examples)
    alone = [Gaps(gaps.what, {m: gaps.curves[m]}) for m in known]
    examples = [m.examples for m in known]
    lines = [
        Curve(label, examples, [figure(one, layer, distance) for one in alone])
        for label, layer, distance in _compared(gaps)
    ]
    return Panel(title, "images a client", y, curves=lines)


def _over_rounds(title: str, gaps: Gaps) -> Panel:
    lines = []
    for label, layer, distance in _compared(gaps):
        means = [fmean(values) for values in zip(*gaps.of(layer, distance), strict=True)]
        lines.append(Curve(label, range(1, len(means) + 1), means))
    return Panel(title, "round", "Gap", curves=lines)


def _compared(gaps: Gaps) -> list[tuple[str, str, str]]:
    return [
        (_UPDATES, gaps.chosen, "delta_cos"),
        (_WEIGHTS, gaps.chosen, "cos"),
        (_L2, gaps.chosen, "l2"),
        (_FMTL, WHOLE, "delta_cos"),
        (_ADACFL, WHOLE, "l2"),
    ]
