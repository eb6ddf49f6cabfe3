"""The program that holds the model: what it does with its fronts."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from seatrial.serve.options import parse
from seatrial.serve.program import Program


def test_no_front_is_started_once_a_signal_has_come(capfd: pytest.CaptureFixture[str]) -> None:
    options = parse(["--model", "none", "--host", "127.0.0.1", "--port", "0", "--fronts", "1"], None)
    program = Program(options, 0.0, lambda options: pytest.fail("nothing is to be loaded"))
    program._fronts[0] = subprocess.Popen(["sleep", "0.5"])  # it has closed its link, and still ends

    def drain() -> None:
        os.write(program._signals.descriptor, bytes((signal.SIGTERM,)))
        for listener in program._listeners:
            listener.close()

    soon = threading.Timer(0.1, drain)
    soon.start()
    assert program._front_gone(0) is None
    soon.join()
    assert "another is started" not in capfd.readouterr().err
    os.close(program._signals.descriptor)
