"""Writes the page about LayerCFL's figures, with its table and pictures."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reproduction.files import Row, read_page_text, write_picture
from benchmarks.reproduction.layer_gaps import (
    MATRICES,
    WHOLE,
    GapCurves,
    GapMeasurement,
    estimate_core_hours,
    list_measurements,
    measure,
    read_by_key,
    read_curves,
    read_plan,
    record_gaps,
    record_matrices,
)
from benchmarks.reproduction.layer_verdicts import EARLY, Gaps, judge_statements, select_curves
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
from lit_cfl.storage import write_rows, write_text

TABLE = "layercfl"
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
_ACROSS, _FEW = 2, 6  # number of panels in a row; all convolutions are drawn if there are at most six
_SKEWS = {
    "rotation": "images rotated, one angle per cluster",
    "labels": "{beta:.0%} of a client's images from its cluster's class",
}


def run_missing(
    out: Path,
    wanted: Sequence[GapMeasurement],
    device: str = "cpu",
) -> None:
    """Runs the missing measurements, and records each one when it has finished."""
    content = read_plan()
    for number, measurement in enumerate(wanted, 1):
        what = content["measured"][measurement.measured]
        rows, pairs = zip(*measure(measurement, what, device), strict=True)
        if measurement.has_matrices(what):
            record_matrices(out, measurement, pairs[-1])
        record_gaps(out, measurement, rows)
        print(f"{number}/{len(wanted)}  {measurement}", flush=True)
        write_page(out)


def write_page(out: Path) -> list[Row]:
    """Writes `layercfl.csv`, `layercfl.md` and its pictures; returns the verdicts."""
    content = read_plan()
    curves = read_curves(out, content)
    rows = judge_statements(content, curves)
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / f"{TABLE}.csv", COLUMNS, rows)
    panels = _panels(content, curves)
    if panels:
        places = [*panels, *[None] * (-len(panels) % _ACROSS)]
        grid = [places[start : start + _ACROSS] for start in range(0, len(places), _ACROSS)]
        write_picture(draw_panels(grid, _STYLES, PAGE, 1.9), out / "figures" / TABLE)
    left_out = _list_unmeasured(content, curves)
    shown = [row for row in rows if row["net"] not in left_out]
    lines = [read_page_text(TABLE), "", *_settings(content), *_totals(content, shown)]
    for net in left_out:
        lines += _not_run(content, net)
    for statement in content["statements"]:
        figure = statement["figure"]
        source = f"Figure {figure}" if figure.isdecimal() else "Not in the paper"
        source += " (afterwards)" if statement.get("later") else ""
        heads = ["net", "images", "verdict", "numbers"]
        found = [[str(row[head]) for head in heads] for row in shown if row["id"] == statement["id"]]
        lines += [f"**{source}**: {statement['words']}.", "", *markdown_table(heads, found)]
    if panels:
        lines += [
            "![What the figures show, from our measurements](figures/layercfl.png)",
            "",
            read_page_text("layercfl_figures"),
            "",
        ]
    lines += _write_matrices(out, content)
    write_text(out / f"{TABLE}.md", "\n".join([*lines, ""]))
    return rows


def _settings(content: Mapping[str, Any]) -> list[str]:
    """Makes a table of the clients, images, rounds and seeds measured for each figure."""
    heads = ["figures", "clients", "true clusters", "skew", "images per client", "rounds", "seeds"]
    rows = []
    for what in content["measured"].values():
        images = ", ".join(map(str, what["examples"]))
        numbers = [str(what[name]) for name in ("figures", "clients", "clusters")]
        skew, rounds, seeds = _SKEWS[what["skew"]].format(**what), str(what["rounds"]), str(len(what["seeds"]))
        rows.append([*numbers, skew, images, rounds, seeds])
    return markdown_table(heads, rows)


def _totals(content: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Counts the verdicts on the paper's figures, and the statements written after the measurements."""
    papers = {one["id"]: one.get("later", False) for one in content["statements"] if one["figure"].isdecimal()}
    found = Counter(row["verdict"] for row in rows if row["id"] in papers)
    listed = ", ".join(f"`{verdict}` {number}" for verdict, number in found.most_common())
    return [
        f"There are {found.total()} verdicts on the paper's figures: {listed}.",
        f"They judge {len(papers)} statements, of which {sum(papers.values())} were written, or rewritten,",
        "after the measurements.",
        "",
    ]


def _list_unmeasured(content: Mapping[str, Any], curves: GapCurves) -> list[str]:
    """Lists the nets that need a GPU and have not been measured at all."""
    begun = {one.net for one in curves}
    return [net for net, short in content["nets"].items() if short in content["with_device"] and short not in begun]


