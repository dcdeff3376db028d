"""Tests LayerCFL's figures: the planned measurements, the rules that judge statements, the committed verdicts."""

import shutil
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hub import skipped_without_data
from matplotlib import colormaps
from PIL import Image

from benchmarks.reproduction.command import main
from benchmarks.reproduction.layer_gaps import (
    DRAWN,
    GAPS,
    GapMeasurement,
    find_missing,
    list_measurements,
    measure,
    read_curves,
    read_plan,
    record_gaps,
    record_matrices,
)
from benchmarks.reproduction.layer_page import write_page
from benchmarks.reproduction.layer_verdicts import RULES, Gaps, choose_as_paper, judge_statements
from lit_cfl.metric_names import Row

COMMITTED = Path(__file__).parents[3] / "docs" / "reproduction"
CONTENT = read_plan()
viridis = colormaps["viridis"]
DISTANCES = ("cos", "l2", "delta_cos", "delta_l2")


def rounds(**gaps: list[float]) -> list[Row]:
    """Makes the rows of a Gap measurement of `conv1`, `fc1` and the whole model; Gaps not given are -1.

    Args:
        gaps: Gaps of each round, by names such as `conv1_delta_cos`.
    """
    count = len(next(iter(gaps.values())))
    names = [f"{layer} {distance}" for layer in ("conv1", "fc1", "whole") for distance in DISTANCES]
    given = {name.replace("_", " ", 1): values for name, values in gaps.items()}
    return [
        {"round": n + 1, "auto": "fc1"} | {name: given.get(name, [-1.0] * count)[n] for name in names}
        for n in range(count)
    ]


def gaps(rows: list[Row], layer: str = "conv", images: str = "cifar10") -> Gaps:
    measurement = GapMeasurement("rotation", "lenet", images, 500, 0)
    return Gaps({"layer": layer, "rounds": len(rows)}, {measurement: rows})


def by_images(layer: list[list[float]], whole: list[list[float]]) -> Gaps:
    """Makes Gap measurements for increasing numbers of images, stored in reverse order."""
    curves = {
        GapMeasurement("rotation", "lenet", "cifar10", 100 * number, 0): rounds(
            conv1_delta_cos=mine, whole_delta_cos=its
        )
        for number, (mine, its) in enumerate(zip(layer, whole, strict=True), 1)
    }
    return Gaps({"layer": "conv", "rounds": len(layer[0])}, dict(reversed(curves.items())))


