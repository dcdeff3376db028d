"""Every kind of searcher and scheduler in real Ray, on a trainable that takes no time; and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from studies import ALGORITHMS, base, cluster  # noqa: F401  # a fixture
from synthetic import synthetic

from lit_cfl.errors import InputError
from lit_cfl.tune.cluster import connected
from lit_cfl.tune.domains import domains
from lit_cfl.tune.reporting import FINISHED, ROUNDS
from lit_cfl.tune.schedulers import first_halving, is_population_based, pauses, scheduler, within
from lit_cfl.tune.searchers import searcher
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.study import Limits, Resources, Study

METRIC = "val/weighted_accuracy"
ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}
MIXED = ETA | {"algorithm.measure": {"choice": ["edc", "madc"]}, "algorithm.num_clusters": {"choice": [2, 7, 30]}}
GRID = {"algorithm.eta_g": {"grid": [0.0, 0.5, 1.0]}}


def study(space: dict[str, Any], **changes: Any) -> Study:
    return Study(base(), space, **changes)


def fitted(study: Study, path: Path, samples: int) -> Any:
    from ray import tune as ray_tune

    space = study.searched()
    chosen = searcher(study, space)
    conditional = bool(space.algorithms) and getattr(chosen, "_space", None) is not None
    return ray_tune.Tuner(
        ray_tune.with_resources(synthetic, {"CPU": 1, "GPU": study.resources.gpus}),
        param_space={} if conditional else domains(space),
        tune_config=ray_tune.TuneConfig(
            metric=METRIC, mode="max", search_alg=chosen, num_samples=samples, reuse_actors=True,
            scheduler=scheduler(study, space, 8, 0),
        ),
        run_config=ray_tune.RunConfig(name="synthetic", storage_path=str(path), verbose=0),
    ).fit()  # fmt: skip


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("space", "options", "samples"),
    [
        (ETA, {}, 6),
        (GRID, {"scheduler": "FIFOScheduler"}, 1),
        (ETA, {"searcher": "OptunaSearch", "scheduler": "MedianStoppingRule"}, 6),
        (ETA, {"scheduler": "ray.tune.schedulers.HyperBandScheduler"}, 6),
        (MIXED, {"scheduler": "PopulationBasedTraining"}, 4),
        ({"algorithm": ALGORITHMS}, {"searcher": {"class_path": "ray.tune.search.optuna.OptunaSearch"}}, 6),
        ({"algorithm": ALGORITHMS}, {}, 6),
    ],
)
def test_each_searcher_and_scheduler_ends(space: dict[str, Any], options: dict[str, Any], samples: int, tmp_path: Path):
    results = fitted(study(space, **options), tmp_path, samples)
    assert results.num_errors == 0
    assert len(results) == (3 if space is GRID else samples)
    assert any(result.metrics[FINISHED] for result in results)
    early = [result for result in results if not result.metrics[FINISHED]]
    what = options.get("scheduler", "ASHAScheduler").rpartition(".")[2]
    if what == "PopulationBasedTraining":
        assert max(result.metrics["changes"] for result in results) > 1  # one went on from another's, with its own
        assert {result.config["algorithm.measure"] for result in results} <= {"edc", "madc"}
        assert {result.config["algorithm.num_clusters"] for result in results} <= {2, 7, 30}
    if what in ("PopulationBasedTraining", "FIFOScheduler"):
        assert early == []
    elif space is ETA:
        assert early
        best = max(results, key=lambda result: result.config["algorithm.eta_g"])
        assert best.metrics[FINISHED]
    if "algorithm" in space and options:  # Optuna asks for the values of one algorithm only
        names = [{key.partition(".")[0] for key in result.config if key != "algorithm"} for result in results]
        assert [{result.config["algorithm"]} for result in results] == names


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_trials_share_a_gpu_and_more_than_there_is_is_refused(tmp_path: Path):
    shared = study(GRID, resources=Resources(cpus=1, gpus=0.5))
    with connected(None, shared.resources):
        assert fitted(shared, tmp_path, 1).num_errors == 0
    with pytest.raises(InputError, match=r"resources.gpus is 2, but no node of the cluster has more than 1"):  # noqa: SIM117
        with connected(None, Resources(gpus=2)):
            pass


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (ETA, {"scheduler": "ASHASheduler"}, r"'ASHASheduler' is not known \(did you mean ASHAScheduler\?\)"),
        (ETA, {"searcher": {"class": "OptunaSearch"}}, "give class_path"),
        (ETA, {"scheduler": {"init_args": {"grace": 3}}}, r"no option 'grace' \(did you mean"),
        (ETA, {"scheduler": {"init_args": {"reduction_factor": 0.5}}}, "Reduction Factor"),
        (ETA, {"scheduler": {"init_args": {"grace_period": 3}}}, "grace_period is 3.*clusters only in round 4; give 4"),
        (GRID, {"searcher": "OptunaSearch"}, "a grid draws its own values"),
        (ETA, {"searcher": "OptunaSearch", "scheduler": "PopulationBasedTraining"}, "leave out searcher OptunaSearch"),
        (GRID, {"scheduler": "PopulationBasedTraining"}, "write choice or uniform for grid"),
        (
            ETA,
            {"scheduler": {"class_path": "PopulationBasedTraining", "init_args": {"burn_in_period": 2}}},
            "burn_in_period is 2.*clusters only in round 4; give 4",
        ),
        (
            ETA,
            {"scheduler": "HyperBandScheduler"},
            "first halves its trials after 2 rounds.*round 4; take ASHAScheduler",
        ),
        ({"algorithm": ALGORITHMS}, {"scheduler": "PopulationBasedTraining"}, "give it one algorithm a study"),
        ({"local.epochs": {"choice": [1, 2]}}, {"scheduler": "PopulationBasedTraining"}, "leave out local.epochs"),
        (ETA, {"scheduler": "PopulationBasedTraining", "seeds": [0, 1]}, "takes one seed a trial"),
    ],
)
def test_what_cannot_search_this_space_is_refused(space: dict[str, Any], options: dict[str, Any], message: str):
    asked = study(space, **options)
    with pytest.raises(InputError, match=message):
        searcher(asked, asked.searched()), scheduler(asked, asked.searched(), 8, 3)


def test_no_trial_is_stopped_before_its_algorithm_clusters():
    space = parse_space(ETA)
    asha = scheduler(study(ETA), space, 20, 12)
    assert min(rounds for rounds, _ in asha._brackets[0]._rungs) == 13
    assert (asha._max_t, asha._time_attr) == (20, ROUNDS)
    early = scheduler(study(ETA), space, 20, 0)
    assert min(rounds for rounds, _ in early._brackets[0]._rungs) == 5  # a quarter of the rounds
    assert scheduler(study(ETA, scheduler="MedianStoppingRule"), space, 20, 12)._grace_period == 13


@pytest.mark.parametrize(("rounds", "factor", "first"), [(8, 3, 2), (20, 3, 2), (81, 3, 1), (20, 4, 1), (9, 9, 1)])
def test_when_hyperband_first_halves(rounds: int, factor: int, first: int):
    options = {"class_path": "HyperBandScheduler", "init_args": {"reduction_factor": factor}}
    hyperband = scheduler(study(ETA, scheduler=options), parse_space(ETA), rounds, 0)
    assert first_halving(hyperband) == first


def test_a_hyperband_of_one_bracket_stops_nobody():
    options = {"class_path": "HyperBandScheduler", "init_args": {"reduction_factor": 90}}
    assert first_halving(scheduler(study(ETA, scheduler=options), parse_space(ETA), 8, 6)) == float("inf")


def test_values_that_were_multiplied_come_back_into_the_space():
    space = parse_space({
        "a": {"uniform": [0.5, 1.0]}, "b": {"quniform": [0, 1, 0.25]}, "c": {"randint": [2, 5]},
        "d": {"choice": [3, "x"]},
    })  # fmt: skip
    assert within(space, {"a": 1.2, "b": 0.6, "c": 5, "d": "x", "e": 9}) == {
        "a": 1.0,
        "b": 0.5,
        "c": 4,
        "d": "x",
        "e": 9,
    }
    assert within(space, {"a": 0.4, "b": 1.2, "c": 1, "d": 3}) == {"a": 0.5, "b": 1.0, "c": 2, "d": 3}


def test_so_many_trials_run_at_once_as_the_study_says():
    limited = study(ETA, limits=Limits(concurrent=3))
    assert searcher(limited, limited.searched()).max_concurrent == 3
    assert searcher(study(GRID), parse_space(GRID)).max_concurrent == 0  # as many as the resources allow


def test_who_pauses_and_who_copies():
    kinds = ("ASHAScheduler", "FIFOScheduler", "MedianStoppingRule", "HyperBandScheduler", "PopulationBasedTraining")
    assert [pauses(study(ETA, scheduler=kind)) for kind in kinds] == [False, False, True, True, True]
    assert [is_population_based(study(ETA, scheduler=kind)) for kind in kinds] == [False] * 4 + [True]
