"""Measures which layers separate different clients, and judges the statements of LayerCFL's figures.

One joint model is trained by all clients, as in FedAvg. Each round computes every layer's Gap for six distances, with
the TRUE clusters: the minimum similarity within a cluster minus the maximum across clusters. A layer with a Gap above 0
separates the clusters. The file has the measurements, then the rules that judge statements, then the page.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.reproduction.files import Row, append_compressed, read_page_text, read_yaml, round_floats, write_picture
from benchmarks.reproduction.markdown import markdown_table
from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.algorithms import FedAvg, LayerCFL
from lit_cfl.clustering import cosine_similarity, distances, separation_gap
from lit_cfl.datamodules import CIFAR10, IID, DominantClass, FashionMNIST, ImageSet, Rotations
from lit_cfl.experiment import Experiment, LocalTraining
from lit_cfl.local_work import LocalWork
from lit_cfl.nets import VGG16, LeNet, Net
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
from lit_cfl.tasks import Classification

_FILE = Path(__file__).with_name("layer_figures.yaml")
DISTANCES = ("cos", "l2", "delta_cos", "delta_l2")
DRAWN = ("cos", "l2", "delta_cos")  # distances whose matrices are kept; the paper draws the first two
PAIRS = ("layer", "distance", "i", "j", "value")
WHOLE = "whole"  # all layers together: FMTL with delta_cos, AdaCFL with l2
AUTO = "auto"  # column with the layer that `layers: auto` would choose
_IMAGES: dict[str, Callable[..., ImageSet]] = {"cifar10": CIFAR10, "fashionmnist": FashionMNIST}
_TOTAL = {"cifar10": 60_000, "fashionmnist": 70_000}
_NETS: dict[str, Callable[..., Net]] = {
    "vgg16": partial(VGG16, [64, 64], 0.0, width=8),
    "vgg16_full": VGG16,
    "lenet": LeNet,
}
_LAYERCFL = LayerCFL(layers="auto")
_FOURTH = 3  # index of the fourth convolution, which the paper chose for feature skew
Similarities = dict[tuple[str, str], Tensor]  # matrices of all pairs of clients, by layer and distance


def read_plan() -> dict[str, Any]:
    """Reads the planned measurements, and the figures' statements about them."""
    content: dict[str, Any] = read_yaml(_FILE)
    return content


@dataclass(frozen=True)
class GapMeasurement:
    """A planned measurement of Gaps over rounds, with one net, one data set and one seed.

    Args:
        measured: Key in the file's `measured`, which has the settings.
        net, images: Values in the file's `nets` and `images`.
        examples: Number of training images per client.
        seed: Seed of the whole measurement.
    """

    measured: str
    net: str
    images: str
    examples: int
    seed: int

    @property
    def key(self) -> str:
        """Returns the measurement's name in the recorded files."""
        return f"{self.measured.replace(' ', '_')}-{self.net}-{self.images}-{self.examples}-seed{self.seed}"

    def has_matrices(self, what: Mapping[str, Any]) -> bool:
        """Returns whether the distance matrices of the last round are kept."""
        return self.images in what.get("matrices", {}) and self.seed == what["seeds"][0]

    def __str__(self) -> str:
        return f"{self.measured}: {self.net}, {self.images}, {self.examples} images per client, seed {self.seed}"


def list_measurements(content: Mapping[str, Any]) -> list[GapMeasurement]:
    """Returns all planned measurements, starting with LeNet's, which are short."""
    found = [
        GapMeasurement(name, content["nets"][net], images, examples, seed)
        for name, what in content["measured"].items()
        for net, images, examples, seed in product(
            content["nets"], content["images"].values(), what["examples"], what["seeds"]
        )
    ]
    return sorted(found, key=lambda m: m.net)


def estimate_core_hours(content: Mapping[str, Any], measurement: GapMeasurement) -> float:
    """Returns the approximate core-hours of a measurement."""
    what = content["measured"][measurement.measured]
    images = measurement.examples * what["clients"] * what["rounds"]
    hours: float = images * content["core_ms"][measurement.net] / 3_600_000
    return hours


