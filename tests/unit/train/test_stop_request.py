"""A request to stop: remembered until the end of a step, also Ctrl-C within a run."""

from __future__ import annotations

import os
import signal

import pytest

from seatrial.train.loop import StopRequest
from seatrial.train.options import RUN_DIR_VARIABLE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_within_a_run_is_remembered(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, "/seatrial/run")
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
    assert signal.getsignal(number) is before


def test_second_interrupt_is_a_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, "/seatrial/run")
    with StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_outside_of_a_run_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_DIR_VARIABLE, raising=False)
    with StopRequest() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert not stop.requested
