"""Tests which spaces a study may search, and errors before anything starts."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from studies import ALGORITHMS, STUDY, base, study_file

from lit_cfl.config.variants import base_config, build
from lit_cfl.errors import InputError
from lit_cfl.tune.check import check_on_clients, check_study, first_clustering_round, notices
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.searchers import make_searcher
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import as_word, corners, format_values
from lit_cfl.tune.study import Limits, Study


def check(space: dict[str, Any], **changes: Any) -> None:
    """Runs all checks that a study must pass before its start."""
    study, default, corners = check_study(Study(base(**changes), space))
    check_on_clients(study, default, corners)


def test_each_distribution_is_read():
    space = parse_space(
        {
            "a": {"uniform": [0, 2]},
            "b": {"loguniform": [0.1, 1]},
            "c": {"uniform": [0, 1], "step": 0.5},
            "d": {"randint": [2, 5]},
            "e": {"choice": [["conv*"], None]},
            "f": {"lograndint": [1, 65]},
        }
    )
    assert [corners(p.distribution) for p in space.parameters] == [
        [0, 2],
        [0.1, 1],
        [0, 1],
        [2, 4],
        ['["conv*"]', "null"],
        [1, 64],
    ]
    assert not space.grid
    assert parse_space({"a": {"grid": [1, 2]}, "b": {"grid": [3, 4, 5]}}).size == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "space is empty"),
        ({"a": {"unifrom": [0, 1]}}, r"'unifrom' is not known \(did you mean uniform\?\)"),
        ({"a": [0, 1]}, "write one of uniform"),
        ({"a": {"uniform": [0, 1], "choice": [1]}}, "write one of uniform"),
        ({"a": {"uniform": [1, 0]}}, r"a: \[1, 0\] is not a range"),
        ({"a": {"uniform": [0, float("inf")]}}, "is not a range"),
        ({"a": {"uniform": [0]}}, "give a list of 2"),
        ({"a": {"loguniform": [0, 1]}}, "give a number above 0"),
        ({"a": {"uniform": [0, 1], "step": 2}}, "step is 2; give a number above 0"),
        ({"a": {"uniform": [0, 1], "step": 0}}, "step is 0; give a number above 0"),
        ({"a": {"uniform": [0, 1], "step": "x"}}, "step is x; give a number above 0"),
        ({1: {"unifrom": [0, 1]}}, "space: 1: 'unifrom' is not known"),
        ({"a": {"quniform": [0, 1, 0.5]}}, r"'quniform' is not known \(did you mean uniform\?\)"),
        ({"a": {"randint": [0.5, 2]}}, "not a range of whole numbers"),
        ({"a": {"randint": [3, 3]}}, "not a range of whole numbers"),
        ({"a": {"lograndint": [0, 8]}}, "lograndint starts at 0; give 1 or more"),
        ({"a": {"uniform": [0, 1], "step": 0.3}}, "step is 0.3, but 0 or 1 is not a multiple of it"),
        ({"a": {"randint": [0, 8], "step": 2}}, "step is 2, but only uniform takes a step"),
        ({"a": {"choice": [1, 2], "wen": {"b": 1}}}, "write one of uniform"),
        ({"a": {"choice": [1, 2], "when": "b"}}, "when is 'b'; write when: {OPTION: VALUE}"),
        ({"a": {"choice": [1, 2], "when": {"c": 1}}, "b": {"choice": [1]}}, "when names 'c', which is not searched"),
        ({"a": {"choice": [1, 2], "when": {"b": 1}}, "b": {"uniform": [0, 1]}}, r"not a choice; write b: \{choice"),
        (
            {"a": {"choice": [1, 2], "when": {"b": [1, 3]}}, "b": {"choice": [1, 2]}},
            "asks for b = 3, which is not one of its values; give one of 1, 2",
        ),
        (
            {"a": {"choice": [1], "when": {"b": 1}}, "b": {"choice": [1], "when": {"a": 1}}},
            "conditions of a, b depend on each other",
        ),
        (
            {"a": {"grid": [1, 2], "when": {"b": 1}}, "b": {"grid": [1, 2]}},
            "a grid tries every .* cannot have a `when`; remove it",
        ),
        ("[1", r"space is '\[1'; write an option and its values"),
        ({"a": {"choice": []}}, "is empty or repeats a value"),
        ({"a": {"choice": [1, 1]}}, "is empty or repeats a value"),
        ({"a": {"grid": [1]}, "b": {"uniform": [0, 1]}}, r"cannot try all values of b; write b: \{grid"),
        ({"a": {"grid": [1]}, "b": {"choice": [0, 1]}}, "b is a choice, but another option is a grid"),
        (
            {"algorithm": {"choice": ["FedAvg", {"class_path": "IFCA", "space": {"num_clusters": {"grid": [1]}}}]}},
            "one study per algorithm",
        ),
        ({"algorithm": {"choice": ["IFCA", "IFCA"]}}, "IFCA is listed twice"),
        (
            {
                "algorithm": {
                    "choice": [{"class_path": "IFCA", "init_args": {"k": 3}, "space": {"k": {"randint": [2, 5]}}}]
                }
            },
            "IFCA.k is in init_args and in space; leave it out of init_args to search it",
        ),
        ({"algorithm": {"choice": [{"class_path": "IFCA", "spaces": {}}]}}, "is not an algorithm"),
        ({"algorithm": "IFCA"}, "write algorithm: {choice"),
        ({"algorithm": {"choice": ["IFCA"], "when": {"a": 1}}}, "write algorithm: {choice"),
        (
            {"algorithm": {"choice": [{"class_path": "IFCA", "space": ["k"]}]}},
            r"space of IFCA is \['k'\]; write options",
        ),
        ({"algorithm": {"choice": [{"class_path": "IFCA", "init_args": "k"}]}}, "init_args of IFCA is 'k'; write opt"),
        (
            {"algorithm": {"choice": ["IFCA"]}, "algorithm.num_clusters": {"randint": [2, 4]}},
            "algorithm.num_clusters is given for all algorithms",
        ),
        ({"rounds": {"choice": [5, 10]}}, "rounds cannot be searched: all trials run the base's rounds; leave it out"),
        ({"seeds": {"choice": [[0], [1]]}}, "seeds cannot be searched: all trials run under the study's seeds"),
        ({"tracking.snapshots_every": {"choice": [1, 2]}}, "tracking.snapshots_every cannot be searched"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(content: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        parse_space(content)


def test_small_negative_values_are_not_taken_for_options():
    space = parse_space({"algorithm.tau": {"choice": [-5e-05, 0.5]}})
    built = build(base(algorithm=STOCFL), space.words({"algorithm.tau": -5e-05}))
    assert built.algorithm.tau == -5e-05


def test_values_become_options_of_their_own_algorithm_alone():
    space = parse_space({"algorithm": ALGORITHMS, "local.epochs": {"randint": [1, 3]}})
    values = {"algorithm": "IFCA", "IFCA.num_clusters": 3, "FedGroup.num_clusters": 2, "local.epochs": 1}
    assert space.words(values) == ["--algorithm", "IFCA", "--local.epochs=1", "--algorithm.num_clusters=3"]
    experiment = build(base(), space.words(values))
    assert (type(experiment.algorithm).__name__, experiment.algorithm.num_clusters) == ("IFCA", 3)
    other = build(base(), space.words(values | {"algorithm": "FedGroup", "FedGroup.eta_g": 0.05}))
    assert (other.algorithm.num_clusters, other.algorithm.eta_g, other.algorithm.pretrain.length) == (2, 0.05, 2)
    assert other.algorithm.pretrain_scale == 3  # the base's own value, since this is the base's algorithm


CONDITIONAL = {
    "algorithm.psi_budget": {
        "choice": [{"length": 5, "unit": "steps"}, {"length": 1, "unit": "epochs"}],
        "when": {"algorithm.psi": "update"},
    },
    "algorithm.psi": {"choice": ["gradient", "update"]},
    "algorithm.tau": {"uniform": [0.1, 0.8]},
}
STOCFL = {"class_path": "StoCFL", "init_args": {"tau": 0.5}}


def test_a_condition_leaves_out_what_does_not_matter():
    space = parse_space(CONDITIONAL)
    drawn = {
        "algorithm.psi_budget": '{"length": 5, "unit": "steps"}',
        "algorithm.psi": "gradient",
        "algorithm.tau": 0.5,
    }
    assert space.values_of(drawn) == {"algorithm.psi": "gradient", "algorithm.tau": 0.5}
    assert space.words(drawn) == ["--algorithm.psi=gradient", "--algorithm.tau=0.5"]
    update = drawn | {"algorithm.psi": "update"}
    assert space.values_of(update) == update
    experiment = build(base(algorithm=STOCFL), space.words(update))
    assert (experiment.algorithm.psi, experiment.algorithm.psi_budget.length) == ("update", 5)


def test_corners_differ_in_what_matters_and_each_condition_is_met():
    corners = parse_space(CONDITIONAL).corners()
    assert len(corners) == 2 + 2 * 2  # both ends of tau with gradient, and with update for each budget
    assert [
        point for point in corners if ("algorithm.psi_budget" in point) != (point["algorithm.psi"] == "update")
    ] == []
    many = CONDITIONAL | {"cohort_size": {"choice": list(range(1, 9))}}
    alone = parse_space(many).corners()  # one parameter changes at a time
    assert sum("algorithm.psi_budget" in point for point in alone) >= 2
    assert {point["algorithm.psi_budget"] for point in alone if "algorithm.psi_budget" in point} == {
        as_word(value) for value in CONDITIONAL["algorithm.psi_budget"]["choice"]
    }


def test_a_condition_of_a_condition_is_followed():
    space = parse_space(
        {
            "c": {"randint": [1, 3], "when": {"b": [True]}},
            "b": {"choice": [True, False], "when": {"a": ["x", "y"]}},
            "a": {"choice": ["x", "y", "z"]},
        }
    )
    assert [p.key for p in space.parameters] == ["a", "b", "c"]
    assert space.values_of({"a": "z", "b": True, "c": 1}) == {"a": "z"}
    assert space.values_of({"a": "y", "b": "true", "c": 1}) == {
        "a": "y",
        "b": "true",
        "c": 1,
    }  # in the form that searchers receive
    assert space.values_of({"a": "y", "b": False, "c": 1}) == {"a": "y", "b": False}


def test_conditions_within_an_algorithm_go_by_its_own_names():
    own = {name.removeprefix("algorithm."): what for name, what in CONDITIONAL.items()}
    own["psi_budget"] = own["psi_budget"] | {"when": {"psi": "update"}}
    space = parse_space({"algorithm": {"choice": ["FedAvg", {"class_path": "StoCFL", "space": own}]}})
    drawn = {"algorithm": "StoCFL", "StoCFL.psi": "gradient", "StoCFL.psi_budget": "{}", "StoCFL.tau": 0.5}
    assert space.values_of(drawn) == {"algorithm": "StoCFL", "StoCFL.psi": "gradient", "StoCFL.tau": 0.5}


def test_optuna_is_asked_for_what_matters_alone():
    study = Study(base(algorithm=STOCFL), CONDITIONAL, searcher="TPESampler")
    drawn = [make_searcher(replace(study, search_seed=k)).ask(0) or {} for k in range(8)]
    assert {point["algorithm.psi"] for point in drawn} == {"gradient", "update"}
    for point in drawn:
        assert ("algorithm.psi_budget" in point) == (point["algorithm.psi"] == "update")


@pytest.mark.parametrize("name", ["RandomSampler", "TPESampler"])
def test_whole_numbers_are_drawn_by_their_logarithm(name: str):
    study = Study(base(), {"batch": {"lograndint": [1, 1025]}}, searcher=name, limits=Limits(trials=64))
    chosen = make_searcher(study)
    values = [(chosen.ask(number) or {})["batch"] for number in range(10)]  # TPE draws its first ten settings at random
    assert {type(value) for value in values} == {int}
    assert 1 <= min(values) <= max(values) <= 1024
    assert median(values) < 256  # the median of a uniform distribution would be 512


def test_a_space_over_the_data_gets_a_note():
    experiment = build(base())
    assert notices(Study(base(), {"algorithm.eta_g": {"uniform": [0, 1]}}), experiment) == []
    space = {"data.rotations": {"choice": [[0, 90], [0, 180]]}, "data": {"choice": ["Digits"]}}
    (note,) = notices(Study(base(), space), experiment)
    assert note.startswith("data, data.rotations may change who the clients are")


def test_algorithms_that_may_be_scored_on_different_clients_get_a_note():
    study = Study(base(), {"algorithm": ALGORITHMS})
    assert notices(study, build(base())) == []  # every client is selected once, in turn
    (note,) = notices(study, build(base(selection="uniform")))
    assert "evaluation.clients: all in the base scores all trials on all clients" in note
    assert notices(study, build(base(selection="uniform", evaluation={"clients": "all"}))) == []


def test_an_algorithm_that_takes_an_option_from_anothers_base_gets_a_note():
    ifca = {"class_path": "IFCA", "space": {"weights": {"choice": ["equal", "examples"]}}}
    space = {"algorithm": {"choice": ["FedGroup", "FedAvg", ifca]}}
    own = {"class_path": "FedGroup", "init_args": {"num_clusters": 3, "eta_g": 0.1}}
    (note,) = notices(Study(base(algorithm=own), space), build(base(algorithm=own)))
    assert note == "IFCA runs with the base's num_clusters 3"  # IFCA has no eta_g, and neither has FedAvg
    ifca["init_args"] = {"num_clusters": 2}
    assert notices(Study(base(algorithm=own), space), build(base(algorithm=own))) == []


def test_values_of_a_step_are_decimal_so_that_the_bases_value_is_not_tried_twice():
    space = {"algorithm.eta_g": {"uniform": [0.1, 0.8], "step": 0.05}}
    study = Study(base(), space, limits=Limits(trials=64))
    drawn = {(make_searcher(study).ask(number) or {})["algorithm.eta_g"] for number in range(200)}
    assert drawn == {0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8}
    (point,) = replace(study, points=[{"algorithm.eta_g": 0.1 + 0.2}]).own_settings
    assert point == {"algorithm.eta_g": 0.3}


def optimizers(folder: Path) -> Path:
    adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}}
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    space = {
        "task.optimizer.lr": {"loguniform": [0.01, 0.1], "when": {"task.optimizer": [sgd]}},
        "task.optimizer": {"choice": [adam, sgd]},
        "task.net": {"choice": [{"class_path": "lit_cfl.nets.MLP", "init_args": {"hidden": 8}}, "MCLR"]},
        "algorithm": {"choice": ["FedAvg", {"class_path": "lit_cfl.algorithms.FedProx", "init_args": {"mu": 0.5}}]},
    }
    return study_file(folder, space=space)


def test_classes_with_their_arguments_are_searched_unchanged(tmp_path: Path):
    """The parser would fill in all defaults of a class named by its full path, even `params: None` of Adam."""
    study = parse_study(["--config", str(optimizers(tmp_path))]).study
    assert study.space == yaml.safe_load(optimizers(tmp_path).read_text())["space"]
    _, _, corners = check_study(study)
    tried = {
        (type(one.algorithm).__name__, type(one.task()).__name__, type(one.task().net).__name__) for _, one in corners
    }
    assert len(tried) == 2 * 1 * 2
    rates = [one.to_dict()["task"]["init_args"]["optimizer"] for _, one in corners]
    assert {(o["class_path"], o["init_args"]["lr"]) for o in rates} == {
        ("torch.optim.Adam", 0.001),
        ("torch.optim.SGD", 0.01),
        ("torch.optim.SGD", 0.1),
    }
    assert study.whole_base == base_config(base(), tmp_path)  # the base is unchanged


def test_a_trial_lists_the_folders_of_the_studys_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker's current folder belongs to a Ray session, and changes with each resume."""
    content = base_config(base(), tmp_path)
    session = tmp_path / "session"
    session.mkdir()
    monkeypatch.chdir(session)
    assert build(content, ["--algorithm.eta_g", "0.1"]).to_dict()["code"] == content["code"]
    assert str(tmp_path) in content["code"]


