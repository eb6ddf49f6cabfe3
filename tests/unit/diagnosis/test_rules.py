"""Every cause from samples as a GPU bound that way gives them, and samples that show nothing."""

import math

import pytest

from seatrial.diagnosis.happened import EndFacts
from seatrial.diagnosis.rules import RULES, diagnose
from seatrial.diagnosis.signals import signals
from tables import constant

BUSY, WAITS = {"main_cpu_cores": 1.0, "cpu_cores": 1.0}, {"main_cpu_cores": 0.1, "cpu_cores": 0.1}
WAITS_AT = [["train.py:41 item", 400, 1.2]]
STARVED = {"utilization_pct": 12, "sm_activity_pct": 3, "tensor_activity_pct": 1, "dram_activity_pct": 2, **BUSY}


def samples(count=5, gpus=1, reasons=(), each_utilization_pct=(), **values):
    """Samples of so many GPUs; ``each_utilization_pct`` is one value for each of them."""
    of_gpu = {key: value for key, value in values.items() if key.endswith(("_pct", "_per_s")) and "cpu" not in key}
    host = {key: value for key, value in values.items() if key not in of_gpu}
    each = [{"utilization_pct": value} for value in each_utilization_pct] or [{}] * gpus
    made = [{"uuid": f"GPU-{n}", "throttle_reasons": list(reasons), **of_gpu, **own} for n, own in enumerate(each)]
    return [{"t": 100.0 + second, "gpus": [dict(gpu) for gpu in made], **host} for second in range(count)]


def anatomy(steps=400, seconds=20.0, rank=0, window=None, compile_s=0.0, starts_s=0.0, **regions):
    """The hook's line of a script whose GPU is not the limit; shares that add up with ``other``."""
    spent = {name: share * seconds for name, share in regions.items()}
    spent["other"] = seconds - sum(spent.values())
    line = {"pid": 7 + rank, "steps": steps, "seconds": seconds, "examples": 64 * steps, "regions": spent,
            "compile_s": compile_s, "starts_s": starts_s}  # fmt: skip
    if window is not None:
        line["window"] = {"steps": 40, "seconds": 2.0, "regions": {k: v / 10 for k, v in spent.items()}, **window}
    return {"t": 104.0, "rank": rank, "anatomy": line}


CASES = {case["id"]: case for kind in ("samples", "measured") for case in constant(__file__, kind)}


def diagnosed(name, gpu_name=""):
    case = CASES[name]
    lines = [anatomy(**line) for line in case.get("lines", ())]
    facts = {"rank": 0, "training": {"pid": 7, **case.get("facts", {})}}
    return diagnose(samples(**{**BUSY, **case["seen"]}), [*lines, facts], gpu_name)


@pytest.mark.parametrize("name", CASES)
def test_cause_with_evidence_and_bounded_gains(name):
    found = diagnosed(name)
    assert found.cause == CASES[name]["cause"], found
    assert 1 <= len(found.advice) <= 3 and found.evidence and found.words.startswith(f"{found.cause}: ")
    for advice in diagnosed(name, "NVIDIA H200").advice:
        assert "up to" not in advice.gain and ("×" not in advice.gain or "at most" in advice.gain), advice


PYTHON = {"regions": {"other": 1.6, "forward": 0.2, "backward": 0.2}, "lines": [["train.py:41", 1.2]]}
DOUBLE = [anatomy(), {"rank": 0, "training": {"pid": 7, "parameter_dtype": "float64"}}]
COPIED = {"count": 80, "bytes": 8e6, "pageable": 80, "blocking": 40}


def cores(count, workers=0):
    return {"rank": 0, "training": {"pid": 7, "cores": count, "loader": {"workers": workers}}}


ALONE = {"worker_cpu_cores": 0, "workers": 0, "cpu_quota_cores": 4.0}


@pytest.mark.parametrize(
    ("changes", "steps", "change", "gain", "evidence"),
    [
        ({}, anatomy(data=0.75), "", "at most 3.6×: waiting for data is 75 % of", "75 % of the time waiting"),
        ({}, anatomy(copy=0.5, window={"copied": COPIED}), "", "",
         "2 copies a step, 100 % of them from pageable memory and 50 % without non_blocking"),
        ({"utilization_pct": 75, "sm_activity_pct": 60}, anatomy(sync=0.7, window={"waits": WAITS_AT}), "",
         "at most 1.3×: 25 %", ""),
        ({}, anatomy(sync=0.4, window={"waits": WAITS_AT}), "train.py:41 item", "", ""),
        ({"utilization_pct": 1.5, "sm_activity_pct": 0.2, **ALONE}, anatomy(data=0.95),
         "DataLoader(num_workers=3, persistent_workers=True) (the container has 4 cores)", "at most 3.2×: ", ""),
        ({}, anatomy(data=0.9, starts_s=8.0), "persistent_workers=True", "at most 10× or more: ", ""),
        ({}, [anatomy(data=0.9), cores(1, workers=4)], "give the container more CPU: --cpus 5", "at most 5×: ", ""),
        ({"main_cpu_cores": 0.2}, [anatomy(data=0.9), cores(2)], "DataLoader(num_workers=8", "at most 7.7×: ", ""),
        ({"worker_cpu_cores": 2.0}, [anatomy(data=0.9), cores(4, workers=2)],
         "more loader workers: num_workers=3 instead of 2", "at most 1.5×: ", ""),
        ({}, anatomy(window={"calls": 2560}), "one call of the model in place of 64", "at most 10× or more: ", ""),
        ({}, anatomy(window={**PYTHON, "lines": [["train.py:41", 0.8]]}), "train.py:41: torch._foreach_",
         "at most 1.7×", ""),
        ({"utilization_pct": 2, "sm_activity_pct": 0.2}, anatomy(window=PYTHON), "train.py:41: take it out of the step",
         "at most 2.5×: this line is 60 %", "train.py:41 takes 60 %"),
        ({"utilization_pct": 2, "sm_activity_pct": 0.2}, anatomy(window={**PYTHON, "lines": []}), "find the line", "",
         ""),
        ({"utilization_pct": 100, "sm_activity_pct": 97}, DOUBLE, "float32 in place of float64", "", ""),
    ],
    ids=["data", "copies", "a third rests", "line that waits", "no workers", "workers that start in each pass",
         "one core for all", "examples that are waited for", "examples that are computed", "a model in a loop",
         "a line that launches", "line of Python", "no line", "float64"],
)  # fmt: skip
def test_first_advice_follows_from_the_measurement(changes, steps, change, gain, evidence):
    found = diagnose(samples(**{**STARVED, **changes}), steps if isinstance(steps, list) else [steps])
    assert found.advice[0].change.startswith(change) and found.advice[0].gain.startswith(gain)
    assert evidence in " ".join(found.evidence)


