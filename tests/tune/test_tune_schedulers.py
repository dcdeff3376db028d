"""Tests every searcher and scheduler, and their errors, in real Ray on a trainable that takes no time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from studies import ALGORITHMS, base, study_file
from synthetic import synthetic
from tune_trials import new_trials

from lit_cfl.cli.main import main
from lit_cfl.errors import InputError
from lit_cfl.tune.check import prepare
from lit_cfl.tune.cluster import connect_to_ray
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import NUMBER, ROUNDS
from lit_cfl.tune.schedulers import EarlierTrial, make_scheduler, stops_early
from lit_cfl.tune.searchers import make_searcher
from lit_cfl.tune.study import Resources, Study
from lit_cfl.tune.trials import GivenSetting, Trials
from lit_cfl.tune.tuner import TrialSource, earlier_trials

METRIC = "val/weighted_accuracy"
ETA = {"algorithm.eta_g": {"uniform": [0.0, 1.0]}}
GRID = {"algorithm.eta_g": {"grid": [0.0, 0.5, 1.0]}}


def only(groups: Any) -> Any:
    """Returns the scheduler of a study with one algorithm."""
    (one,) = groups.of_algorithm.values()
    return one


def study(space: dict[str, Any], **changes: Any) -> Study:
    return Study(base(), space, **changes)


def fitted(study: Study, path: Path, samples: int) -> tuple[Any, Trials]:
    """Runs a study of the synthetic trainable in Ray."""
    from ray import tune as ray_tune

    first = [GivenSetting("default", {"algorithm.eta_g": 0.001}, inside=False)]
    grid = study.search_space.combinations() if study.search_space.grid else []
    first += [GivenSetting("search", values) for values in grid]
    trials = Trials(path / "trials", first, make_searcher(study), samples)
    learns = trials.searcher is not None and trials.searcher.learns
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1" if learns else str(samples))
        results = ray_tune.Tuner(
            ray_tune.with_resources(synthetic, {"CPU": study.resources.cpus, "GPU": study.resources.gpus}),
            tune_config=ray_tune.TuneConfig(
                metric=METRIC,
                mode="max",
                num_samples=-1,
                search_alg=TrialSource(trials, METRIC, print),
                reuse_actors=True,
                scheduler=make_scheduler(study, 8, 0),
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
        (ETA, {"searcher": "TPESampler", "scheduler": "MedianStoppingRule"}, 7),
        ({"algorithm": ALGORITHMS}, {"searcher": {"class_path": "TPESampler"}}, 7),
        (ETA, {"searcher": "optuna.samplers.QMCSampler", "scheduler": "ray.tune.schedulers.ASHAScheduler"}, 7),
        (ETA, {"second_metric": "traffic/mib"}, 5),
    ],
)
def test_each_searcher_and_scheduler_ends(space: dict[str, Any], options: dict[str, Any], samples: int, tmp_path: Path):
    asked = study(space, **options, resources=Resources(cpus=2))  # one process, which takes 7 s of CPU time to start
    results, trials = fitted(asked, tmp_path, samples)
    assert results.num_errors == 0
    records = list(trials.records.values())
    trained = [record for record in records if record.repeats is None]
    assert trials.over
    assert len(trained) == len(results) == samples or trials.why_over
    assert {record.status for record in trained} <= {"finished", "stopped"}
    first = records[0]
    assert (first.status, first.last_result[METRIC]) == ("finished", 0.008)  # by far the worst trial, but never stopped
    early = [record for record in trained if record.status == "stopped"]
    what = options.get("scheduler", "ASHAScheduler").rpartition(".")[2]
    if what == "FIFOScheduler" or "second_metric" in options:
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
def test_trials_share_a_gpu_and_more_than_the_machine_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Uses a running Ray, which the study must not stop."""
    shared = study(GRID, resources=Resources(cpus=1, gpus=0.5))
    with connect_to_ray(None, shared.resources):
        assert fitted(shared, tmp_path, 4)[0].num_errors == 0
    asked = ["tune", "--config", str(study_file(tmp_path)), "--study_dir", str(tmp_path / "study")]
    for kind, most in (("cpus", 2), ("gpus", 1)):
        assert main([*asked, f"--resources.{kind}", "4"]) == 2
        message = f"resources.{kind} is 4, but no node of the cluster has more than {most}"
        assert message in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
    assert ray.is_initialized()  # the study does not end a Ray that others started


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (ETA, {"scheduler": "ASHASheduler"}, r"'ASHASheduler' cannot be used \(did you mean ASHAScheduler\?\)"),
        (ETA, {"scheduler": "HyperBandScheduler"}, "'HyperBandScheduler' cannot be used.*Give one of ASHAScheduler, "),
        (
            ETA,
            {"scheduler": "ray.tune.schedulers.PopulationBasedTraining"},
            "cannot be used.* MedianStoppingRule, FIFO",
        ),
        (ETA, {"scheduler": {"class_path": "MedianStoppingRule", "init_args": {"hard_stop": False}}}, "leave it out"),
        (ETA, {"scheduler": "optuna.samplers.TPESampler"}, "'optuna.samplers.TPESampler' cannot be used"),
        (ETA, {"searcher": "ray.tune.search.hyperopt.HyperOptSearch"}, "cannot be used.* TPESampler"),
        (ETA, {"searcher": "pathlib.Path"}, "'pathlib.Path' cannot be used"),
        (ETA, {"searcher": {"class": "TPESampler"}}, "give class_path"),
        (ETA, {"scheduler": {"init_args": {"grace": 3}}}, r"no option 'grace' \(did you mean"),
        (ETA, {"scheduler": {"init_args": {"reduction_factor": 0.5}}}, "Reduction Factor"),
        (ETA, {"scheduler": {"init_args": {"grace_period": 3}}}, "grace_period is 3.*clusters only in round 4; give 5"),
        (ETA, {"scheduler": {"init_args": {"grace_period": "5"}}}, "scheduler .*: '>=' not supported"),
        (ETA, {"searcher": {"init_args": {"seed": "a"}}}, "searcher: seed is 'a'; give a whole number"),
        (ETA, {"searcher": "own.TPESampler"}, "'own.TPESampler' cannot be used"),
        (ETA, {"searcher": "TPESampl"}, r"searcher 'TPESampl' cannot be used \(did you mean TPESampler\?\)"),
        (ETA, {"searcher": "OptunaSearch"}, "'OptunaSearch' cannot be used.*TPESampler"),
        (ETA, {"searcher": "TPE"}, r"'TPE' cannot be used \(did you mean TPESampler\?\)"),
        (ETA, {"searcher": "GridSampler"}, "'GridSampler' cannot be used"),
        (GRID, {"searcher": "TPESampler"}, "a grid tries all its values without a searcher"),
        (
            GRID,
            {"searcher": {"class_path": "RandomSampler", "init_args": {"seed": 2}}},
            "a grid tries all its values without a searcher; leave out searcher RandomSampler",
        ),
        (
            ETA,
            {"searcher": {"class_path": "RandomSampler", "init_args": {"max_concurrent": 2}}},
            "searcher RandomSampler has no option 'max_concurrent'",
        ),
    ],
)
def test_what_cannot_search_this_space_is_refused(space: dict[str, Any], options: dict[str, Any], message: str):
    asked = study(space, **options)
    with pytest.raises(InputError, match=message):
        make_searcher(asked), make_scheduler(asked, 8, 3)


