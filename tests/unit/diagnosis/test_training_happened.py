"""Runs that never came to train are diagnosed so, without advice on loaders."""

import pytest

from seatrial.diagnosis.cpu_only import Reason
from seatrial.diagnosis.happened import EndFacts, happened
from seatrial.diagnosis.signals import signals


def ranks(steps=500, seconds=20.0, compile_s=0.0, **facts):
    line = {"pid": 1, "steps": steps, "seconds": seconds, "regions": {"other": seconds}, "compile_s": compile_s}
    return [{"t": 30.0, "anatomy": line}, {"training": {"pid": 1, "device": "cuda", **facts}}]


def busy(percent):
    return [{"t": second, "gpus": [{"uuid": "GPU-1", "utilization_pct": percent}]} for second in range(9)]


FAILED = EndFacts(failed="Exited with code 1: FileNotFoundError", wall_s=4.0, measured=True)
LIMIT = "Stopped at the time limit of 20 s"
CASES = {
    "failed before a step": ((), FAILED, "failed-early"),
    "failed, and nobody measured": ((), EndFacts(failed="x", measured=False), None),
    "no steps, no failure": ((), EndFacts(wall_s=9.0, measured=True), None),
    "trained on the CPU": (ranks(device="cpu", parameters=54170), EndFacts(wall_s=25.0), "cpu-only"),
    "never came to the GPU": ((), EndFacts(wall_s=25.0, used=0), "cpu-only"),
    "never came to it, and failed": ((), EndFacts(failed="KeyError", wall_s=4.0, used=0), "failed-early"),
    "trained on the CPU, which it never left": (ranks(device="cpu"), EndFacts(wall_s=25.0, used=0), "cpu-only"),
    "came to one of two": (ranks(), EndFacts(wall_s=25.0, gpus=2, used=1), "imbalanced"),
    "failed after three steps": (ranks(steps=3, seconds=0.4), FAILED, "failed-early"),
    "eight long steps": (ranks(steps=8, seconds=120.0), EndFacts(wall_s=140.0), None),
    "six steps of two seconds": (ranks(steps=6, seconds=12.0), EndFacts(wall_s=20.0), None),
    "ten steps": (ranks(steps=9, seconds=5.0), EndFacts(wall_s=25.0), "too-short"),
    "ten steps after a slow import": (
        ranks(steps=9, seconds=0.5, first_step_after_s=9.0, imported_after_s=7.0), EndFacts(wall_s=10.0), "too-short"),
    "ten steps after long preparations": (
        ranks(steps=9, seconds=0.5, first_step_after_s=19.0, imported_after_s=7.0), EndFacts(wall_s=20.0), "start-up"),
    "a slow import, then steps": (
        ranks(seconds=8.0, first_step_after_s=9.0, imported_after_s=7.0), EndFacts(wall_s=17.0), None),
    "five steps after a start that was compiling": (
        ranks(steps=5, seconds=1.0, compile_s=11.0, first_step_after_s=20.0), EndFacts(wall_s=30.0), "compiling"),
    "compiled for most of its start": (
        ranks(steps=279, seconds=2.4, compile_s=15.0, first_step_after_s=26.5, imported_after_s=2.9),
        EndFacts(wall_s=31.2), "compiling"),
    "stopped while it imported": ((), EndFacts(cut=LIMIT, wall_s=6.0, used=0, measured=True), "too-short"),
    "stopped after long on the CPU": ((), EndFacts(cut=LIMIT, wall_s=60.0, used=0, measured=True), "cpu-only"),
    "stopped while it compiled": (
        (), EndFacts(cut=LIMIT, wall_s=20.0, used=1, measured=True, compiles_since_s=8.0), "compiling"),
    "stopped soon after it began to compile": (
        (), EndFacts(cut=LIMIT, wall_s=20.0, used=1, measured=True, compiles_since_s=18.0), None),
    "stopped while it trained": (ranks(), EndFacts(cut=LIMIT, wall_s=30.0, used=1, measured=True), None),
    "a second of steps": (ranks(steps=900, seconds=1.0), EndFacts(wall_s=25.0), "too-short"),
    "compiled most of the time": (ranks(compile_s=40.0), EndFacts(wall_s=60.0), "compiling"),
    "started most of the time": (ranks(seconds=8.0, first_step_after_s=30.0), EndFacts(wall_s=38.0), "start-up"),
    "a long start, then steps enough": (ranks(seconds=8.0, first_step_after_s=17.0), EndFacts(wall_s=25.0), None),
    "trained": (ranks(first_step_after_s=6.0), EndFacts(wall_s=27.0), None),
    "trained, then failed": (ranks(), FAILED, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cause(name):
    measured, ended, cause = CASES[name]
    found = happened(signals([], measured), ended)
    assert (found.cause if found else None) == cause
    assert found is None or not any("worker" in advice.change for advice in found.advice)


def test_a_run_that_was_stopped_before_its_first_step_is_judged_by_what_it_did():
    ended = EndFacts(cut=LIMIT, wall_s=40.0, used=1, measured=True)
    prepares = [{**sample, "cpu_cores": 1.0} for sample in busy(0)]
    found = happened(signals(prepares, ()), ended)
    assert found.cause == "start-up" and LIMIT in found.evidence[0]
    assert happened(signals(busy(0), ()), ended) is None  # idle
    assert happened(signals([{**sample, "cpu_cores": 1.0} for sample in busy(40)], ()), ended) is None


def test_the_parameters_on_the_cpu_are_counted():
    measured, ended, _ = CASES["trained on the CPU"]
    assert "54,170 parameters are on the CPU" in happened(signals([], measured), ended).evidence[0]


def test_parameters_on_the_cpu_count_only_if_the_gpu_rests():
    assert happened(signals(busy(60), ranks(device="cpu")), EndFacts(wall_s=25.0)) is None
    assert happened(signals(busy(0), ranks(device="cpu")), EndFacts(wall_s=25.0)).cause == "cpu-only"


def test_a_script_without_steps_that_computed_before_it_failed_is_judged_by_its_gpu():
    assert happened(signals(busy(90)), FAILED) is None
    assert happened(signals(busy(1)), FAILED).cause == "failed-early"


def test_reason_for_the_cpu_names_the_line_to_change():
    why = Reason(0, 'train.py:9 sets CUDA_VISIBLE_DEVICES to "-1"', "take train.py:9 out")
    found = happened(signals([]), EndFacts(wall_s=9.0, used=0, why_cpu=(why,)))
    assert any("train.py:9" in line for line in found.evidence)
    assert found.advice[0].change == "take train.py:9 out"