def test_every_cause_has_a_case_and_tags_and_advice_follow_from_it():
    assert {cause for cause, _ in RULES} == {case["cause"] for case in CASES.values()}
    found = {name: diagnosed(name) for name in CASES}
    assert found["matmul"].tags[0] == "power-cap" and "communication" in found["BERT on four"].tags
    assert "communication" not in found["small kernels on four, as measured"].tags
    assert "a rank is slow, stopped or dead" in found["a rank was killed, as measured"].advice[0].change
    assert "a rank" not in found["all-reduce"].advice[0].change
    bf16 = {name: any("bfloat16" in advice.change for advice in found[name].advice) for name in ("fp32", "matmul")}
    assert bf16 == {"fp32": True, "matmul": False}


def test_reports_of_the_script_come_first():
    steps = [{"t": 100.0 + n, "data_s": 0.6, "flops": 2e14} for n in range(5)]
    found = diagnose(samples(utilization_pct=30, sm_activity_pct=4.6, **BUSY), steps, "NVIDIA H200")
    assert found.cause == "data-bound" and any("60 % of the time" in line for line in found.evidence)
    assert found.mfu == pytest.approx(2e14 / 9.894e14)
    assert diagnose(samples(**STARVED), steps, "Some GPU").mfu is None


@pytest.mark.parametrize("seen", [[], samples(count=2, utilization_pct=50), samples(**WAITS)])
def test_too_little_is_no_diagnosis(seen):
    assert diagnose(seen) is None


def test_ended_run_can_be_too_short_and_a_long_start_is_a_tag():
    few = samples(count=2, utilization_pct=50)
    assert diagnose(few, ended=EndFacts(wall_s=6.0, used=1)).cause == "too-short"
    assert diagnose(few, ended=EndFacts(wall_s=6.0)) is None  # nobody knows whether it came to the GPU
    compiled = EndFacts(wall_s=30.0, used=1, compile_s=20.0)
    assert diagnose(samples(utilization_pct=2), ended=compiled).cause == "compiling"
    facts = {"training": {"pid": 7, "device": "cuda", "first_step_after_s": 18.0, "imported_after_s": 9.0}}
    found = diagnose(samples(**STARVED), [anatomy(data=0.75), facts], ended=EndFacts(wall_s=30.0, used=1))
    assert found.cause == "data-bound" and "start-up" in found.tags and "18.0 s of 30.0 s" in found.evidence[-1]


def test_diagnosis_names_its_runner_up_and_what_would_tell_them_apart():
    found = diagnosed("the larger of two causes")
    assert found.runner_up.startswith("data-bound: ") and "; if so, steps on one batch" in found.runner_up
    assert diagnosed("a loss that is reported once a step").runner_up.startswith("python-bound")


def test_start_up_leaves_the_steps_their_own_cause():
    facts = {"training": {"pid": 7, "device": "cuda", "first_step_after_s": 49.0, "imported_after_s": 9.0}}
    found = diagnose(samples(**STARVED), [anatomy(data=0.75, seconds=12.0), facts], ended=EndFacts(wall_s=61.0, used=1))
    assert found.cause == "start-up" and found.runner_up.startswith("its steps are data-bound")
    assert not any("longer run" in advice.change for advice in found.advice)


def test_less_than_two_seconds_of_steps_are_no_diagnosis():
    assert diagnose(samples(**STARVED), [anatomy(data=0.75, seconds=1.9)]) is None
    assert diagnose(samples(**STARVED), [anatomy(data=0.75, seconds=2.1)]).cause == "data-bound"


def test_garbage_is_skipped():
    garbage = [{"gpus": 7}, {"gpus": [None, {"utilization_pct": "x", "sm_activity_pct": math.nan}]}, {"t": "soon"}, {}]
    clean = samples(**{**BUSY, **CASES["matmul"]["seen"]})
    assert signals(garbage + clean).gpu == signals(clean).gpu and diagnose(garbage + clean).cause == "compute-bound"