def build_experiment(measurement: GapMeasurement, what: Mapping[str, Any], device: str) -> Experiment:
    """Builds the experiment of a measurement."""
    return Experiment(
        _data(measurement, what),
        lambda: Classification(_net(measurement), partial(torch.optim.Adam, lr=0.001)),
        FedAvg(),
        seeds=[measurement.seed],
        rounds=what["rounds"],
        cohort_size=what["clients"],
        local=LocalTraining(1, 50),
        device=device,
    )


def _net(measurement: GapMeasurement) -> Net:
    return _NETS[measurement.net](input_shape=[3 if measurement.images == "cifar10" else 1, 32, 32], num_labels=10)


def count_parameters(measurement: GapMeasurement) -> dict[str, int]:
    """Returns the number of parameters of each layer of a measurement's net, and of the whole net (`whole`)."""
    layers = {name: sum(p.numel() for p in layer.parameters()) for name, layer in _net(measurement).named_children()}
    return layers | {WHOLE: sum(layers.values())}


def _data(measurement: GapMeasurement, what: Mapping[str, Any]) -> ImageSet:
    kind, pad = _IMAGES[measurement.images], 0 if measurement.images == "cifar10" else 2  # the nets take 32 x 32
    if what["skew"] == "rotation":
        size = _TOTAL[measurement.images] / what["clients"]
        angles = [0, 180] if what["clusters"] == 2 else [0, 90, 180, 270]
        alike = IID(what["clients"], test=1 - measurement.examples / size)
        return kind(partition=alike, skew=Rotations(angles), pad=pad)
    skewed = DominantClass(what["clients"], 0.0, what["clusters"], what["beta"], measurement.examples)
    return kind(partition=skewed, pad=pad)


def measure(
    measurement: GapMeasurement, what: Mapping[str, Any], device: str = "cpu"
) -> Iterator[tuple[Row, list[Row]]]:
    """Trains the clients of a measurement, and yields its Gaps and distances after each round.

    The Gaps are a row with the round, the loss, `auto`, and each Gap in a column such as `conv1 delta_cos`; the
    distances are rows of `PAIRS`, in which the clients of a true cluster have consecutive numbers.
    """
    prepared = build_experiment(measurement, what, device).prepare(measurement.seed)
    clients, truth = prepared.data.population, prepared.data.true_clusters
    model = prepared.engine.at(0, prepared.data).initial(0)[None]
    order = truth.argsort(stable=True)
    try:
        for number in range(what["rounds"]):
            work = prepared.engine.at(number, prepared.data)
            fitted = work.fit(model, clients)
            updates = fitted.collect() - model
            row: Row = {"round": number + 1, "loss": fitted.loss, AUTO: _choose_layer(updates, work)}
            found = _similarities(updates, model[0], work)
            row |= {f"{layer} {distance}": separation_gap(rows, truth) for (layer, distance), rows in found.items()}
            yield row, [pair for key, rows in found.items() for pair in _pairs(*key, rows[order][:, order])]
            # an unweighted mean, since all clients have equally many images
            model = model + mean_by_cluster(updates, torch.zeros_like(clients))
    finally:
        prepared.engine.close()


def _similarities(updates: Tensor, start: Tensor, work: LocalWork) -> Similarities:
    found: Similarities = {}
    for layer in (*work.layout.layers, "*"):
        columns = work.layout.columns(layer)
        name = WHOLE if layer == "*" else layer.removeprefix("net.")
        for distance in DISTANCES:
            rows = updates[:, columns] + (0 if distance.startswith("delta") else start[columns])
            found[name, distance] = cosine_similarity(rows) if distance.endswith("cos") else -distances(rows, "l2")
    return found


def _pairs(layer: str, distance: str, similarity: Tensor) -> Iterator[Row]:
    """Yields a row of `PAIRS` for each pair of clients if the distance is one of `DRAWN`."""
    if distance not in DRAWN:
        return
    values = (1 - similarity if distance.endswith("cos") else -similarity).tolist()
    for i, j in combinations(range(len(values)), 2):
        yield {"layer": layer, "distance": distance, "i": i, "j": j, "value": values[i][j]}


def _choose_layer(updates: Tensor, work: LocalWork) -> str:
    """Returns the layer that `LayerCFL(layers="auto")` would choose, without the true clusters."""
    layer = _LAYERCFL.choose_layers(work.layout, "none", _LAYERCFL.score_layers(updates, work.layout))[0]
    return layer.removeprefix("net.")


