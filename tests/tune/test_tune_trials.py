"""Tests which setting a study tries next, and what it stores about each trial, without Ray."""

import json
import shutil
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock
from tune_trials import METRIC, Script, last_result, new_trials, run_all

from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import write_config
from lit_cfl.storage.lock import lock_directory
from lit_cfl.tune.trials import MOST_REPEATS, GivenSetting, Trials
from lit_cfl.tune.wandb_run import complete

FIGURES = {number: 0.1 * number for number in range(10)}


def xs(*values: int) -> list[dict[str, int]]:
    return [{"x": value} for value in values]


def heard(trials: object) -> list[tuple[int | None, str]]:
    searcher = trials.searcher  # type: ignore[attr-defined]
    assert isinstance(searcher, Script)
    return searcher.heard


def test_the_default_comes_first_then_the_points_then_what_the_searcher_asks_for(tmp_path: Path):
    first = [GivenSetting("default", {"x": 7}), GivenSetting("point", {"x": 5}), GivenSetting("point", {"x": 6})]
    trials = new_trials(tmp_path, xs(1, 2, 3), 5, first=first)
    assert run_all(trials, FIGURES) == xs(7, 5, 6, 1, 2)  # all trials count
    assert [record.origin for record in trials.records.values()] == ["default", "point", "point", "search", "search"]
    assert trials.over


def test_a_setting_outside_the_space_is_not_reported_to_the_searcher(tmp_path: Path):
    first = [GivenSetting("default", {"x": 7}, inside=False), GivenSetting("point", {"x": 5})]
    trials = new_trials(tmp_path, xs(1), 3, first=first)
    run_all(trials, FIGURES)
    assert heard(trials) == [(None, "finished"), (0, "finished")]


def test_a_setting_with_the_values_of_a_default_outside_the_space_is_trained(tmp_path: Path):
    # the default has another value of an option that is not searched
    first = [GivenSetting("default", {"x": 7}, inside=False)]
    trials = new_trials(tmp_path, xs(7, 7, 1), 3, first=first)
    assert run_all(trials, FIGURES) == xs(7, 7, 1)
    assert [record.repeats for record in trials.records.values()] == [None, None, 1, None]


def test_a_repeated_setting_is_answered_and_uses_up_nothing(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 1, 0, 2, 1, 3), limit=4)
    assert run_all(trials, FIGURES) == xs(0, 1, 2, 3)
    repeats = {record.number: record.repeats for record in trials.records.values() if record.repeats is not None}
    assert repeats == {2: 1, 3: 0, 5: 1}
    assert heard(trials).count((1, "finished")) == 1  # the searcher receives the result
    assert len(heard(trials)) == 7


def test_a_setting_that_is_being_trained_is_answered_when_it_ends(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 1, 2))
    default, first, second = trials.next(), trials.next(), trials.next()
    assert default is not None
    assert first is not None
    assert second is not None
    assert second.values == {"x": 2}
    assert heard(trials) == []
    trials.end(first.number, last_result(0.5))
    assert heard(trials) == [(0, "finished"), (1, "finished")]


def test_a_study_ends_when_all_that_is_asked_for_was_tried_before(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 2, *[1] * (MOST_REPEATS - 1), 3, *[2] * 99), limit=90)
    assert run_all(trials, FIGURES) == xs(0, 1, 2, 3)  # nineteen repeated settings are not enough
    assert trials.over
    assert trials.why_over is not None
    assert "last 20 settings had all been tried before, so the study ends after 4 trials" in trials.why_over


def test_a_restarted_searcher_proposes_again_all_settings_tried_before_the_resume(tmp_path: Path):
    settings = xs(*range(1, 31))
    figures = dict.fromkeys(range(31), 0.5)
    run_all(new_trials(tmp_path, settings, limit=26), figures)
    resumed = new_trials(tmp_path, [*settings[:25], *settings], limit=30)  # 25 trials exist, identified by number
    resumed.load()
    assert run_all(resumed, figures) == settings[25:29]


def test_no_more_run_at_once_than_the_study_says(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 2, 3), 4, concurrent=2)
    assert trials.next() is not None
    second = trials.next()
    assert second is not None
    assert trials.next() is None
    assert not trials.over
    trials.end(second.number, last_result(0.1))
    assert trials.next() is not None


def test_status_of_a_trial_follows_from_its_last_report(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 2, 3), 4)
    for _ in range(4):
        trials.next()
    trials.end(0, last_result(0.1))
    trials.end(1, last_result(0.1, finished=False))
    trials.end(2, last_result(0.1, finished=False, error="too warm"))
    trials.report(3, last_result(0.2, rounds=2, finished=False))
    trials.end(3, {}, died=True)
    assert [record.status for record in trials.records.values()] == ["finished", "stopped", "failed", "failed"]
    assert trials.records[3].last_result["error"] == "its worker died"
    assert trials.records[3].last_result["rounds"] == 2
    assert heard(trials) == [(None, "finished"), (0, "stopped"), (1, "failed"), (2, "failed")]