@pytest.mark.parametrize(
    ("rule", "found", "holds", "words"),
    [
        (
            "updates_cosine_beats_l2",
            gaps(rounds(conv1_delta_cos=[1, -1, 1, 1], conv1_l2=[1, 1, 1, 1])),
            True,
            "3 of 4 rounds by cosines, in 0 by l2",
        ),
        (
            "weights_cosine_beats_l2",
            gaps(rounds(conv1_l2=[1, -1, 1, 1], conv1_delta_cos=[1, 1, 1, 1], fc1_cos=[1, 1, 1, 1])),
            False,
            "0 of 4 rounds by cosines, in 3 by l2",
        ),
        (
            "weights_separate_in_conv",
            gaps(rounds(conv1_cos=[1, -1], fc1_delta_cos=[1, 1])),
            True,
            "in 1 of 2 rounds by conv1, in 0 by fc1",
        ),
        (  # equally often
            "weights_separate_in_fc",
            gaps(rounds(conv1_cos=[1, -1], fc1_cos=[1, -1])),
            None,
            "in 1 of 2 rounds by fc1, in 1 by conv1",
        ),
        ("updates_cosine_beats_l2", gaps(rounds(fc1_delta_cos=[1, 1])), None, "0 of 2 rounds by cosines, in 0 by l2"),
        (
            "largest_in_conv",
            gaps(rounds(conv1_delta_cos=[-2, 0.3])),
            True,
            "conv1 0.300 (Gap > 0 under 1 of 1 seeds), fc1 0.000 (Gap > 0 under 0 of 1 seeds)",
        ),
        ("largest_in_fc", gaps(rounds(conv1_delta_cos=[-2, 0.3])), False, "fc1 0.000"),
        ("largest_in_fc", gaps(rounds(fc1_delta_cos=[1, -0.3])), None, "fc1 0.000 (Gap > 0 under 0 of 1 seeds), conv1"),
        (  # a negative Gap counts as 0: (0 + 0.25) / 2
            "largest_in_conv",
            by_images([[-0.5], [0.25]], [[1], [1]]),
            True,
            "conv1 0.125 (Gap > 0 under 1 of 2 seeds)",
        ),
        (
            "layer_is_first",
            gaps(rounds(conv1_delta_cos=[-1, 1, 1], whole_delta_cos=[-1, -1, 1])),
            True,
            "conv1 in rounds 2, FMTL 3, AdaCFL 4 (4: never)",
        ),
        (
            "layer_is_first",
            gaps(rounds(conv1_delta_cos=[-1, -1])),
            None,
            "conv1 in rounds 3, FMTL 3, AdaCFL 3 (3: never)",
        ),
        (  # in the first case nobody is first, in the second conv1 is: that is half of the cases
            "layer_is_first",
            by_images([[-1, -1], [1, 1]], [[-1, -1], [-1, 1]]),
            None,
            "conv1 in rounds 1 3, FMTL 2 3",
        ),
        (  # conv1 is not first in the first case, so it is first in at most half of them
            "layer_is_first",
            by_images([[-1, -1], [-1, 1]], [[-1, -1], [1, 1]]),
            False,
            "conv1 in rounds 2 3, FMTL 1 3",
        ),
        (
            "needs_fewer_rounds",
            gaps(rounds(conv1_delta_cos=[-1, 1, 1], whole_delta_cos=[-1, -1, 1])),
            True,
            "in 1 of 1 measurements; in total conv1 needs 2 rounds, FMTL 3 rounds: 33% fewer",
        ),
        (
            "needs_fewer_rounds",
            gaps(rounds(conv1_delta_cos=[-1, -1])),
            None,
            "at least one of the two has a Gap > 0 in 0 of 1",
        ),
        (  # conv1 needs at least 3 rounds, and 1
            "needs_fewer_rounds",
            by_images([[-1, -1], [1, 1]], [[1, 1], [1, 1]]),
            False,
            "conv1 needs 4 rounds or more (never in 1), FMTL 2 rounds: 100% more",
        ),
        (  # conv1 needs 3 rounds in both cases; FMTL needs 1, and at least 4
            "needs_fewer_rounds",
            by_images([[-1, -1, 1], [-1, -1, 1]], [[1, 1, 1], [-1, -1, -1]]),
            None,
            "conv1 needs 6 rounds, FMTL 5 rounds or more (never in 1): 20% more",
        ),
        (  # conv1 needs at least 3 rounds, and 1; FMTL needs 1, and at least 3
            "needs_fewer_rounds",
            by_images([[-1, -1], [1, 1]], [[1, 1], [-1, -1]]),
            None,
            "conv1 needs 4 rounds or more (never in 1), FMTL 4 rounds or more (never in 1)",
        ),
        (  # LeNet on CIFAR-10 has 456 parameters in conv1 (6 x 3 x 5 x 5 + 6), 62,006 in total; 2 and 3 rounds
            "compares_less",
            gaps(rounds(conv1_delta_cos=[-1, 1, 1], whole_delta_cos=[-1, -1, 1])),
            True,
            "conv1 has 456 of 62,006 parameters: 204 times fewer multiply-adds than FMTL up to the rounds of Figure 6",
        ),
        (
            "compares_less",
            gaps(rounds(whole_delta_cos=[-1, 1])),
            None,
            "rounds of Figure 6; conv1 has no Gap > 0 in 1 of 1 measurements, FMTL in 0",
        ),
        (
            "layer_gap_is_larger_early",
            gaps(rounds(conv1_delta_cos=[0, 0, 0, 0, 0.5], whole_delta_cos=[1, 1, 1, 1, 0.25])),
            True,
            "larger for 1 of 1; mean Gaps: +0.50, whole updates +0.25",
        ),
        (  # the Gap is smaller by 0.5, and later by 0.25
            "layer_gap_comes_nearer",
            by_images([[0] * 4 + [0.5], [0] * 4 + [0.75]], [[1] * 5, [1] * 5]),
            True,
            "lead by 0.50 with fewer images, by 0.25 with more",
        ),
        (
            "layer_gap_comes_nearer",
            by_images([[0] * 4 + [1.5], [0] * 4 + [1.75]], [[1] * 5, [1] * 5]),
            False,
            "lead by -0.50 with fewer images, by -0.75",
        ),
        (
            "cosines_separate",
            gaps(rounds(fc1_delta_cos=[1, 1], fc1_cos=[1, 1], whole_delta_cos=[1, -1]), "fc"),
            False,
            "whole delta_cos 50%",
        ),
        (
            "weaker_later",
            gaps(rounds(fc1_delta_cos=[1.0] * 10 + [0.5] * 10), "fc"),
            True,
            "+1.00 in the first",
        ),
        ("l2_coincide", gaps(rounds(conv1_l2=[0.1, 0.2], conv1_delta_l2=[0.1, 0.3])), False, "at most 0.1"),
        ("layer_lasts_longest", gaps(rounds(fc1_delta_cos=[1, 1], whole_delta_cos=[1, -1]), "fc"), True, "FMTL 50%"),
        ("layer_lasts_longest", gaps(rounds(fc1_delta_cos=[1, 1], whole_delta_cos=[1, 1]), "fc"), None, "FMTL 100%"),
        (
            "auto_is_as_good",
            gaps(rounds(conv1_delta_cos=[0.5, 0.5], fc1_delta_cos=[0.5, 0.4])),
            False,
            "in 50% of the rounds",
        ),
    ],
)
def test_rules_by_hand(rule: str, found: Gaps, holds: bool | None, words: str):
    verdict, numbers = RULES[rule](found)
    assert verdict is holds
    assert words in numbers