def choose_as_paper(layers: list[str], kind: str) -> str:
    """Returns the layer that LayerCFL's authors chose: the fourth (or last) convolution, or the first linear layer."""
    of_kind = [layer for layer in layers if layer.startswith(kind)]
    return of_kind[min(_FOURTH, len(of_kind) - 1)] if kind == "conv" else of_kind[0]


GapCurves = Mapping[GapMeasurement, Sequence[Row]]
_TINY = 1e-4  # tolerance for Gaps of l2 distances, which are differences of float32 sums
EARLY = {"cifar10": 5, "fashionmnist": 10}  # the round that Figure 7 shows, by data set


@dataclass(frozen=True)
class Gaps:
    """The Gaps of measurements that differ only in seed and number of images.

    Args:
        what: Settings of the measurements.
        curves: Rows of the measurements.
    """

    what: Mapping[str, Any]
    curves: GapCurves

    @property
    def layers(self) -> list[str]:
        """Returns the names of the measured layers, in order."""
        row = next(iter(self.curves.values()))[0]
        return [name.split()[0] for name in row if name.endswith(" cos") and not name.startswith(WHOLE)]

    @property
    def chosen(self) -> str:
        """Returns the layer that LayerCFL's authors chose."""
        return choose_as_paper(self.layers, self.what["layer"])

    def of(self, layer: str, distance: str) -> list[list[float]]:
        """Returns a layer's Gaps in all rounds, one list per measurement."""
        return [[float(row[f"{layer} {distance}"]) for row in rows] for rows in self.curves.values()]

    def last(self, layer: str, distance: str) -> list[float]:
        """Returns a layer's Gap after the last round, for each measurement."""
        return [gaps[-1] for gaps in self.of(layer, distance)]

    def early(self, layer: str, distance: str) -> list[float]:
        """Returns a layer's Gap in the round that Figure 7 shows, for each measurement, fewest images first."""
        measurements = sorted(self.curves, key=lambda m: m.examples)
        return [float(self.curves[m][EARLY[m.images] - 1][f"{layer} {distance}"]) for m in measurements]

    @property
    def rounds(self) -> int:
        """Returns the number of rounds of all measurements together."""
        return sum(map(len, self.curves.values()))

    def apart(self, layer: str, distance: str) -> int:
        """Returns the number of rounds in which a layer's Gap is above 0."""
        return sum(gap > 0 for gaps in self.of(layer, distance) for gap in gaps)

    def share(self, layer: str, distance: str) -> float:
        """Returns the share of rounds in which a layer's Gap is above 0."""
        return self.apart(layer, distance) / self.rounds

    def first(self, layer: str, distance: str) -> list[int]:
        """Returns each measurement's first round with a Gap above 0; the number of rounds + 1 if there is none."""
        return [
            next((n for n, gap in enumerate(gaps, 1) if gap > 0), len(gaps) + 1) for gaps in self.of(layer, distance)
        ]


Finding = tuple[bool | None, str]  # whether the statement holds (None = undecided), and the numbers behind it
Rule = Callable[[Gaps], Finding]


def _cosine_beats_l2(gaps: Gaps, cosine: str, l2: str) -> Finding:
    by_cosine, by_l2 = gaps.apart(gaps.chosen, cosine), gaps.apart(gaps.chosen, l2)
    said = f"{gaps.chosen}: Gap > 0 in {by_cosine} of {gaps.rounds} rounds by cosines, in {by_l2} by l2"
    return _above(by_cosine, by_l2), said


def _separate_most_often(gaps: Gaps, kind: str) -> Finding:
    (own, mine), (other, its) = _greatest(gaps, kind, lambda layer: gaps.apart(layer, "cos"))
    return _above(mine, its), f"Gap > 0 in {mine} of {gaps.rounds} rounds by {own}, in {its} by {other}"


def _largest(gaps: Gaps, kind: str) -> Finding:
    """Judges whether a layer of this kind has the largest mean Gap; negative Gaps count as 0, as in the paper."""

    def mean(layer: str) -> float:
        return fmean(max(gap, 0.0) for gap in gaps.last(layer, "delta_cos"))

    def describe(layer: str) -> str:
        found = gaps.last(layer, "delta_cos")
        return f"{layer} {mean(layer):.3f} (Gap > 0 under {sum(gap > 0 for gap in found)} of {len(found)} seeds)"

    (own, mine), (other, its) = _greatest(gaps, kind, mean)
    return _above(mine, its), f"mean Gaps: {describe(own)}, {describe(other)}"