class Controller:
    """Stand-in for Ray's controller, with trials that report on command."""

    def __init__(self, groups: Any) -> None:
        self.groups = groups
        groups.set_search_properties(METRIC, "max")

    def add(self, number: int, algorithm: str) -> Any:
        trial = EarlierTrial(
            str(number), {NUMBER: number, "algorithm": algorithm}, (), ended=False
        )  # has the attributes of a trial of Ray's that are used
        self.groups.on_trial_add(self, trial)
        return trial

    def reports(self, trial: Any, rounds: int, figure: float) -> str:
        return str(self.groups.on_trial_result(self, trial, {ROUNDS: rounds, METRIC: figure}))


TWO = {"algorithm": {"choice": ["FedAvg", "StoCFL"]}}


@pytest.mark.parametrize("kind", ["ASHAScheduler", "MedianStoppingRule"])
def test_a_trial_is_judged_against_trials_of_its_own_algorithm(kind: str):
    controller = Controller(make_scheduler(study(TWO, scheduler=kind), 16, 0))
    default = controller.add(0, "FedAvg")
    fast = [controller.add(number, "FedAvg") for number in range(1, 6)]
    slow = [controller.add(number, "StoCFL") for number in range(6, 9)]
    for rounds in (4, 8):
        for trial in fast[:-1]:
            assert controller.reports(trial, rounds, 0.9) == "CONTINUE"
        for trial in slow:  # a tenth of FedAvg's value so far
            assert controller.reports(trial, rounds, 0.09) == "CONTINUE"
        assert controller.reports(default, rounds, 0.01) == "CONTINUE"  # the default is not compared with other trials
    assert controller.reports(fast[-1], 8, 0.5) == "STOP"
    assert {type(one).__name__ for one in controller.groups.of_algorithm.values()} == {
        kind.replace("ASHA", "AsyncHyperBand")
    }


@pytest.mark.parametrize(("group", "first"), [("limits", "limits.trials"), ("resources", "resources.cpus")])
def test_a_number_in_place_of_a_group_is_refused(tmp_path: Path, group: str, first: str):
    options = rf"{group}: '20' cannot be used; give its options one by one \({first}, .*, or leave it out"
    with pytest.raises(InputError, match=options):
        parse_study(["--config", str(study_file(tmp_path, **{group: 20}))])


