"""Every kind of searcher and scheduler in real Ray, on a trainable that takes no time; and what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.tune import CheckpointConfig
from studies import ALGORITHMS, base, study_file
from synthetic import synthetic

from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.tune.cluster import connected
from lit_cfl.tune.record import ROUNDS
from lit_cfl.tune.schedulers import first_halving, is_population_based, pauses, scheduler, within
from lit_cfl.tune.searchers import searcher
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.study import Limits, Resources, Study
from lit_cfl.tune.trials import GivenSetting, Trials
from lit_cfl.tune.tuner import TrialSource

METRIC = "val/weighted_accuracy"
ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}
MIXED = ETA | {"algorithm.measure": {"choice": ["edc", "madc"]}, "algorithm.num_clusters": {"choice": [2, 7, 30]}}
GRID = {"algorithm.eta_g": {"grid": [0.0, 0.5, 1.0]}}


def only(groups: Any) -> Any:
    """The scheduler of a study of one algorithm."""
    (one,) = groups.of_algorithm.values()
    return one


def study(space: dict[str, Any], **changes: Any) -> Study:
    return Study(base(), space, **changes)


def fitted(study: Study, path: Path, samples: int) -> tuple[Any, Trials]:
    """A study of the synthetic trainable in Ray, which goes the way of a real one from its trials on."""
    from ray import tune as ray_tune

    space = study.searched()
    first = [GivenSetting("default", {"algorithm.eta_g": 0.001}, inside=False)]
    trials = Trials(path / "trials", first, searcher(study, space), samples, answers=not is_population_based(study))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1" if trials.searcher.learns else str(samples))
        results = ray_tune.Tuner(
            ray_tune.with_resources(synthetic, {"CPU": study.resources.cpus, "GPU": study.resources.gpus}),
            tune_config=ray_tune.TuneConfig(
                metric=METRIC,
                mode="max",
                search_alg=TrialSource(trials, space),
                reuse_actors=True,
                scheduler=scheduler(study, space, 8, 0),
            ),
            run_config=ray_tune.RunConfig(name="synthetic", storage_path=str(path), verbose=0),
        ).fit()
    return results, trials


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("space", "options", "samples"),
    [
        (ETA, {}, 7),
        (GRID, {"scheduler": "FIFOScheduler"}, 4),
        (ETA, {"searcher": "OptunaSearch", "scheduler": "MedianStoppingRule"}, 7),
        (ETA, {"scheduler": "ray.tune.schedulers.HyperBandScheduler"}, 7),
        (MIXED, {"scheduler": "PopulationBasedTraining"}, 5),
        ({"algorithm": ALGORITHMS}, {"searcher": {"class_path": "ray.tune.search.optuna.OptunaSearch"}}, 7),
        ({"algorithm": ALGORITHMS}, {"scheduler": "HyperBandScheduler"}, 7),
        (ETA, {"second_metric": "traffic/mib"}, 5),
    ],
)
def test_each_searcher_and_scheduler_ends(space: dict[str, Any], options: dict[str, Any], samples: int, tmp_path: Path):
    asked = study(space, **options)
    if not pauses(asked):  # one process, which takes 7 s of a core to start
        asked = replace(asked, resources=Resources(cpus=2))
    results, trials = fitted(asked, tmp_path, samples)
    assert results.num_errors == 0
    records = list(trials.records.values())
    trained = [record for record in records if record.repeats is None]
    assert trials.over
    assert len(trained) == len(results) == samples or trials.why_over
    assert {record.status for record in trained} <= {"finished", "stopped"}
    assert (records[0].status, records[0].told[METRIC]) == ("finished", 0.008)  # the worst by far, and never stopped
    early = [record for record in trained if record.status == "stopped"]
    what = options.get("scheduler", "ASHAScheduler").rpartition(".")[2]
    if what == "PopulationBasedTraining":
        values = [record.values for record in trained[1:]]
        changes = [result.metrics["changes"] for result in results]
        assert max(changes) > 1  # one went on from another's, with its own
        assert changes[0] == 1
        assert {one["algorithm.measure"] for one in values} <= {"edc", "madc"}
        assert {one["algorithm.num_clusters"] for one in values} <= {2, 7, 30}
    if what in ("PopulationBasedTraining", "FIFOScheduler") or "second_metric" in options:
        assert early == []
    elif space is ETA:
        assert early
        best = max(trained, key=lambda record: record.values["algorithm.eta_g"])
        assert best.status == "finished"
    if "algorithm" in space:  # values of one algorithm only
        names = [{key.partition(".")[0] for key in record.values if key != "algorithm"} for record in trained[1:]]
        assert [{record.values["algorithm"]} for record in trained[1:]] == names


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_trials_share_a_gpu_and_more_than_there_is_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The Ray is one that a person has started for something else."""
    shared = study(GRID, resources=Resources(cpus=1, gpus=0.5))
    with connected(None, shared.resources):
        assert fitted(shared, tmp_path, 4)[0].num_errors == 0
    asked = ["tune", "--config", str(study_file(tmp_path)), "--study_dir", str(tmp_path / "study")]
    for kind, most in (("cpus", 2), ("gpus", 1)):
        assert main([*asked, f"--resources.{kind}", "4"]) == 2
        message = f"resources.{kind} is 4, but no node of the cluster has more than {most}"
        assert message in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
    assert ray.is_initialized()  # it was not the study's to end


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (ETA, {"scheduler": "ASHASheduler"}, r"'ASHASheduler' is not known \(did you mean ASHAScheduler\?\)"),
        (ETA, {"scheduler": "HyperBandForBOHB"}, "'HyperBandForBOHB' is not known"),
        (ETA, {"searcher": {"class": "OptunaSearch"}}, "give class_path"),
        (ETA, {"scheduler": {"init_args": {"grace": 3}}}, r"no option 'grace' \(did you mean"),
        (ETA, {"scheduler": {"init_args": {"reduction_factor": 0.5}}}, "Reduction Factor"),
        (ETA, {"scheduler": {"init_args": {"grace_period": 3}}}, "grace_period is 3.*clusters only in round 4; give 4"),
        (GRID, {"searcher": "OptunaSearch"}, "a grid draws its own values"),
        (
            GRID,
            {"searcher": {"class_path": "BasicVariantGenerator", "init_args": {"random_state": 2}}},
            "leave out 'random_state': a grid takes no options",
        ),
        (
            ETA,
            {"searcher": {"class_path": "BasicVariantGenerator", "init_args": {"max_concurrent": 2}}},
            "leave out 'max_concurrent': limits.concurrent says it",
        ),
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


