"""What a study is judged by."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lit_cfl.errors import InputError
from lit_cfl.tune.cluster import connected, require_room
from lit_cfl.tune.objective import Objective, mean_over_seeds
from lit_cfl.tune.repeats import interval, new_seeds
from lit_cfl.tune.search import require_own
from lit_cfl.tune.study import Resources


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("test/weighted_accuracy", "study on test data.*use val/weighted_accuracy"),
        ("train/loss", "a study is judged by one of val/"),
        ("val/weighted_acuracy", r"did you mean val/weighted_accuracy\?"),
        ("traffic/mib", "a study is judged by"),
    ],
)
def test_only_validation_figures_judge(metric: str, message: str):
    with pytest.raises(InputError, match=message):
        Objective(metric)


def test_lower_is_better_for_losses_and_deviations_alone():
    modes = {name: Objective(f"val/{name}").mode for name in ("weighted_accuracy", "loss", "std_accuracy")}
    assert modes == {"weighted_accuracy": "max", "loss": "min", "std_accuracy": "min"}
    assert Objective("val/loss").worst > 1e6 > 0.0 == Objective().worst
    assert Objective("val/loss").reached(0.3, 0.3)
    assert not Objective().reached(0.3, 0.31)


def test_ties_go_to_lower_traffic_then_to_the_earlier_trial():
    rows = [
        {"id": 0, "val/weighted_accuracy": 0.8, "traffic/mib": 9.0},
        {"id": 1, "val/weighted_accuracy": 0.9, "traffic/mib": 5.0},
        {"id": 2, "val/weighted_accuracy": 0.9, "traffic/mib": 4.0},
        {"id": 3, "val/weighted_accuracy": 0.9, "traffic/mib": 4.0},
        {"id": 4, "val/weighted_accuracy": float("nan"), "traffic/mib": 0.0},
        {"id": 5, "val/weighted_accuracy": None, "traffic/mib": 0.0},
    ]
    best = Objective().best(rows)
    assert best is not None
    assert best["id"] == 2
    assert Objective().best(rows[4:]) is None


def test_a_mean_needs_every_seed():
    assert mean_over_seeds([0.25, 0.75]) == 0.5
    assert mean_over_seeds([0.5, None]) is None
    assert mean_over_seeds([]) is None


def test_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.margin == pytest.approx(4.302653 / 3**0.5, rel=1e-6)  # t(0.975, 2) * 1 / sqrt(3)
    assert interval([0.5]).margin is None


def test_new_seeds_are_new():
    assert new_seeds([0, 7, 2], 3) == [8, 9, 10]


def test_records_of_another_user_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "tuner.pkl").touch()
    require_own(tmp_path / "ray")
    (tmp_path / "ray" / "link").symlink_to("tuner.pkl")
    with pytest.raises(InputError, match="link is not yours"):
        require_own(tmp_path / "ray")
    (tmp_path / "ray" / "link").unlink()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(InputError, match="is not yours: Ray's records may hold code"):
        require_own(tmp_path / "ray")


def test_all_cores_are_there_for_trials_beside_a_gpu(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, object] = {}

    def init(address: str, **options: object) -> None:
        asked.update(options)
        raise RuntimeError("no Ray in this test")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(InputError, match="no Ray in this test"), connected(None, Resources(cpus=1, gpus=0.25)):
        pass
    assert (asked["num_cpus"], asked["num_gpus"]) == (7, 2)


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    require_room(str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(InputError, match="only 5 MiB are free"):
        require_room(str(tmp_path))