def _greatest(gaps: Gaps, kind: str, value: Callable[[str], float]) -> tuple[tuple[str, float], tuple[str, float]]:
    """Returns the best layer of a kind and the best layer of all other kinds, each with its value."""
    own = max((layer for layer in gaps.layers if layer.startswith(kind)), key=value)
    other = max((layer for layer in gaps.layers if not layer.startswith(kind)), key=value)
    return (own, value(own)), (other, value(other))


def _above(mine: float, its: float) -> bool | None:
    return None if mine == its else mine > its


def layer_is_first(gaps: Gaps) -> Finding:
    """Judges whether, in most measurements, the chosen layer's Gap rises above 0 no later than whole updates' Gaps."""
    layer, fmtl, adacfl = (
        gaps.first(gaps.chosen, "delta_cos"),
        gaps.first(WHOLE, "delta_cos"),
        gaps.first(WHOLE, "l2"),
    )
    never = gaps.what["rounds"] + 1
    reached = [rounds for rounds in zip(layer, fmtl, adacfl, strict=True) if min(rounds) < never]
    kept = sum(mine <= min(others) for mine, *others in reached)
    most = kept + len(layer) - len(reached)  # the count if the layer came first in all undecided measurements
    holds = None if kept <= len(layer) / 2 < most else kept > len(layer) / 2
    return holds, (
        f"{gaps.chosen} in rounds {_join_numbers(layer)}, FMTL {_join_numbers(fmtl)}, AdaCFL {_join_numbers(adacfl)} "
        f"({never}: never)"
    )


def needs_fewer_rounds(gaps: Gaps) -> Finding:
    """Judges whether the chosen layer needs fewer rounds than whole updates to reach a Gap above 0.

    A method without such a round needs more rounds than were measured, so that its sum is a lower bound.
    """
    never = gaps.what["rounds"] + 1
    pairs = zip(gaps.first(gaps.chosen, "delta_cos"), gaps.first(WHOLE, "delta_cos"), strict=True)
    reached = [pair for pair in pairs if min(pair) < never]
    said = f"at least one of the two has a Gap > 0 in {len(reached)} of {len(gaps.curves)} measurements"
    if not reached:
        return None, said
    layer, whole = zip(*reached, strict=True)
    (mine, mine_told), (its, its_told) = (_sum_of_rounds(rounds, never) for rounds in (layer, whole))
    more = f"{abs(1 - mine / its):.0%} {'fewer' if mine < its else 'more'}"
    return _known_below(mine, never in layer, its, never in whole), (
        f"{said}; in total {gaps.chosen} needs {mine_told}, FMTL {its_told}: {more}"
    )


def _sum_of_rounds(rounds: Sequence[int], never: int) -> tuple[int, str]:
    least = f" or more (never in {rounds.count(never)})" if never in rounds else ""
    return sum(rounds), f"{sum(rounds)} rounds{least}"


def _known_below(mine: float, mine_is_least: bool, its: float, its_is_least: bool) -> bool | None:
    """Returns whether one number is below another, where each may be only a lower bound; None if undecided."""
    if mine < its and not mine_is_least:
        return True
    return False if mine > its and not its_is_least else None


def compares_less(gaps: Gaps) -> Finding:
    """Judges whether the chosen layer needs fewer multiply-adds than whole updates up to the first Gap above 0.

    Without one, the rounds count as one more than were measured, a lower bound.
    """
    sizes, never = count_parameters(next(iter(gaps.curves))), gaps.what["rounds"] + 1
    first = {name: gaps.first(name, "delta_cos") for name in (gaps.chosen, WHOLE)}
    layer, whole = (sum(rounds) * sizes[name] for name, rounds in first.items())
    nevers = [rounds.count(never) for rounds in first.values()]
    cut = f"; {gaps.chosen} has no Gap > 0 in {nevers[0]} of {len(gaps.curves)} measurements, FMTL in {nevers[1]}"
    return _known_below(layer, nevers[0] > 0, whole, nevers[1] > 0), (
        f"{gaps.chosen} has {sizes[gaps.chosen]:,} of {sizes[WHOLE]:,} parameters: {whole / layer:.3g} times fewer "
        f"multiply-adds than FMTL up to the rounds of Figure 6{cut if any(nevers) else ''}"
    )


