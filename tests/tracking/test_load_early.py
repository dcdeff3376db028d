"""W&B is loaded while the data are, in a thread, if it is asked for; what goes wrong there is said later or never."""

from threading import Event, current_thread

import pytest

from lit_cfl.errors import InputError
from lit_cfl.tracking import service


@pytest.mark.parametrize(("mode", "times"), [("disabled", 0), (None, 1), ("offline", 1), ("online", 1)])
def test_it_is_loaded_in_a_thread_if_it_is_asked_for(mode: str | None, times: int, monkeypatch: pytest.MonkeyPatch):
    begun, loaded = Event(), []

    def load() -> str:
        begun.wait(10)
        loaded.append(current_thread().name)
        return "offline"

    monkeypatch.setattr(service, "read_wandb_mode", load)
    service.load_early(lambda: mode)
    assert loaded == []  # nobody waits
    begun.set()
    service.wait_until_loaded()
    assert loaded == ["wandb"] * times


def test_an_error_there_is_left_to_whoever_needs_it(monkeypatch: pytest.MonkeyPatch):
    def fail() -> str:
        raise InputError("no such mode")

    service.load_early(fail)
    monkeypatch.setattr(service, "read_wandb_mode", fail)
    service.load_early(lambda: "offline")
    service.wait_until_loaded()
    service.wait_until_loaded()  # there is nothing to wait for
