"""Runs that never came to train are diagnosed so, without advice on loaders."""

from seatrial.diagnosis.happened import EndFacts, happened
from seatrial.diagnosis.signals import signals
from seatrial.job.reading.devices import Reason
from tables import cases


def ranks(steps=500, seconds=20.0, compile_s=0.0, **facts):
    line = {"pid": 1, "steps": steps, "seconds": seconds, "regions": {"other": seconds}, "compile_s": compile_s}
    return [{"t": 30.0, "anatomy": line}, {"training": {"pid": 1, "device": "cuda", **facts}}]


def busy(percent, **more):
    return [{"t": second, "gpus": [{"uuid": "GPU-1", "utilization_pct": percent}], **more} for second in range(9)]


FAILED = EndFacts(failed="Exited with code 1: FileNotFoundError", wall_s=4.0, measured=True)
CUT = EndFacts(cut="Stopped at the time limit of 20 s", wall_s=40.0, used=1, measured=True)


@cases("measured", "ended", "cause")
def test_cause(measured, ended, cause):
    found = happened(signals([], () if measured is None else ranks(**measured)), EndFacts(**ended))
    assert (found.cause if found else None) == cause
    assert found is None or not any("worker" in advice.change for advice in found.advice)


def test_a_run_that_was_stopped_before_its_first_step_is_judged_by_what_it_did():
    found = happened(signals(busy(0, cpu_cores=1.0), ()), CUT)
    assert found.cause == "start-up" and CUT.cut in found.evidence[0]
    assert happened(signals(busy(0), ()), CUT) is None  # idle
    assert happened(signals(busy(40, cpu_cores=1.0), ()), CUT) is None


def test_parameters_on_the_cpu_are_counted_only_if_the_gpu_rests():
    on_cpu, ended = ranks(device="cpu", parameters=54170), EndFacts(wall_s=25.0)
    assert "54,170 parameters are on the CPU" in happened(signals([], on_cpu), ended).evidence[0]
    assert happened(signals(busy(60), on_cpu), ended) is None
    assert happened(signals(busy(0), on_cpu), ended).cause == "cpu-only"


def test_a_script_without_steps_that_computed_before_it_failed_is_judged_by_its_gpu():
    assert happened(signals(busy(90)), FAILED) is None
    assert happened(signals(busy(1)), FAILED).cause == "failed-early"


def test_reason_for_the_cpu_names_the_line_to_change():
    why = Reason(0, 'train.py:9 sets CUDA_VISIBLE_DEVICES to "-1"', "take train.py:9 out")
    found = happened(signals([]), EndFacts(wall_s=9.0, used=0, why_cpu=(why,)))
    assert any("train.py:9" in line for line in found.evidence) and found.advice[0].change == "take train.py:9 out"