def test_a_resumed_study_continues_running_trials_and_trains_no_finished_one_again(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 1, 2, 3), 4)
    for number in (0, 1):
        trials.next()
        trials.end(number, last_result(0.1 * number))
    running = trials.next()
    assert running is not None
    assert running.values == {"x": 2}
    again = new_trials(tmp_path, xs(1, 1, 2, 3), 4)
    again.load()
    assert heard(again) == [(None, "finished"), (0, "finished"), (1, "finished")]
    assert run_all(again, FIGURES) == xs(2, 3)
    assert [record.trial_id for record in again.records.values()] == ["0000", "0001", "0002", "0003", "0004"]


def test_a_study_is_extended(tmp_path: Path):
    assert len(run_all(new_trials(tmp_path, xs(1, 2, 3, 4), 3), FIGURES)) == 3
    longer = new_trials(tmp_path, xs(1, 2, 3, 4), 5)
    longer.load()
    assert run_all(longer, FIGURES) == xs(3, 4)
    shorter = new_trials(tmp_path, xs(1, 2, 3, 4), 4)
    with pytest.raises(InputError, match=r"limits.trials is 4, but 5 trials were started; give 5 or more"):
        shorter.load()


def test_a_trial_that_a_limit_ended_continues_with_the_study(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1), 2)
    trials.next()
    trials.report(0, last_result(0.3, rounds=2, finished=False))
    trials.close()
    again = new_trials(tmp_path, xs(1), 2)
    again.load()
    assert again.records[0].last_result[METRIC] == 0.3
    assert run_all(again, FIGURES) == xs(0, 1)


@pytest.mark.parametrize(("minutes", "goes_on"), [(0.5, False), (0.6, True), (None, True)])
def test_a_trial_that_took_too_long_continues_once_it_has_more_time(
    minutes: float | None, goes_on: bool, tmp_path: Path
):
    trials = new_trials(tmp_path, xs(1), 2)
    for _ in range(2):
        trials.next()
    trials.end(0, last_result(0.5))
    trials.end(1, last_result(0.0, finished=False, error="the trial took longer than limits.trial_minutes allow"))
    (tmp_path / "0001" / "too_long.txt").write_text("0.5 minutes have passed:\n  File ...\n")
    resumed = new_trials(tmp_path, xs(1), 2)
    resumed.load(minutes)
    record = resumed.next()
    assert (record is not None and record.number == 1 and "error" not in record.last_result) == goes_on
    assert resumed.records[1].status == ("running" if goes_on else "failed")


def test_a_trial_whose_result_came_when_the_study_ended_is_finished(tmp_path: Path):
    """When a trial reaches the target, Ray ends the study before it reports the trial as finished."""
    trials = new_trials(tmp_path, xs(1), 2)
    for number, last in ((0, last_result(0.3)), (1, last_result(0.2, error="too warm", finished=False))):
        trials.next()
        trials.report(number, last)
    assert [(record.number, record.status) for record in trials.close()] == [(0, "finished"), (1, "failed")]
    assert [record.status for record in trials.records.values()] == ["finished", "failed"]
    again = new_trials(tmp_path, xs(1), 2)
    again.load()
    assert again.over


@pytest.mark.parametrize("file", ["summary.json", "seed-1/metrics.csv", "trial.json"])
@pytest.mark.parametrize("damage", ["edit", "delete"])
def test_a_finished_trial_whose_files_changed_is_noticed(file: str, damage: str, tmp_path: Path):
    trials = new_trials(tmp_path, xs(1), 2)
    record = trials.next()
    assert record is not None
    for name in ("summary.json", "seed-1/metrics.csv"):
        path = tmp_path / "0000" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"val/weighted_accuracy": 0.5}')
    trials.end(0, last_result(0.5))
    new_trials(tmp_path, xs(1), 2).load()
    path = tmp_path / "0000" / file
    if damage == "edit":
        path.write_text(path.read_text().replace("0.5", "0.9"))
    else:
        path.unlink()
    again = new_trials(tmp_path, xs(1), 2)
    with pytest.raises(InputError, match=rf"0000/{file} is gone or is not what the study wrote.*delete .*0000, and"):
        again.load()


def test_digests_of_all_finished_trials_are_recorded_before_the_repeats_start(tmp_path: Path):
    trials = unfinished(tmp_path)
    assert [bool(record.digests) for record in trials.records.values()] == [True, False]


def unfinished(folder: Path) -> Trials:
    """Makes two trials with files of their runs: one stopped early, one still running when the study ended."""
    trials = new_trials(folder, xs(1), 2)
    for number in range(2):
        trials.next()
        write_config(folder / f"{number:04d}", {"rounds": 4})
        (folder / f"{number:04d}" / "metrics.csv").write_text("round,val/weighted_accuracy\n1,0.5\n")
        trials.report(number, last_result(0.5, rounds=1, finished=False))
    trials.end(0, last_result(0.5, rounds=1, finished=False))
    trials.close()
    return trials