def _not_run(content: Mapping[str, Any], net: str) -> list[str]:
    """Formats a note about a net that was not measured, with the expected times of its figures."""
    hours: dict[str, float] = {}
    for one in list_measurements(content):
        if one.net == content["nets"][net]:
            figures = content["measured"][one.measured]["figures"]
            hours[figures] = hours.get(figures, 0.0) + estimate_core_hours(content, one)
    listed = [[figures, f"{number:.0f}"] for figures, number in hours.items()]
    return [
        f"Not run: {net} in the paper's width, which takes about {sum(hours.values()):.0f} core-hours without a GPU.",
        f"`python -m benchmarks.reproduction layercfl --only '*-{content['nets'][net]}-*' --device cuda` measures it.",
        "",
        *markdown_table(["figures", "core-hours"], listed),
    ]


def _write_matrices(out: Path, content: Mapping[str, Any]) -> list[str]:
    """Draws the recorded distance matrices; returns the page's lines about them."""
    lines, found = [read_page_text("layercfl_matrices"), ""], read_by_key(out / MATRICES)
    for measurement in list_measurements(content):
        what = content["measured"][measurement.measured]
        if not (measurement.has_matrices(what) and measurement.key in found):
            continue
        figure, net, images = what["matrices"][measurement.images], *_names(content, measurement)
        instead = "" if "VGG16" in net else " instead of VGG16"
        grid, title = _matrices(found[measurement.key], what["clients"]), f"Figure {figure}: {net}{instead}, {images}"
        picture = f"layercfl-{figure}-{measurement.net}"
        write_picture(draw_panels(grid, {}, PAGE, PAGE / len(grid[0]) + 0.1), out / "figures" / picture)
        lines += [f"![{title}](figures/{picture}.png)", "", f"Distances of all pairs of clients, as in {title}.", ""]
    return lines if len(lines) > 2 else []


def _names(content: Mapping[str, Any], measurement: GapMeasurement) -> list[str]:
    """Returns the names of a measurement's net and images as shown on the page."""
    return [
        next(name for name, short in content[kind].items() if short == value)
        for kind, value in (("nets", measurement.net), ("images", measurement.images))
    ]


def _matrices(rows: Sequence[Row], clients: int) -> list[list[Panel | None]]:
    """Makes a grid of heat maps, with a row per distance and a column per selected layer."""
    layers = _select_layers(list(dict.fromkeys(row["layer"] for row in rows)))
    values = {(row["layer"], row["distance"]): np.zeros((clients, clients)) for row in rows}
    for row in rows:
        i, j = row["i"], row["j"]
        values[row["layer"], row["distance"]][[i, j], [j, i]] = row["value"]
    return [
        [
            Panel(
                layer, "", name, matrix=HeatMap(_scale_to_similarity(values[layer, distance]), 0.0, 1.0, ""), bare=True
            )
            for layer in layers
        ]
        for distance, name in _DISTANCES.items()
    ]


def _select_layers(layers: Sequence[str]) -> list[str]:
    """Returns the layers to draw: all of them, but only every third convolution if there are many.

    The last of many convolutions is left out, since its name would touch the next layer's.
    """
    convolutions = [layer for layer in layers if layer.startswith("conv")]
    kept = convolutions[:-1:3] if len(convolutions) > _FEW else convolutions
    return [layer for layer in layers if layer not in convolutions or layer in kept]


def _scale_to_similarity(distances: np.ndarray) -> np.ndarray:
    """Scales distances to similarities: 0 for the largest, 1 for the smallest distance between two clients."""
    low = distances[~np.eye(len(distances), dtype=bool)].min()
    scaled: np.ndarray = (distances.max() - distances) / (distances.max() - low)
    return scaled.clip(max=1)


def _panels(content: Mapping[str, Any], curves: GapCurves) -> list[Panel]:
    """Makes a panel for each combination of figure, net and data set."""
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
            if own := select_curves(curves, name, content["nets"][net], content["images"][images]):
                panels.append(drawn(f"Fig. {figure}: {net}, {images}", Gaps(what, own)))
    return panels


def _by_layer(title: str, gaps: Gaps) -> Panel:
    places = list(range(len(gaps.layers)))
    points = [Points(_UPDATES, places, [fmean(gaps.last(layer, "delta_cos")) for layer in gaps.layers])]
    ticks = {float(gaps.layers.index(layer)): layer for layer in _select_layers(gaps.layers)}
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
        for label, layer, distance in _list_compared(gaps)
    ]
    return Panel(title, "images per client", y, curves=lines)


def _over_rounds(title: str, gaps: Gaps) -> Panel:
    lines = []
    for label, layer, distance in _list_compared(gaps):
        means = [fmean(values) for values in zip(*gaps.of(layer, distance), strict=True)]
        lines.append(Curve(label, range(1, len(means) + 1), means))
    return Panel(title, "round", "Gap", curves=lines)


def _list_compared(gaps: Gaps) -> list[tuple[str, str, str]]:
    return [
        (_UPDATES, gaps.chosen, "delta_cos"),
        (_WEIGHTS, gaps.chosen, "cos"),
        (_L2, gaps.chosen, "l2"),
        (_FMTL, WHOLE, "delta_cos"),
        (_ADACFL, WHOLE, "l2"),
    ]