def layer_gap_is_larger_early(gaps: Gaps) -> Finding:
    layer, whole = gaps.early(gaps.chosen, "delta_cos"), gaps.early(WHOLE, "delta_cos")
    larger = [mine > its for mine, its in zip(layer, whole, strict=True)]
    return sum(larger) > len(larger) / 2, (
        f"larger for {sum(larger)} of {len(larger)}; mean Gaps: {fmean(layer):+.2f}, whole updates {fmean(whole):+.2f}"
    )


def layer_gap_comes_nearer(gaps: Gaps) -> Finding:
    """Judges whether more images per client reduce the lead of whole updates over the chosen layer."""
    pairs = zip(gaps.early(gaps.chosen, "delta_cos"), gaps.early(WHOLE, "delta_cos"), strict=True)
    ahead = [its - mine for mine, its in pairs]
    few, many = fmean(ahead[: len(ahead) // 2]), fmean(ahead[len(ahead) // 2 :])
    return few > 0 and many < few, (f"whole updates lead by {few:.2f} with fewer images, by {many:.2f} with more")


def cosines_separate(gaps: Gaps) -> Finding:
    pairs = [(gaps.chosen, "delta_cos"), (gaps.chosen, "cos"), (WHOLE, "delta_cos")]
    shares = {f"{layer} {distance}": gaps.share(layer, distance) for layer, distance in pairs}
    return min(shares.values()) > 0.5, ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def weaker_later(gaps: Gaps) -> Finding:
    found = gaps.of(gaps.chosen, "delta_cos")
    early = fmean(gap for one in found for gap in one[:10])
    late = fmean(gap for one in found for gap in one[-10:])
    return late < early, f"{gaps.chosen}: {early:+.2f} in the first ten rounds, {late:+.2f} in the last ten"


def l2_coincide(gaps: Gaps) -> Finding:
    pairs = zip(gaps.of(gaps.chosen, "l2"), gaps.of(gaps.chosen, "delta_l2"), strict=True)
    most = max(abs(mine - its) for one, other in pairs for mine, its in zip(one, other, strict=True))
    return most < _TINY, f"{gaps.chosen}: they differ by at most {most:.1g}, recorded with five digits"


def layer_lasts_longest(gaps: Gaps) -> Finding:
    shares = {
        f"{gaps.chosen} delta_cos": gaps.share(gaps.chosen, "delta_cos"),
        f"{gaps.chosen} cos": gaps.share(gaps.chosen, "cos"),
        "FMTL": gaps.share(WHOLE, "delta_cos"),
        "AdaCFL": gaps.share(WHOLE, "l2"),
        f"{gaps.chosen} l2": gaps.share(gaps.chosen, "l2"),
    }
    mine, *others = shares.values()
    return _above(mine, max(others)), ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def auto_is_as_good(gaps: Gaps) -> Finding:
    chosen = f"{gaps.chosen} delta_cos"
    rows = [row for rows in gaps.curves.values() for row in rows]
    good = [float(row[f"{row[AUTO]} delta_cos"]) >= float(row[chosen]) for row in rows]
    return fmean(good) > 0.5, f"in {fmean(good):.0%} of the rounds"


def _join_numbers(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


RULES: dict[str, Rule] = {
    "weights_cosine_beats_l2": partial(_cosine_beats_l2, cosine="cos", l2="l2"),
    "updates_cosine_beats_l2": partial(_cosine_beats_l2, cosine="delta_cos", l2="delta_l2"),
    "weights_separate_in_conv": partial(_separate_most_often, kind="conv"),
    "weights_separate_in_fc": partial(_separate_most_often, kind="fc"),
    "largest_in_conv": partial(_largest, kind="conv"),
    "largest_in_fc": partial(_largest, kind="fc"),
    "layer_is_first": layer_is_first,
    "needs_fewer_rounds": needs_fewer_rounds,
    "compares_less": compares_less,
    "layer_gap_is_larger_early": layer_gap_is_larger_early,
    "layer_gap_comes_nearer": layer_gap_comes_nearer,
    "cosines_separate": cosines_separate,
    "weaker_later": weaker_later,
    "l2_coincide": l2_coincide,
    "layer_lasts_longest": layer_lasts_longest,
    "auto_is_as_good": auto_is_as_good,
}


def select_curves(curves: GapCurves, measured: str, net: str, images: str) -> dict[GapMeasurement, Sequence[Row]]:
    """Returns the measurements of this kind, with this net and these images."""
    kind = (measured, net, images)
    return {m: rows for m, rows in curves.items() if (m.measured, m.net, m.images) == kind}


def judge_statements(content: Mapping[str, Any], curves: GapCurves) -> list[Row]:
    """Judges each statement for each net and each data set that it covers.

    Args:
        content: Content of `layer_figures.yaml`.
        curves: Rows of the finished measurements; a statement needs all of its measurements.

    Returns:
        Rows with `id`, `figure`, `words`, `net`, `images`, `seeds`, `verdict` (`holds`, `does not hold`, `undecided` or
            `not run`), `numbers`.
    """
    found = []
    for statement in content["statements"]:
        what = content["measured"][statement["measured"]]
        for net, images in product(content["nets"], statement.get("images", content["images"])):
            own = select_curves(curves, statement["measured"], content["nets"][net], content["images"][images])
            row = {name: statement[name] for name in ("id", "figure", "words")}
            row |= {"net": net, "images": images, "seeds": len(what["seeds"])}
            found.append(row | _verdict(RULES[statement["rule"]], what, own))
    return found


def _verdict(rule: Rule, what: Mapping[str, Any], curves: GapCurves) -> Row:
    if len(curves) < len(what["examples"]) * len(what["seeds"]):
        return {"verdict": "not run", "numbers": f"measurements so far: {len(curves)}"}
    holds, numbers = rule(Gaps(what, curves))
    return {"verdict": {True: "holds", False: "does not hold", None: "undecided"}[holds], "numbers": numbers}


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
_ACROSS, _FEW = 2, 6  # number of panels in a row; all convolutions are drawn if there are at most six
_SKEWS = {
    "rotation": "images rotated, one angle per cluster",
    "labels": "{beta:.0%} of a client's images from its cluster's class",
}


def read_curves(out: Path, content: Mapping[str, Any]) -> dict[GapMeasurement, list[Row]]:
    """Reads the rows of all recorded measurements."""
    found = _read_by_key(out / GAPS)
    return {m: _rounds(found[m.key]) for m in list_measurements(content) if m.key in found}


def _rounds(cells: Sequence[Row]) -> list[Row]:
    """Joins the recorded values of a measurement into a row per round; later recordings override earlier ones."""
    rows: dict[int, Row] = {}
    for cell in cells:
        rows.setdefault(cell["round"], {"round": cell["round"]})[cell["column"]] = cell["value"]
    return list(rows.values())


def _read_by_key(file: Path) -> dict[str, list[Row]]:
    """Reads the rows of a file, grouped by measurement."""
    found: dict[str, list[Row]] = {}
    for row in read_table(file) if file.exists() else ():
        found.setdefault(row["measurement"], []).append(row)
    return found


def find_missing(out: Path, content: Mapping[str, Any]) -> list[GapMeasurement]:
    """Lists the measurements that are not recorded yet, or lack their matrices."""
    gaps, matrices = _read_by_key(out / GAPS), _read_by_key(out / MATRICES)
    return [
        m
        for m in list_measurements(content)
        if m.key not in gaps or (m.has_matrices(content["measured"][m.measured]) and m.key not in matrices)
    ]


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


def record_gaps(out: Path, measurement: GapMeasurement, rows: Sequence[Row]) -> None:
    """Records the Gaps of all rounds of a measurement."""
    cells = (
        {"measurement": measurement.key, "round": row["round"], "column": column, "value": value}
        for row in rows
        for column, value in row.items()
        if column != "round"
    )
    append_compressed(out / GAPS, GAP_COLUMNS, (round_floats(cell, 5) for cell in cells))


def record_matrices(out: Path, measurement: GapMeasurement, pairs: Sequence[Row]) -> None:
    """Records the distances of all pairs of clients in a measurement's last round."""
    rows = ({"measurement": measurement.key} | pair for pair in pairs)
    append_compressed(out / MATRICES, ("measurement", *PAIRS), (round_floats(row, 4) for row in rows))


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
    lines, found = [read_page_text("layercfl_matrices"), ""], _read_by_key(out / MATRICES)
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