def test_no_trial_is_stopped_before_its_clusters_have_trained():
    asha = only(make_scheduler(study(ETA), 20, 12))
    assert min(rounds for rounds, _ in asha._brackets[0]._rungs) == 14  # clusters in round 13
    assert (asha._max_t, asha._time_attr) == (20, ROUNDS)
    early = only(make_scheduler(study(ETA), 20, 0))
    assert min(rounds for rounds, _ in early._brackets[0]._rungs) == 5  # a quarter of the rounds
    for first, grace in ((12, 14), (18, 20), (19, 20), (0, 5)):
        assert only(make_scheduler(study(ETA, scheduler="MedianStoppingRule"), 20, first))._grace_period == grace


def test_which_schedulers_judge_trials_by_their_rounds():
    kinds = (None, "ASHAScheduler", "MedianStoppingRule", "FIFOScheduler")
    assert [stops_early(study(ETA, scheduler=kind)) for kind in kinds] == [True] * 3 + [False]
    assert not stops_early(study(ETA, second_metric="traffic/mib"))


# value in each round, and whether the trial has ended
EARLIER = {1: (0.5, True), 2: (0.6, True), 3: (0.7, True), 4: (0.8, False)}


def earlier(number: int, rounds: int) -> EarlierTrial:
    figure, ended = EARLIER[number]
    results = [{ROUNDS: done, METRIC: figure} for done in range(1, rounds + 1)]
    return EarlierTrial(f"{number:04}", {NUMBER: number, "algorithm": "FedAvg"}, results, ended)


@pytest.mark.parametrize("kind", ["ASHAScheduler", "MedianStoppingRule"])
def test_a_trial_after_a_resume_is_stopped_in_the_round_of_the_undisturbed_study(kind: str):
    """After three finished trials and a running one, a worse trial is stopped in round 4 of 16."""
    asked = study(TWO, scheduler=kind)
    whole = Controller(make_scheduler(asked, 16, 0))
    for number, (figure, ended) in EARLIER.items():
        trial = whole.add(number, "FedAvg")
        assert [whole.reports(trial, done, figure) for done in range(1, 16 if ended else 7)][-1] == "CONTINUE"
        if ended:
            whole.groups.on_trial_complete(whole, trial, {ROUNDS: 15, METRIC: figure})
    before = [earlier(number, 15 if ended else 6) for number, (_, ended) in EARLIER.items()]
    resumed = Controller(make_scheduler(asked, 16, 0, before))
    begun_again = Controller(make_scheduler(asked, 16, 0))
    last = resumed.add(4, "FedAvg")
    # continues from its checkpoint
    assert [resumed.reports(last, done, 0.8) for done in range(5, 9)] == ["CONTINUE"] * 4
    for controller, rounds in ((whole, 4), (resumed, 4), (begun_again, None)):
        bad, other = controller.add(5, "FedAvg"), controller.add(6, "StoCFL")
        assert next((done for done in range(1, 16) if controller.reports(bad, done, 0.4) == "STOP"), None) == rounds
        assert controller.reports(other, 4, 0.1) == "CONTINUE"  # a trial of another algorithm


def test_a_trial_whose_last_round_was_not_yet_judged_is_stopped_when_it_reports_again():
    before = [earlier(number, 15) for number in (1, 2, 3)] + [
        EarlierTrial("0004", {NUMBER: 4, "algorithm": "FedAvg"}, [{ROUNDS: 4, METRIC: 0.4}], ended=False)
    ]
    resumed = Controller(make_scheduler(study(TWO), 16, 0, before))
    assert resumed.reports(resumed.add(4, "FedAvg"), 5, 0.9) == "STOP"


def test_reports_to_a_scheduler_are_read_from_the_files_of_a_study(tmp_path: Path):
    asked = parse_study(["--config", str(study_file(tmp_path, seeds=[3, 4], limits={"trials": 3}))]).study
    prepared = prepare(asked, tmp_path)
    settings = [{"algorithm.eta_g": 0.1 * k, "algorithm.num_clusters": 2} for k in (1, 2)]
    trials = new_trials(prepared.job.folder, settings, prepared.limit, first=prepared.first)
    table = (
        f"round,{METRIC}\n1,\n"
        + "".join(f"{done},0.{done}\n" for done in range(2, prepared.default.rounds + 1))
        + "9,0"
    )
    for number in range(3):
        assert trials.next() is not None
        folder = prepared.job.folder / f"{number:04}" / "seed-3"
        folder.mkdir()
        (folder / "metrics.csv").write_text(table)  # the last row is incomplete
    trials.end(1, {METRIC: 0.3, ROUNDS: 3})
    found = earlier_trials(prepared, trials)
    rounds = [[(result[ROUNDS], result[METRIC]) for result in trial.results] for trial in found]
    alive = [
        (done, float(f"0.{done}")) for done in range(2, prepared.default.rounds)
    ]  # the last result is a mean over all seeds
    assert rounds == [alive, [(2, 0.2), (3, 0.3)], alive]
    assert [(trial.config[NUMBER], trial.ended) for trial in found] == [(0, False), (1, True), (2, False)]
    assert (
        earlier_trials(
            replace(prepared, job=replace(prepared.job, study=replace(prepared.study, scheduler="FIFOScheduler"))),
            trials,
        )
        == []
    )
