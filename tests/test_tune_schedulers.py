"""Every kind of searcher and scheduler in real Ray, on a trainable that takes no time; and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from studies import ALGORITHMS, base, cluster  # noqa: F401  # a fixture

from lit_cfl.errors import InputError
from tune.cluster import connected
from tune.domains import domains, is_population_based, pauses, scheduler, searcher
from tune.reporting import FINISHED, ROUNDS
from tune.space_file import parse_space
from tune.study import Resources, Study

METRIC = "val/weighted_accuracy"
ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}
GRID = {"algorithm.eta_g": {"grid": [0.0, 0.5, 1.0]}}


def study(space: dict[str, Any], **changes: Any) -> Study:
    return Study(base(), space, **changes)


def synthetic(config: dict[str, Any]) -> None:
    """Gets better by its eta_g each round, for eight rounds."""
    import tempfile

    from ray import tune as ray_tune

    checkpoint, first = ray_tune.get_checkpoint(), 1
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = int((Path(folder) / "round.txt").read_text()) + 1
    eta = config.get("algorithm.eta_g", config.get("FedGroup.eta_g", 0.05 * config.get("IFCA.num_clusters", 0)))
    for number in range(first, 9):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "round.txt").write_text(str(number))
            told = {METRIC: eta * number, ROUNDS: number, FINISHED: number == 8}
            ray_tune.report(told, checkpoint=ray_tune.Checkpoint.from_directory(folder))


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
        (ETA, {"scheduler": "PopulationBasedTraining"}, 4),
        ({"algorithm": ALGORITHMS}, {"searcher": {"class_path": "ray.tune.search.optuna.OptunaSearch"}}, 6),
        ({"algorithm": ALGORITHMS}, {}, 6),
    ],
)
def test_each_searcher_and_scheduler_ends(space: dict[str, Any], options: dict[str, Any], samples: int, tmp_path: Path):
    results = fitted(study(space, **options), tmp_path, samples)
    assert results.num_errors == 0
    assert len(results) == (3 if space is GRID else samples)
    assert any(result.metrics[FINISHED] for result in results)
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
        (ETA, {"scheduler": {"init_args": {"grace_period": 3}}}, "grace_period is 3.*clusters only in round 3; give 4"),
        (GRID, {"searcher": "OptunaSearch"}, "a grid draws its own values"),
        (ETA, {"searcher": "OptunaSearch", "scheduler": "PopulationBasedTraining"}, "leave out searcher OptunaSearch"),
        (GRID, {"scheduler": "PopulationBasedTraining"}, "write choice or uniform for grid"),
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


def test_who_pauses_and_who_copies():
    kinds = ("ASHAScheduler", "FIFOScheduler", "MedianStoppingRule", "HyperBandScheduler", "PopulationBasedTraining")
    assert [pauses(study(ETA, scheduler=kind)) for kind in kinds] == [False, False, True, True, True]
    assert [is_population_based(study(ETA, scheduler=kind)) for kind in kinds] == [False] * 4 + [True]