@pytest.mark.parametrize("number", [0, 1], ids=["stopped", "interrupted"])
@pytest.mark.parametrize("file", ["config.yaml", "metrics.csv"])
def test_a_trial_that_did_not_finish_and_whose_files_changed_is_noticed(file: str, number: int, tmp_path: Path):
    unfinished(tmp_path).seal()
    new_trials(tmp_path, xs(1), 2).load()
    path = tmp_path / f"{number:04d}" / file
    path.write_text(path.read_text().replace("4", "7").replace("0.5", "0.9"))
    with pytest.raises(InputError, match=rf"{path.parent.name}/{file} is gone or is not what the study wrote"):
        new_trials(tmp_path, xs(1), 2).load()


def test_a_trial_that_was_stopped_is_checked_also_after_a_kill_once_its_process_has_ended(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 2), 3)
    for number in range(3):
        trials.next()
        (tmp_path / f"{number:04d}" / "metrics.csv").write_text("round,val/weighted_accuracy\n1,0.5\n")
    with lock_directory(tmp_path / "0001"):
        trials.end(1, last_result(0.5, rounds=1, finished=False))
        trials.seal_ended()
    assert trials.records[1].digests == {}  # the trial's process may still write
    trials.seal_ended()
    assert trials.records[2].digests == {}  # the trial is running
    path = tmp_path / "0001" / "metrics.csv"
    path.write_text(path.read_text().replace("0.5", "0.9"))
    with pytest.raises(InputError, match=r"0001/metrics.csv is gone or is not what the study wrote"):
        new_trials(tmp_path, xs(1, 2), 3).load()  # the trial was never sealed


def test_a_trial_that_continues_may_change_its_files(tmp_path: Path):
    unfinished(tmp_path).seal()
    again = new_trials(tmp_path, xs(1), 2)
    again.load()
    assert again.next() is not None
    (tmp_path / "0001" / "metrics.csv").write_text("round,val/weighted_accuracy\n1,0.5\n2,0.6\n")
    new_trials(tmp_path, xs(1), 2).load()


def test_a_trial_whose_process_still_writes_gets_no_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lit_cfl.tune.trials._GRACE_SECONDS", 0.0)
    trials = unfinished(tmp_path)
    with lock_directory(tmp_path / "0001"):
        trials.seal()
    assert [bool(record.digests) for record in trials.records.values()] == [True, False]


def test_a_stopped_trial_is_logged_once_its_process_cannot_log_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """If the study did not wait, its process and the trial's process might both log the trial, or neither might."""
    process, seen = FileLock(tmp_path / ".lock", thread_local=False), []
    process.acquire()
    (tmp_path / "metrics.csv").touch()
    monkeypatch.setattr("lit_cfl.tune.wandb_run._complete", lambda path: seen.append(process.is_locked))
    Timer(0.3, process.release).start()
    complete([tmp_path])
    assert seen == [False]


def test_a_record_of_another_study_is_refused(tmp_path: Path):
    for study_id in ("0a", "0b"):
        run_all(new_trials(tmp_path / study_id, xs(1, 2), 2, study_id=study_id), FIGURES)
    shutil.copy(tmp_path / "0b" / "0001" / "trial.json", tmp_path / "0a" / "0001")
    with pytest.raises(InputError, match=r"0001/trial.json and .*study.yaml belong to different studies"):
        new_trials(tmp_path / "0a", xs(1, 2), 2, study_id="0a").load()


def test_a_trial_that_was_deleted_is_trained_again_and_so_is_what_repeated_it(tmp_path: Path):
    trials = new_trials(tmp_path, xs(1, 1, 2), 3)
    run_all(trials, FIGURES)
    (tmp_path / "0001" / "trial.json").unlink()
    again = new_trials(tmp_path, xs(5, 1, 2), 4)
    again.load()
    assert run_all(again, FIGURES) == xs(5, 1)
    assert again.records[2].repeats is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"number": 0}', "\x00"])
def test_a_damaged_record_is_named(content: str, tmp_path: Path):
    run_all(new_trials(tmp_path, xs(1), 2), FIGURES)
    (tmp_path / "0001" / "trial.json").write_text(content)
    with pytest.raises(InputError, match=r"0001/trial.json is gone or is not what the study wrote"):
        new_trials(tmp_path, xs(1), 2).load()


def test_every_bit_of_a_record_counts(tmp_path: Path):
    run_all(new_trials(tmp_path, xs(), 1), FIGURES)
    file = tmp_path / "0000" / "trial.json"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            new_trials(tmp_path, xs(), 1).load()
        except InputError:
            continue
        assert json.loads(file.read_text()) == json.loads(whole)  # only white space differs
