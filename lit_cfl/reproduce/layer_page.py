"""Runs the measurements of LayerCFL's figures, and writes what the figures say beside what we measured."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lit_cfl.metric_names import Row
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.panels import BLUE, DPI, ORANGE, PAGE, SKY, VERMILLION, Curve, Panel, Points, Style, draw_panels
from lit_cfl.reproduce.layer_gaps import WHOLE, GapCell, cells, measure, plan
from lit_cfl.reproduce.layer_verdicts import Curves, Gaps, judged
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.csv_log import read_table, write_rows

TABLE = "layercfl"
COLUMNS = ("id", "figure", "net", "images", "words", "verdict", "numbers")
_UPDATES, _WEIGHTS = "the layer's updates, cosine", "the layer's weights, cosine"
_FMTL, _ADACFL = "all updates, cosine (FMTL)", "all weights, l2 (AdaCFL)"
_STYLES = {
    _UPDATES: Style(VERMILLION),
    _WEIGHTS: Style(ORANGE, marker="^"),
    _FMTL: Style(BLUE),
    _ADACFL: Style(SKY),
}
_ACROSS = 2  # panels
_CAPTION = (
    "Means over the seeds. Where there is one layer alone it is the fourth convolution, or the last of fewer, under",
    "rotation, and the first fully connected one under label skew. A first round beyond the last one means never.",
    "",
)
_HEAD = """\
# LayerCFL: figures

Written by `lit-cfl reproduce layercfl`. The paper has no table of accuracies; its figures say in which layers clients
differ. Each line is one thing that a figure says, written down before any measurement
(`lit_cfl/reproduce/layer_figures.yaml`), and what the committed Gaps say of it: `layercfl/` has a file for each
measurement, `layer_verdicts.py` the rules. Gap: least similarity of two clients within a true cluster minus the
greatest across; above 0 the layer tells the clusters apart.

**Not the paper's setting:** VGG16 is one an eighth as wide, with a head of 64, 64 and 10, or LeNet stands in for it;
Fashion-MNIST for EMNIST letters. Learning rate and epochs are not stated: Adam with 0.001, one epoch a round, batches
of 50. Not drawn: the matrices of Figures 4 and 9.
"""


def recorded_curves(out: Path, content: Mapping[str, Any]) -> dict[GapCell, list[Row]]:
    """Reads the measurements that are over."""
    folder = out / TABLE
    return {cell: read_table(folder / cell.file) for cell in cells(content) if (folder / cell.file).exists()}


def run_missing(out: Path, wanted: Sequence[GapCell], told: Callable[[str], None], check: Callable[[], None]) -> None:
    """Makes the measurements that are missing; each is written when it is over.

    Args:
        told: is called with a line for each.
        check: is called between rounds; may raise to stop.
    """
    content = plan()
    for number, cell in enumerate(wanted, 1):
        rows = []
        for row in measure(cell, content["measured"][cell.measured]):
            check()
            rows.append(row)
        (out / TABLE).mkdir(parents=True, exist_ok=True)
        write_rows(out / TABLE / cell.file, list(rows[0]), rows, digits=5)
        told(f"{number}/{len(wanted)}  {cell}")
        write_page(out)


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
        write_figure(draw_panels(grid, _STYLES, PAGE, 1.9), out / "figures" / TABLE, ["png"], DPI)
    lines = [_HEAD]
    for statement in content["statements"]:
        figure = statement["figure"]
        source = f"Figure {figure}" if figure.isdecimal() else "Beside the paper"
        lines += [
            f"**{source}**: {statement['words']}.",
            "",
            "| net | images | verdict | numbers |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['net']} | {row['images']} | {row['verdict']} | {row['numbers']} |"
            for row in rows
            if row["id"] == statement["id"]
        ]
        lines.append("")
    if panels:
        lines += ["![What the figures show, from our measurements](figures/layercfl.png)", "", *_CAPTION]
    write_text(out / f"{TABLE}.md", "\n".join([*lines, ""]))
    return rows


def _panels(content: Mapping[str, Any], curves: Curves) -> list[Panel]:
    """A panel of each measured set, net and images."""
    draw = {"4, 5": _by_layer, "8, 9": _by_layer, "6, 7": _first_rounds, "10": _over_rounds, "11": _shares}
    panels = []
    for name, what in content["measured"].items():
        for net, kind in content["nets"].items():
            for images, short in content["images"].items():
                own = {c: r for c, r in curves.items() if (c.measured, c.net, c.images) == (name, kind, short)}
                if own:
                    panels.append(draw[what["figures"]](f"Fig. {what['figures']}: {net}, {images}", Gaps(what, own)))
    return panels


def _by_layer(title: str, gaps: Gaps) -> Panel:
    places = list(range(len(gaps.layers)))
    points = [
        Points(_UPDATES, places, [gaps.mean(layer, "delta_cos") for layer in gaps.layers]),
        Points(_WEIGHTS, places, [gaps.mean(layer, "cos") for layer in gaps.layers]),
    ]
    return Panel(title, "layer", "mean Gap", points=points, x_ticks=dict(zip(places, gaps.layers, strict=True)))


def _first_rounds(title: str, gaps: Gaps) -> Panel:
    return _by_images(title, "first round with Gap > 0", gaps, lambda one, layer, name: one.first(layer, name)[0])


def _shares(title: str, gaps: Gaps) -> Panel:
    return _by_images(title, "share of rounds, Gap > 0", gaps, lambda one, layer, name: one.share(layer, name))


def _by_images(title: str, y: str, gaps: Gaps, figure: Callable[[Gaps, str, str], float]) -> Panel:
    known = sorted(gaps.curves, key=lambda cell: cell.examples)
    alone = [Gaps(gaps.what, {cell: gaps.curves[cell]}) for cell in known]
    examples = [cell.examples for cell in known]
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
        (_FMTL, WHOLE, "delta_cos"),
        (_ADACFL, WHOLE, "l2"),
    ]