class Controller:
    """Ray's controller with trials that report when they are told to."""

    search_alg = None

    def __init__(self, groups: Any) -> None:
        self.groups, self.trials = groups, []
        groups.set_search_properties(METRIC, "max")

    def get_trials(self) -> list[Any]:
        return self.trials

    def get_live_trials(self) -> set[Any]:
        return {trial for trial in self.trials if trial.status in ("RUNNING", "PAUSED", "PENDING")}

    def _schedule_trial_save(self, trial: Any, result: dict[str, Any]) -> str:
        return f"a checkpoint of {trial.trial_id}"

    def stop_trial(self, trial: Any) -> None:
        trial.status = "TERMINATED"
        self.groups.on_trial_remove(self, trial)

    def add(self, number: int, algorithm: str, **values: Any) -> Any:
        trial = Fake(f"{number:04d}", {"algorithm": algorithm} | values)
        self.trials.append(trial)
        self.groups.on_trial_add(self, trial)
        return trial

    def reports(self, trial: Any, rounds: int, figure: float, **more: Any) -> str:
        decision = str(self.groups.on_trial_result(self, trial, {ROUNDS: rounds, METRIC: figure} | more))
        trial.status = {"STOP": "TERMINATED", "PAUSE": "PAUSED"}.get(decision, "RUNNING")
        return decision


class Fake:
    """One of Ray's trials."""

    is_saving, checkpoint, experiment_tag = False, None, ""
    run_metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace(checkpoint_config=CheckpointConfig()))
    temporary_state = SimpleNamespace(saving_to=None)

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")

    def __init__(self, trial_id: str, config: dict[str, Any]) -> None:
        self.trial_id, self.config, self.status = trial_id, config, "RUNNING"


TWO = {"algorithm": {"choice": ["FedAvg", "StoCFL"]}}


