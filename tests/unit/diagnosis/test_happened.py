"""Did training happen at all? Runs that never came so far are told so, and nothing of loaders."""

import pytest

from seatrial.diagnosis.anatomy import read_anatomy
from seatrial.diagnosis.happened import Ended, happened


def ranks(steps=500, seconds=20.0, compile_s=0.0, **facts):
    line = {"pid": 1, "steps": steps, "seconds": seconds, "regions": {"other": seconds}, "compile_s": compile_s}
    return read_anatomy([{"t": 30.0, "anatomy": line}, {"training": {"pid": 1, "device": "cuda", **facts}}])


FAILED = Ended(failed="Exited with code 1: FileNotFoundError", wall_s=4.0, measured=True)
CASES = {
    "failed before a step": ((), FAILED, "failed-early"),
    "failed, and nobody measured": ((), Ended(failed="x", measured=False), None),
    "no steps, no failure": ((), Ended(wall_s=9.0, measured=True), None),
    "trained on the CPU": (ranks(device="cpu", parameters=54170), Ended(wall_s=25.0), "cpu-only"),
    "ten steps": (ranks(steps=9, seconds=5.0), Ended(wall_s=25.0), "too-short"),
    "a second": (ranks(steps=900, seconds=1.0), Ended(wall_s=25.0), "too-short"),
    "compiled most of the time": (ranks(compile_s=40.0), Ended(wall_s=60.0), "compiling"),
    "started most of the time": (ranks(first_step_after_s=30.0), Ended(wall_s=51.0), "start-up"),
    "trained": (ranks(first_step_after_s=6.0), Ended(wall_s=27.0), None),
    "trained, then failed": (ranks(), FAILED, None),
}


@pytest.mark.parametrize("name", CASES)
def test_cause(name):
    measured, ended, cause = CASES[name]
    found = happened(measured, ended)
    assert (found.cause if found else None) == cause
    assert found is None or not any("worker" in advice.change for advice in found.advice)


def test_the_parameters_on_the_cpu_are_counted():
    assert "54,170 parameters are on the CPU" in happened(*CASES["trained on the CPU"][:2]).evidence[0]
