"""Judges the statements of LayerCFL's figures by measured Gaps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from benchmarks.reproduction.files import Row
from benchmarks.reproduction.layer_gaps import AUTO, WHOLE, GapCurves, GapMeasurement, count_parameters

_FOURTH = 3  # index of the fourth convolution, which the paper chose for feature skew
_TINY = 1e-4  # tolerance for Gaps of l2 distances, which are differences of float32 sums
EARLY = {"cifar10": 5, "fashionmnist": 10}  # the round that Figure 7 shows, by data set


def choose_as_paper(layers: list[str], kind: str) -> str:
    """Returns the layer that LayerCFL's authors chose: the fourth (or last) convolution, or the first linear layer."""
    of_kind = [layer for layer in layers if layer.startswith(kind)]
    return of_kind[min(_FOURTH, len(of_kind) - 1)] if kind == "conv" else of_kind[0]


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
