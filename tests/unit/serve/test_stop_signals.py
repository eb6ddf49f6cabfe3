"""The file of signals: every process reads it for itself, from its beginning."""

from __future__ import annotations

import os
import signal

import pytest

from seatrial.serve.stop_signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_each_reader_sees_a_signal_and_goes_on_seeing_it(number):
    first = StopSignals.create()
    early = StopSignals(os.dup(first.descriptor))
    assert not first.came() and not early.came()
    os.write(first.descriptor, bytes((number,)))
    late = StopSignals(os.dup(first.descriptor))
    for each in (first, early, late, first, early, late):
        assert each.came()
    for each in (first, early, late):
        os.close(each.descriptor)


def test_other_signals_end_nothing_and_hide_none():
    signals = StopSignals.create()
    os.write(signals.descriptor, bytes((signal.SIGALRM,)) * 10_000)
    assert not any(signals.came() for _ in range(5))
    os.write(signals.descriptor, bytes((signal.SIGTERM, signal.SIGALRM)))
    assert signals.came()
    os.close(signals.descriptor)
