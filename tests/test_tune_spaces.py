"""What a study may search, and what is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from studies import ALGORITHMS, STUDY, base, study_file

from lit_cfl.errors import InputError
from lit_cfl.tune.check import check_on_clients, check_study, first_clustering_round
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import as_word, in_words
from lit_cfl.tune.study import Study
from lit_cfl.variants import base_config, build


def check(space: dict[str, Any], **changes: Any) -> None:
    """All checks of a study before it starts."""
    study, (default, *corners) = check_study(Study(base(**changes), space))
    check_on_clients(study, default, corners)


def test_each_distribution_is_read():
    space = parse_space({
        "a": {"uniform": [0, 2]}, "b": {"loguniform": [0.1, 1]}, "c": {"quniform": [0, 1, 0.5]},
        "d": {"randint": [2, 5]}, "e": {"choice": [["conv*"], None]},
    })  # fmt: skip
    assert [p.distribution.corners for p in space.parameters] == [[0, 2], [0.1, 1], [0, 1], [2, 4], [["conv*"], None]]
    assert not space.grid
    assert parse_space({"a": {"grid": [1, 2]}, "b": {"grid": [3, 4, 5]}}).size == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "space is empty"),
        ({"a": {"unifrom": [0, 1]}}, r"'unifrom' is not known \(did you mean uniform\?\)"),
        ({"a": [0, 1]}, "write one of uniform"),
        ({"a": {"uniform": [0, 1], "choice": [1]}}, "write one of uniform"),
        ({"a": {"uniform": [1, 0]}}, r"a: \[1, 0\] is no range"),
        ({"a": {"uniform": [0, float("inf")]}}, "is no range"),
        ({"a": {"uniform": [0]}}, "give a list of 2"),
        ({"a": {"loguniform": [0, 1]}}, "give a number above 0"),
        ({"a": {"quniform": [0, 1, 2]}}, "rounds to 2"),
        ({"a": {"randint": [0.5, 2]}}, "no range of whole numbers"),
        ({"a": {"randint": [3, 3]}}, "no range of whole numbers"),
        ({"a": {"choice": []}}, "is no list of different values"),
        ({"a": {"choice": [1, 1]}}, "is no list of different values"),
        ({"a": {"grid": [1]}, "b": {"uniform": [0, 1]}}, r"cannot try all values of b; write b: \{grid"),
        ({"a": {"grid": [1]}, "b": {"choice": [0, 1]}}, "b is a choice beside a grid"),
        ({"algorithm": {"choice": ["FedAvg", {"class_path": "IFCA", "space": {"num_clusters": {"grid": [1]}}}]}},
         "one study per algorithm"),
        ({"algorithm": {"choice": ["IFCA", "IFCA"]}}, "IFCA stands twice"),
        ({"algorithm": {"choice": [{"class_path": "IFCA", "spaces": {}}]}}, "is no algorithm"),
        ({"algorithm": "IFCA"}, "write algorithm: {choice"),
        ({"algorithm": {"choice": ["IFCA"]}, "algorithm.num_clusters": {"randint": [2, 4]}}, "in its own space"),
        ({"rounds": {"choice": [5, 10]}}, "rounds cannot be searched: all trials run the base's rounds; leave it out"),
        ({"seeds": {"choice": [[0], [1]]}}, "seeds cannot be searched: all trials run under the study's seeds"),
        ({"tracking.snapshots_every": {"choice": [1, 2]}}, "tracking.snapshots_every cannot be searched"),
    ],
)  # fmt: skip
def test_a_space_that_cannot_be_searched_is_refused(content: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        parse_space(content)


def test_values_become_options_of_their_own_algorithm_alone():
    space = parse_space({"algorithm": ALGORITHMS, "local.epochs": {"randint": [1, 3]}})
    values = {"algorithm": "IFCA", "IFCA.num_clusters": 3, "FedGroup.num_clusters": 2, "local.epochs": 1}
    assert space.words(values) == ["--algorithm", "IFCA", "--local.epochs", "1", "--algorithm.num_clusters", "3"]
    experiment = build(base(), space.words(values))
    assert (type(experiment.algorithm).__name__, experiment.algorithm.num_clusters) == ("IFCA", 3)
    other = build(base(), space.words(values | {"algorithm": "FedGroup", "FedGroup.eta_g": 0.05}))
    assert (other.algorithm.num_clusters, other.algorithm.eta_g, other.algorithm.pretrain.length) == (2, 0.05, 2)
    assert other.algorithm.pretrain_scale == 3  # the base's own, as it is the base's algorithm


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.lists(st.text("abc*", min_size=1)))
def test_a_value_comes_back_exactly_from_its_word(value: object):
    assert yaml.safe_load(as_word(value)) == value or float(as_word(value)) == value


def test_values_are_said_in_few_words():
    assert in_words({"eta_g": 1 / 3, "layers": '["fc*"]', "k": 4}) == 'eta_g = 0.3333, layers = ["fc*"], k = 4'
    assert in_words({}) == ""


def test_every_choice_is_a_corner_even_where_there_are_many():
    space = parse_space({f"o{k}": {"choice": list(range(k + 2))} for k in range(4)})
    corners = space.corners()
    assert len(corners) == 1 + 1 + 2 + 3 + 4
    assert {(key, value) for point in corners for key, value in point.items()} == {
        (f"o{k}", value) for k in range(4) for value in range(k + 2)
    }


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"algorithm.eta_gg": {"uniform": [0, 1]}}, r"no option 'eta_gg' \(did you mean eta_g\?\)"),
        ({"local.epoch": {"randint": [1, 3]}}, r"did you mean local.epochs\?"),
        ({"algorithm.eta_g": {"uniform": [-1, 1]}}, "algorithm.eta_g = -1: eta_g is -1"),
        ({"algorithm.measure": {"choice": ["edc", "cosine"]}}, "measure = cosine: .*'cosine' is not one of edc, madc"),
        ({"algorithm.num_clusters": {"randint": [2, 14]}}, "num_clusters = 13: .*only"),
        ({"algorithm": {"choice": ["FedAvg", "IFCAA"]}}, r"'IFCAA' is not known \(did you mean IFCA\?\)"),
        ({"algorithm": {"choice": ["own_slow.Slwo"]}}, r"own_slow has no class 'Slwo' \(did you mean Slow\?\)"),
        ({"algorithm": {"choice": ["own_slwo.Slow"]}}, "there is no module 'own_slwo'"),
        (
            {"algorithm": {"choice": [{"class_path": "own_slow.Slow", "space": {"rat": {"uniform": [0, 1]}}}]}},
            r"Slow has no option 'rat' \(did you mean rate\?\)",
        ),
        (
            {"algorithm": {"choice": [{"class_path": "own_slow.Slow", "init_args": {"rate": "fast"}}]}},
            "algorithm.rate: 'fast' is not a number",
        ),
    ],
)
def test_the_whole_space_is_checked_at_once(space: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check(space)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"cohort_size": {"choice": [5, 100]}}, "cohort_size = 100: .*100"),
        ({"data.validation": {"choice": [0.25, 0.0]}}, "data.validation = 0: .*no validation part"),
        ({"data.num_clients": {"randint": [12, 3000]}}, "data.num_clients = 2999: "),
        ({"algorithm.num_clusters": {"uniform": [2, 4]}}, "num_clusters = 2: .*'2.0' is not a whole number"),
        ({"algorithm.num_clusters": {"quniform": [2, 4, 1]}}, "num_clusters = 2: .*'2.0' is not a whole number"),
        ({"local.epochs": {"choice": [1, 0]}}, "local.epochs = 0: "),
    ],
)
def test_what_only_a_run_would_refuse_is_refused_at_once(space: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check(space)


def test_a_base_that_is_none_is_said_to_be_the_base(tmp_path: Path):
    study = Study(base(algorithm=None), {"algorithm.eta_g": {"uniform": [0, 1]}})
    with pytest.raises(InputError, match=r"^base: nothing says what to run \(no algorithm\)"):
        check_study(study)
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(InputError, match=r"^base: .*list\.yaml holds no experiment"):
        parse_study(["--config", str(study_file(tmp_path, base="list.yaml"))])
    with pytest.raises(InputError, match="base is 'quickstart'; read it first"):
        check_study(Study("quickstart", study.space))


def test_data_without_a_validation_part_are_refused():
    data = {"class_path": "Digits", "init_args": {"num_clients": 12, "validation": 0.0}}
    with pytest.raises(InputError, match=r"no validation part.*set data.validation"):
        check({"algorithm.eta_g": {"uniform": [0, 1]}}, data=data)


def test_the_latest_first_clustering_round_of_the_space_counts():
    space = {
        "algorithm": {"choice": ["FedAvg", {"class_path": "FLHC", "space": {"warmup_rounds": {"choice": [1, 3]}}}]}
    }
    assert first_clustering_round(check_study(Study(base(), space))[1][1:]) == 3


def test_a_study_is_read_and_options_change_it(tmp_path: Path):
    request = parse_study(["--config", str(study_file(tmp_path)), "--limits.trials", "7", "--ray.address", "auto"])
    assert request.study.limits.trials == 7
    assert request.address == "auto"
    assert request.study.space == STUDY["space"]
    assert request.study.base["rounds"] == 4


def test_a_base_is_found_beside_the_study_by_name_and_as_it_is(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(base(rounds=9)))
    near = parse_study(["--config", str(study_file(tmp_path, base="mine.yaml"))]).study.base
    packaged = parse_study(["--config", str(study_file(tmp_path, base="fedgroup/digits"))]).study.base
    assert (near["rounds"], packaged["name"]) == (9, "fedgroup-digits")
    assert str(tmp_path) in near["code"]
    assert base_config(base(baseline="FedAvg"))["baseline"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": "val/loss"}, r"'metrics' \(did you mean metric\?\)"),
        ({"base": "no/such"}, "no file 'no/such'"),
        ({"num_repeats": -1}, "num_repeats is -1"),
        ({"seeds": [1, 1]}, r"seeds is \[1, 1\]"),
        ({"name": "a/b"}, "without slashes"),
        ({"limits": {"trials": 0}}, "limits.trials is 0"),
        ({"limits": {"minutes": 0}}, "limits.minutes is 0"),
        ({"resources": {"cpus": 0}}, "resources.cpus is 0"),
        ({"resources": {"gpus": -1}}, "resources.gpus is -1"),
        ({"base": None}, "no base.*--config tune/quickstart"),
    ],
)
def test_a_study_that_cannot_be_used_is_refused(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        parse_study(["--config", str(study_file(tmp_path, **changes))])


def test_a_resumed_study_takes_no_other_options(tmp_path: Path):
    with pytest.raises(InputError, match="leave out --num_repeats"):
        parse_study(["--resume", str(tmp_path), "--num_repeats", "3"])
    with pytest.raises(InputError, match="holds no study to resume"):
        parse_study(["--resume", str(tmp_path)])