def test_every_statement_has_a_rule_and_a_measurement():
    assert {statement["rule"] for statement in CONTENT["statements"]} == set(RULES)
    assert {statement["measured"] for statement in CONTENT["statements"]} == set(CONTENT["measured"])
    assert len({statement["id"] for statement in CONTENT["statements"]}) == len(CONTENT["statements"])
    assert len({measurement.key for measurement in list_measurements(CONTENT)}) == len(list_measurements(CONTENT))


def test_layers_chosen_by_hand_are_the_paper_s():
    deep = [f"conv{n}" for n in range(1, 14)] + ["fc1", "fc2", "fc3"]
    assert [choose_as_paper(deep, "conv"), choose_as_paper(deep, "fc")] == ["conv4", "fc1"]
    assert choose_as_paper(["conv1", "conv2", "fc1"], "conv") == "conv2"


def test_statement_waits_for_all_of_its_measurements():
    assert {row["verdict"] for row in judge_statements(CONTENT, {})} == {"not run"}


def test_statement_is_about_its_own_images():
    content = CONTENT | {"statements": [CONTENT["statements"][0] | {"images": ["CIFAR-10"]}]}
    content["measured"] = {"rotation": CONTENT["measured"]["rotation"] | {"seeds": [0]}}
    found = judge_statements(
        content, {GapMeasurement("rotation", "lenet", "cifar10", 500, 0): rounds(conv1_cos=[1, 1])}
    )
    assert [(row["net"], row["images"], row["verdict"], row["seeds"]) for row in found] == [
        ("LeNet", "CIFAR-10", "holds", 1),
        ("VGG16 of an eighth of the width", "CIFAR-10", "not run", 1),
        ("VGG16", "CIFAR-10", "not run", 1),
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", ["rotation", "labels"])
def test_measuring_gives_every_gap_of_every_round(name: str, monkeypatch: pytest.MonkeyPatch):
    what: dict[str, Any] = CONTENT["measured"][name] | {"clients": 4, "rounds": 2}
    with skipped_without_data():
        rows, pairs = zip(*measure(GapMeasurement(name, "lenet", "fashionmnist", 50, 0), what), strict=True)
    assert [row["round"] for row in rows] == [1, 2]
    layers = ["conv1", "conv2", "fc1", "fc2", "fc3", "whole"]
    assert list(rows[0])[3:] == [f"{layer} {distance}" for layer in layers for distance in DISTANCES]
    assert rows[0]["auto"] in layers
    for layer in layers:  # clients start from the same model, so weights have the same distances as updates
        assert rows[1][f"{layer} l2"] == pytest.approx(rows[1][f"{layer} delta_l2"], abs=1e-5)
        assert -2 <= rows[1][f"{layer} delta_cos"] <= 2
    for layer, distance in product(
        layers, DRAWN
    ):  # the Gap computed by hand: clients 0 and 1 are one cluster, 2 and 3 the other
        found = {
            (pair["i"], pair["j"]): pair["value"]
            for pair in pairs[1]
            if (pair["layer"], pair["distance"]) == (layer, distance)
        }
        gap = min(found[0, 2], found[0, 3], found[1, 2], found[1, 3]) - max(found[0, 1], found[2, 3])
        assert rows[1][f"{layer} {distance}"] == pytest.approx(gap, abs=1e-5)


@pytest.mark.long
def test_matrices_are_drawn_and_missed_where_they_should_be(tmp_path: Path):
    first, second = (GapMeasurement("rotation", "lenet", "cifar10", 500, seed) for seed in (0, 1))
    for measurement in (first, second):
        record_gaps(tmp_path, measurement, rounds(conv1_cos=[1.0, -0.123456789]))
    what = CONTENT["measured"]["rotation"]
    left = find_missing(tmp_path, CONTENT)
    assert first in left
    assert second not in left  # matrices are recorded only for the first seed
    pairs = [
        {"layer": layer, "distance": distance, "i": i, "j": j, "value": 2.0 if (i < 5) == (j < 5) else 4.0}
        for layer, distance in product(["conv1", "whole"], DRAWN)
        for i, j in combinations(range(what["clients"]), 2)
    ]
    record_matrices(tmp_path, first, pairs)
    assert first not in find_missing(tmp_path, CONTENT)
    known = read_curves(tmp_path, CONTENT)
    assert list(known) == [first, second]
    assert [row["round"] for row in known[second]] == [1, 2]
    assert [row["conv1 cos"] for row in known[second]] == [1.0, -0.12346]  # rounded to five digits
    record_gaps(tmp_path, second, rounds(conv1_cos=[0.5, 0.25]))
    # the later record replaces the earlier one
    assert [row["conv1 cos"] for row in read_curves(tmp_path, CONTENT)[second]] == [0.5, 0.25]
    (tmp_path / GAPS).unlink()
    write_page(tmp_path)
    page = (tmp_path / "layercfl.md").read_text()
    assert "![Figure 4: LeNet instead of VGG16, CIFAR-10](figures/layercfl-4-lenet.png)" in page
    with Image.open(tmp_path / "figures" / "layercfl-4-lenet.png") as picture:
        colours = {colour: count for count, colour in picture.convert("RGB").getcolors(2**24) or []}
    like, unlike = (tuple(map(int, viridis(share, bytes=True)[:3])) for share in (1.0, 0.0))
    assert colours[like] == pytest.approx(colours[unlike], rel=0.1)  # 50 of the 100 cells each, including the diagonal


@pytest.mark.full
def test_committed_verdicts_and_page_follow_from_the_committed_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchmarks.reproduction.layer_page.write_picture", lambda *_: None)  # drawing takes seconds
    shutil.copytree(COMMITTED / "gaps", tmp_path / "gaps")
    write_page(tmp_path)
    for name in ("layercfl.csv", "layercfl.md"):
        assert (tmp_path / name).read_text() == (COMMITTED / name).read_text()


@pytest.mark.full
def test_net_for_a_gpu_has_its_time_on_the_page_until_something_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("benchmarks.reproduction.layer_page.write_picture", lambda *_: None)  # drawing takes seconds
    write_page(tmp_path)
    page = (tmp_path / "layercfl.md").read_text()
    assert "takes about 253 core-hours without a GPU" in page  # 25.28 million images at 36 ms each
    assert "| 4, 5 | 9 |\n| 8, 9 | 9 |\n| 6, 7 | 77 |\n| 10 | 30 |\n| 11 | 128 |\n" in page
    assert "| VGG16 |" not in page
    narrow = GapMeasurement("rotation", "vgg16", "cifar10", 500, 0)
    record_gaps(tmp_path, replace(narrow, net="vgg16_full"), read_curves(COMMITTED, CONTENT)[narrow])
    write_page(tmp_path)
    page = (tmp_path / "layercfl.md").read_text()
    assert "core-hours without a GPU" not in page
    assert "| VGG16 | CIFAR-10 | not run | measurements so far: 1 |" in page


def test_nets_for_a_gpu_are_measured_where_a_device_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["layercfl", "--out", str(tmp_path), "--dry-run"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "vgg16," in shown
    assert "vgg16_full" not in shown
    assert main([*words, "--device", "cpu", "--only", "labels-vgg16_full-cifar10-500-seed0"]) == 0
    assert capsys.readouterr().out.endswith("1 measurements are missing: about 1.5 core-hours\n")


def test_page_without_measurements_has_the_settings_and_no_picture(tmp_path: Path):
    assert {row["verdict"] for row in write_page(tmp_path)} == {"not run"}
    page = (tmp_path / "layercfl.md").read_text()
    assert "| 10 | 10 | 2 | 50% of a client's images from its cluster's class | 1000 | 50 | 3 |" in page
    assert "**Figure 7 (afterwards)**: in round 5" in page
    assert "**Figure 6**: updates of the chosen layer" in page
    assert "![" not in page