@pytest.mark.parametrize("kind", ["ASHAScheduler", "MedianStoppingRule"])
def test_a_trial_is_judged_against_trials_of_its_own_algorithm(kind: str):
    controller = Controller(scheduler(study(TWO, scheduler=kind), parse_space(TWO), 16, 0))
    default = controller.add(0, "FedAvg")
    fast = [controller.add(number, "FedAvg") for number in range(1, 6)]
    slow = [controller.add(number, "StoCFL") for number in range(6, 9)]
    for rounds in (4, 8):
        for trial in fast[:-1]:
            assert controller.reports(trial, rounds, 0.9) == "CONTINUE"
        for trial in slow:  # a tenth of what FedAvg has by now
            assert controller.reports(trial, rounds, 0.09) == "CONTINUE"
        assert controller.reports(default, rounds, 0.01) == "CONTINUE"  # it is judged against nobody
    assert controller.reports(fast[-1], 8, 0.5) == "STOP"
    assert {type(one).__name__ for one in controller.groups.of_algorithm.values()} == {
        kind.replace("ASHA", "AsyncHyperBand")
    }


def test_hyperband_halves_the_trials_of_each_algorithm_alone():
    controller = Controller(scheduler(study(TWO, scheduler="HyperBandScheduler"), parse_space(TWO), 9, 0))
    groups = controller.groups
    default = controller.add(0, "FedAvg")
    fast, slow = (
        [controller.add(k, name) for k in numbers]
        for name, numbers in (("FedAvg", range(1, 7)), ("StoCFL", range(7, 13)))
    )
    brackets = {name: one._hyperbands[0] for name, one in groups.of_algorithm.items()}
    assert {trial for bracket in brackets["FedAvg"] for trial in bracket.current_trials()} == set(fast)
    assert {trial for bracket in brackets["StoCFL"] for trial in bracket.current_trials()} == set(slow)
    assert controller.reports(default, 9, 0.0) == "CONTINUE"
    paused = fast[3]  # in a bracket that halves after three rounds
    assert controller.reports(paused, 3, 0.9) == "PAUSE"
    for trial in (default, *fast, *slow):
        trial.status = "RUNNING" if trial is not paused else "PAUSED"
    assert groups.choose_trial_to_run(controller) is None  # the paused one waits for those of its own algorithm
    slow[0].status = "PENDING"
    assert groups.choose_trial_to_run(controller) is slow[0]


@pytest.mark.parametrize("ends", ["error", "complete"])
def test_trials_that_hyperband_has_paused_go_on_when_the_last_of_them_ends_short_of_its_milestone(ends: str):
    controller = Controller(scheduler(study(ETA, scheduler="HyperBandScheduler"), parse_space(ETA), 27, 0))
    trials = [controller.add(number, "") for number in range(1, 21)]
    bracket = only(controller.groups)._hyperbands[0][2]
    mine = trials[10:]
    assert set(bracket.current_trials()) == set(mine)
    for figure, trial in enumerate(mine):  # all come to the first milestone: the bracket is cut to a third
        controller.reports(trial, 3, figure / 10)
    left = [trial for trial in mine if not trial.is_finished()]
    assert len(left) == 4
    for trial in left:
        trial.status = "RUNNING"
    bracket.trials_to_unpause.clear()
    *others, last = left
    for trial in others:
        assert controller.reports(trial, int(bracket._cumul_r), 0.5) == "PAUSE"
    last.status = "ERROR" if ends == "error" else "TERMINATED"
    if ends == "error":
        controller.groups.on_trial_error(controller, last)
    else:
        controller.groups.on_trial_complete(controller, last, {})
    assert bracket.trials_to_unpause


def population(size: int, **options: Any) -> tuple[Controller, list[Any]]:
    """A population beside the default setting."""
    kind = {"class_path": "PopulationBasedTraining", "init_args": {"perturbation_interval": 4, **options}}
    controller = Controller(scheduler(study(ETA, scheduler=kind), parse_space(ETA), 8, 0))
    trials = [controller.add(number, "", **{"algorithm.eta_g": 0.5}) for number in range(size + 1)]
    return controller, trials[1:]


@pytest.mark.parametrize("finished", [False, True])
def test_a_trial_of_a_population_that_has_ended_goes_on_from_no_other(finished: bool, monkeypatch: pytest.MonkeyPatch):
    controller, trials = population(4)
    copied: list[Any] = []
    monkeypatch.setattr(only(controller.groups), "_exploit", lambda _, trial, other: copied.append((trial, other)))
    for trial, figure in zip(trials, (0.1, 0.7, 0.8, 0.9), strict=True):  # each is the best so far, and saved
        assert controller.reports(trial, 4, figure) == "CONTINUE"
    assert controller.reports(trials[0], 8, 0.1, finished=finished) == "CONTINUE"
    assert copied == ([] if finished else [(trials[0], trials[3])])