def test_an_option_that_is_given_whole_is_not_given_in_parts(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be given on the command line; write rounds into the study's base"):
        parse_study(["--config", str(study_file(tmp_path)), "--base.rounds", "8"])


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.lists(st.text("abc*", min_size=1)))
def test_a_value_comes_back_exactly_from_its_word(value: object):
    assert yaml.safe_load(as_word(value)) == value or float(as_word(value)) == value


def test_values_are_formatted_in_few_words():
    assert format_values({"eta_g": 1 / 3, "layers": '["fc*"]', "k": 4}) == 'eta_g = 0.3333, layers = ["fc*"], k = 4'
    assert format_values({}) == ""


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
        ({"local.epoch": {"randint": [1, 3]}}, r"local has no option 'epoch' \(did you mean epochs\?\)"),
        ({"algorithm.eta_g": {"uniform": [-1, 1]}}, "algorithm.eta_g = -1: eta_g is -1"),
        ({"algorithm.measure": {"choice": ["edc", "cosine"]}}, "measure = cosine: .*'cosine'; give edc or madc"),
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
            "algorithm.rate is 'fast'; give a number",
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
        (
            {"algorithm.num_clusters": {"uniform": [2, 4]}},
            "num_clusters = 2: .*'2.0'; give auto or a whole number; search whole numbers by randint",
        ),
        ({"algorithm.num_clusters": {"uniform": [2, 4], "step": 1}}, "num_clusters = 2: .*'2.0'; give auto or"),
        ({"local.epochs": {"choice": [1, 0]}}, "local.epochs = 0: "),
    ],
)
def test_what_only_a_run_would_refuse_is_refused_at_once(space: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check(space)


def test_an_invalid_base_is_named_as_the_base(tmp_path: Path):
    study = Study(base(algorithm=None), {"algorithm.eta_g": {"uniform": [0, 1]}})
    with pytest.raises(InputError, match=r"^base: nothing says what to run \(no algorithm\)"):
        check_study(study)
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(InputError, match=r"^base: .*list\.yaml holds a list instead of options"):
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
    assert first_clustering_round(check_study(Study(base(), space))[2]) == 3


def test_a_study_is_read_and_options_change_it(tmp_path: Path):
    request = parse_study(["--config", str(study_file(tmp_path)), "--limits.trials", "7", "--ray.address", "auto"])
    assert request.study.limits.trials == 7
    assert request.address == "auto"
    assert request.study.space == STUDY["space"]
    assert request.study.base["rounds"] == 4


def test_a_base_is_found_next_to_the_study_or_by_name_and_its_baseline_is_dropped(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(base(rounds=9)))
    near = parse_study(["--config", str(study_file(tmp_path, base="mine.yaml"))]).study.base
    packaged = parse_study(["--config", str(study_file(tmp_path, base="fedgroup/digits"))]).study.base
    assert (near["rounds"], packaged["name"]) == (9, "fedgroup-digits")
    assert str(tmp_path) in near["code"]
    assert base_config(base(baseline="FedAvg"))["baseline"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": "val/loss"}, r"'metrics' \(did you mean --metric\?\)"),
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