@pytest.mark.parametrize("end", ["on_trial_complete", "on_trial_error"])
def test_a_synchronous_population_goes_on_without_a_trial_that_ends_before_the_others(end: str):
    controller, trials = population(3, synch=True)
    for trial in trials[:2]:
        assert controller.reports(trial, 4, 0.5) == "PAUSE"
    assert controller.groups.choose_trial_to_run(controller) is None  # both wait for the third
    trials[2].status = "ERROR" if end == "on_trial_error" else "TERMINATED"
    result = () if end == "on_trial_error" else ({ROUNDS: 3, METRIC: 0.1, "error": "diverged"},)
    getattr(controller.groups, end)(controller, trials[2], *result)
    assert controller.groups.choose_trial_to_run(controller) in trials[:2]


@pytest.mark.parametrize("kind", ["PopulationBasedTraining", "HyperBandScheduler"])
def test_a_scheduler_that_pauses_trials_needs_all_of_them_at_once(kind: str):
    few = study(ETA, scheduler=kind, limits=Limits(trials=9, concurrent=4))
    with pytest.raises(InputError, match=rf"limits.concurrent is 4, but {kind} pauses trials to compare all 9"):
        scheduler(few, parse_space(ETA), 8, 0)
    scheduler(replace(few, limits=Limits(trials=9, concurrent=9)), parse_space(ETA), 8, 0)
    scheduler(replace(few, scheduler="ASHAScheduler"), parse_space(ETA), 8, 0)


def test_no_trial_is_stopped_before_its_algorithm_clusters():
    space = parse_space(ETA)
    asha = only(scheduler(study(ETA), space, 20, 12))
    assert min(rounds for rounds, _ in asha._brackets[0]._rungs) == 13
    assert (asha._max_t, asha._time_attr) == (20, ROUNDS)
    early = only(scheduler(study(ETA), space, 20, 0))
    assert min(rounds for rounds, _ in early._brackets[0]._rungs) == 5  # a quarter of the rounds
    for first, grace in ((12, 13), (0, 5)):
        assert only(scheduler(study(ETA, scheduler="MedianStoppingRule"), space, 20, first))._grace_period == grace


@pytest.mark.parametrize(("rounds", "factor", "first"), [(8, 3, 2), (20, 3, 2), (81, 3, 1), (20, 4, 1), (9, 9, 1)])
def test_when_hyperband_first_halves(rounds: int, factor: int, first: int):
    options = {"class_path": "HyperBandScheduler", "init_args": {"reduction_factor": factor}}
    hyperband = only(scheduler(study(ETA, scheduler=options), parse_space(ETA), rounds, 0))
    assert first_halving(hyperband) == first


def test_a_hyperband_of_one_bracket_stops_nobody():
    options = {"class_path": "HyperBandScheduler", "init_args": {"reduction_factor": 90}}
    assert first_halving(only(scheduler(study(ETA, scheduler=options), parse_space(ETA), 8, 6))) == float("inf")


def test_values_that_were_multiplied_come_back_into_the_space():
    space = parse_space(
        {
            "a": {"uniform": [0.5, 1.0]},
            "b": {"quniform": [0, 1, 0.25]},
            "c": {"randint": [2, 5]},
            "d": {"choice": [3, "x"]},
        }
    )
    assert within(space, {"a": 1.2, "b": 0.6, "c": 5, "d": "x", "e": 9}) == {
        "a": 1.0,
        "b": 0.5,
        "c": 4,
        "d": "x",
        "e": 9,
    }
    assert within(space, {"a": 0.4, "b": 1.2, "c": 1, "d": 3}) == {"a": 0.5, "b": 1.0, "c": 2, "d": 3}


def test_who_pauses_and_who_copies():
    kinds = ("ASHAScheduler", "FIFOScheduler", "MedianStoppingRule", "HyperBandScheduler", "PopulationBasedTraining")
    assert [pauses(study(ETA, scheduler=kind)) for kind in kinds] == [False, False, True, True, True]
    assert [is_population_based(study(ETA, scheduler=kind)) for kind in kinds] == [False] * 4 + [True]
