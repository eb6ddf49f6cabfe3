"""Every cause from samples as a GPU bound that way gives them, and samples that show nothing."""

import math

import pytest

from seatrial.diagnosis.happened import EndFacts
from seatrial.diagnosis.rules import RULES, diagnose
from seatrial.diagnosis.signals import signals


def samples(count=5, gpus=1, reasons=(), **values):
    gpu_keys = {key: value for key, value in values.items() if key.endswith(("_pct", "_per_s")) and "cpu" not in key}
    host = {key: value for key, value in values.items() if key not in gpu_keys}
    return [
        {
            "t": 100.0 + second,
            "gpus": [{"uuid": f"GPU-{n}", "throttle_reasons": list(reasons), **gpu_keys} for n in range(gpus)],
            **host,
        }
        for second in range(count)
    ]


def one_of_two(*utilization):
    found = samples(gpus=len(utilization), sm_activity_pct=20, tensor_activity_pct=3, **BUSY)
    for sample in found:
        for gpu, value in zip(sample["gpus"], utilization, strict=True):
            gpu["utilization_pct"] = value
    return found


BUSY = {"main_cpu_cores": 1.0, "cpu_cores": 1.0}
WAITS = {"main_cpu_cores": 0.1, "cpu_cores": 0.1}


def gpu(utilization, sm=None, tensor=None, dram=None, **more):
    """Samples of a GPU, with a busy main process unless ``more`` has another."""
    found = {"sm_activity_pct": sm, "tensor_activity_pct": tensor, "dram_activity_pct": dram}
    known = {key: value for key, value in found.items() if value is not None}
    return samples(utilization_pct=utilization, **known, **{**BUSY, **more})


def on_four(utilization, sm, tensor, dram, cores, **more):
    return gpu(utilization, sm, tensor, dram, gpus=4, main_cpu_cores=cores, cpu_cores=cores, **more)


HELD = {"cpu_throttled_pct": 95, "cpu_quota_cores": 0.5, "main_cpu_cores": 0.5, "cpu_cores": 0.5}
NO_WORKERS, RX, TX, NVLINK = (
    {"worker_cpu_cores": 0, "workers": 0},
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
)

#: Those "as measured" were on an H200, or on 2 and 4 of them, on 2026-11-21.
CASES = {
    "matmul": ("compute-bound", gpu(100, 97, 80, 20, reasons=["sw_power_cap"])),
    "fp32": ("compute-bound", gpu(100, 95, 0, 10, fp32_activity_pct=70)),
    "sorting small pieces": ("latency-bound", gpu(99, 88, 0, 9, fp32_activity_pct=3)),
    "MNIST as a CUDA graph": ("launch-bound", gpu(98, 33, 0.9, 2, fp32_activity_pct=4)),
    "elementwise": ("memory-bandwidth-bound", gpu(100, 95, 0, 88)),
    "normalisation": ("memory-bandwidth-bound", gpu(90, 80, 1, 48, fp32_activity_pct=7)),
    "features copied back": ("host-memory-bound", gpu(8, 0.5, None, 0.3, worker_cpu_cores=0, **{TX: 1.7e9})),
    "tiny kernels": ("launch-bound", gpu(30, 4.6, None, 1)),
    "tiny kernels before Hopper": ("launch-bound", gpu(40)),
    "slow workers": ("data-bound", gpu(25, 3, worker_cpu_cores=3.9, workers=4, cpu_quota_cores=16, **WAITS)),
    "loader in main, as measured": ("data-bound", gpu(0.5, 0, **NO_WORKERS)),
    "tiny kernels, as measured": ("launch-bound", gpu(8.3, 0.4, **NO_WORKERS)),
    "a sync every step, as measured": ("launch-bound", gpu(6.7, 0.3, **NO_WORKERS)),
    "tiny kernels, as measured again": ("launch-bound", gpu(18, 0.8, **NO_WORKERS, **{RX: 1e8})),
    "half a core, as measured": ("throttled", gpu(1.0, 0.06, **{**HELD, "cpu_throttled_pct": 100})),
    "a loader, as measured": (
        "data-bound", gpu(0.7, 0.06, worker_cpu_cores=1.44, workers=2, main_cpu_cores=0.15, cpu_cores=1.6)),
    "a rank was killed, as measured": (
        "communication-bound", on_four(64, 12, 0.3, 0.2, 2.93, worker_cpu_cores=0.75, **{RX: 1e9, NVLINK: 5e8})),
    "a hung collective, as measured": ("communication-bound", on_four(59, 0.4, 0, 0, 2.39, worker_cpu_cores=0.38)),
    "small kernels on four, as measured": ("launch-bound", on_four(78, 25, 2.7, 1.8, 4, **{NVLINK: 3e9})),
    "BERT on four, short epochs": ("launch-bound", on_four(66, 38, 6.4, 14, 2.24, **{NVLINK: 3.8e10, RX: 2e9})),
    "BERT on four": ("compute-bound", on_four(99, 61, 10.4, 22, 3.0, **{NVLINK: 6.7e10, RX: 4.5e9})),
    "slow disk": ("data-bound", gpu(8, 5, worker_cpu_cores=0.05, **WAITS)),
    "pageable copies": ("host-memory-bound", gpu(35, 5, **{RX: 9e9})),
    "all-reduce": ("communication-bound", gpu(100, 18, 1, 12, gpus=2, **{NVLINK: 2e11})),
    "all-reduce over PCIe": ("communication-bound", gpu(99, 18, 1, 5, gpus=2, **{RX: 2e10})),
    "quota": ("throttled", gpu(5, 1, **HELD)),
    "heat": ("throttled", gpu(100, 97, reasons=["hw_thermal_slowdown"])),
    "one of two works": ("imbalanced", one_of_two(81, 0)),
    "nothing": ("idle", gpu(0, 0, main_cpu_cores=0.0, cpu_cores=0.02)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cause(name):
    expected, seen = CASES[name]
    found = diagnose(seen)
    assert found.cause == expected, found
    assert 1 <= len(found.advice) <= 3 and found.evidence
    assert found.words.startswith(expected + ": ")


def anatomy(steps=400, seconds=20.0, rank=0, window=None, **regions):
    """The hook's line of a script whose GPU is not the limit; shares that add up with ``other``."""
    spent = {name: share * seconds for name, share in regions.items()}
    spent["other"] = seconds - sum(spent.values())
    line = {"pid": 7 + rank, "steps": steps, "seconds": seconds, "examples": 64 * steps, "regions": spent}
    if window is not None:
        line["window"] = {"steps": 40, "seconds": 2.0, "regions": {k: v / 10 for k, v in spent.items()}, **window}
    return {"t": 104.0, "rank": rank, "anatomy": line}


STARVED = gpu(12, 3, 1, 2)
LOADERS = gpu(12, 3, worker_cpu_cores=3.9, workers=4, **WAITS)
FULL = gpu(99, 90, 60)
LATENCY = gpu(99, 6, 0, 1, fp32_activity_pct=2)
RESTING = gpu(2, 0.2)
NOTHING = gpu(0, 0, main_cpu_cores=0.0, cpu_cores=0.02)
WAITS_AT = [["train.py:41 item", 400, 1.2]]

#: What was measured inside decides where samples alone would guess, or guess wrong.
MEASURED = {
    "a long small LSTM": ("latency-bound", LATENCY, [anatomy(window={"gpu": {"forward": 1.0}, "caught_up": [2, 40]})]),
    "the same, and a GPU that waits for the host": ("launch-bound", LATENCY, [
        anatomy(window={"gpu": {"forward": 1.0}, "caught_up": [39, 40]})]),
    "a long LSTM that computes": ("compute-bound", gpu(99, 72, 0, 4, fp32_activity_pct=40), [
        anatomy(window={"gpu": {"forward": 1.0}, "caught_up": [2, 40]})]),
    "a loader that is slow": ("data-bound", STARVED, [anatomy(data=0.8)]),
    "workers that nobody waits for": ("launch-bound", LOADERS, [anatomy(data=0.02, backward=0.5)]),
    "a GPU that works while the loader is waited for": ("compute-bound", FULL, [
        anatomy(data=0.6, window={"gpu": {"data": 0.05, "forward": 0.95}})]),
    "a line that asks for numbers": ("synchronisation-bound", STARVED, [anatomy(sync=0.4, window={"waits": WAITS_AT})]),
    "a loss that is reported once a step": ("launch-bound", STARVED, [
        anatomy(sync=0.25, window={"waits": [["train.py:41 item", 40, 1.2]]})]),
    "batches that the loop makes itself": ("data-bound", RESTING, [anatomy(window={"regions": {
        "other": 1.6, "forward": 0.2, "backward": 0.2}})]),
    "Python between steps, and a GPU that works": ("launch-bound", STARVED, [anatomy(window={"regions": {
        "other": 1.6, "forward": 0.2, "backward": 0.2}})]),
    "one wait a step that takes half of it": ("synchronisation-bound", STARVED, [
        anatomy(sync=0.5, window={"waits": [["train.py:41 item", 40, 1.2]]})]),
    "a wait for a GPU that never rests": ("launch-bound", gpu(97, 30), [
        anatomy(sync=0.7, window={"waits": WAITS_AT})]),
    "printed losses, and a GPU that rests a third": ("synchronisation-bound", gpu(67, 63, 0, fp32_activity_pct=45), [
        anatomy(sync=0.7, window={"waits": WAITS_AT})]),
    "and a GPU that hardly rests": ("compute-bound", gpu(85, 75), [anatomy(sync=0.5, window={"waits": WAITS_AT})]),
    "the larger of two causes": ("evaluation-bound", STARVED, [anatomy(evaluation=0.55, data=0.35)]),
    "a disk that is waited for": ("data-bound", NOTHING, [anatomy(data=0.95)]),
    "pinned copies of small batches": ("launch-bound", gpu(20, 5, **{RX: 4e9}), [anatomy(copy=0.05)]),
    "evaluation after every few steps": ("evaluation-bound", STARVED, [anatomy(evaluation=0.7, data=0.05)]),
    "a checkpoint after every step": ("checkpoint-bound", STARVED, [anatomy(checkpoint=0.6)]),
    "copies from pageable memory": ("host-memory-bound", STARVED, [anatomy(copy=0.5)]),
    "a rank that waits for another": ("imbalanced", gpu(90, 5, 0, 0, gpus=2), [
        anatomy(communication=0.7, rank=0), anatomy(communication=0.02, rank=1)]),
    "ranks that wait for the network": ("communication-bound", gpu(90, 20, 3, gpus=2), [
        anatomy(communication=0.5, rank=0), anatomy(communication=0.45, rank=1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_measured_steps_decide(name):
    expected, seen, steps = MEASURED[name]
    found = diagnose(seen, steps)
    assert found.cause == expected, found
    assert 1 <= len(found.advice) <= 3


@pytest.mark.parametrize("name", [*CASES, *MEASURED])
def test_every_gain_is_a_bound(name):
    _, seen, *steps = CASES.get(name) or MEASURED[name]
    for advice in diagnose(seen, *steps, gpu_name="NVIDIA H200").advice:
        assert "up to" not in advice.gain
        assert "×" not in advice.gain or "at most" in advice.gain, advice


COPIED = {"count": 80, "bytes": 8e6, "pageable": 80, "blocking": 40}


@pytest.mark.parametrize(
    ("seen", "steps", "change", "gain", "evidence"),
    [
        (STARVED, anatomy(data=0.75), "", "at most 4×: waiting for data is 75 % of", "75 % of the time waiting"),
        (STARVED, anatomy(copy=0.5, window={"copied": COPIED}), "", "",
         "2 copies a step, 100 % of them from pageable memory and 50 % without non_blocking"),
        (gpu(75, 60), anatomy(sync=0.7, window={"waits": WAITS_AT}), "", "at most 1.3×: 25 %", ""),
        (STARVED, anatomy(sync=0.4, window={"waits": WAITS_AT}), "train.py:41 item", "", ""),
        (gpu(1.5, 0.2, **NO_WORKERS, cpu_quota_cores=4.0), None,
         "DataLoader(num_workers=3, persistent_workers=True) (the container has 4 cores)", "at most 10× or more: ", ""),
    ],
)  # fmt: skip
def test_first_advice_follows_from_the_measurement(seen, steps, change, gain, evidence):
    found = diagnose(seen, [steps] if steps else [])
    assert found.advice[0].change.startswith(change) and found.advice[0].gain.startswith(gain)
    assert evidence in " ".join(found.evidence)


def test_every_cause_has_a_case():
    cases = {cause for cause, _ in CASES.values()} | {cause for cause, _, _ in MEASURED.values()}
    assert {cause for cause, _ in RULES} == cases


def test_tags_and_advice_of_a_case():
    found = {name: diagnose(seen) for name, (_, seen) in CASES.items()}
    assert found["matmul"].tags[0] == "power-cap" and "communication" in found["BERT on four"].tags
    assert "communication" not in found["small kernels on four, as measured"].tags
    assert "a rank is slow, stopped or dead" in found["a rank was killed, as measured"].advice[0].change
    assert "a rank" not in found["all-reduce"].advice[0].change
    bf16 = {name: any("bfloat16" in advice.change for advice in found[name].advice) for name in ("fp32", "matmul")}
    assert bf16 == {"fp32": True, "matmul": False}


def test_reports_of_the_script_come_first():
    steps = [{"t": 100.0 + n, "data_s": 0.6, "flops": 2e14} for n in range(5)]
    found = diagnose(CASES["tiny kernels"][1], steps, "NVIDIA H200")
    assert found.cause == "data-bound" and any("60 % of the time" in line for line in found.evidence)
    assert found.mfu == pytest.approx(2e14 / 9.89e14)
    assert diagnose(CASES["matmul"][1], steps, "Some GPU").mfu is None


@pytest.mark.parametrize("seen", [[], samples(count=2, utilization_pct=50), samples(**WAITS)])
def test_too_little_is_no_diagnosis(seen):
    assert diagnose(seen) is None


def test_ended_run_can_be_too_short():
    few = samples(count=2, utilization_pct=50)
    assert diagnose(few, ended=EndFacts(wall_s=6.0, used=1)).cause == "too-short"
    assert diagnose(few, ended=EndFacts(wall_s=6.0)) is None  # nobody knows whether it came to the GPU
    compiled = EndFacts(wall_s=30.0, used=1, compile_s=20.0)
    assert diagnose(samples(utilization_pct=2), ended=compiled).cause == "compiling"


def test_long_start_is_a_tag():
    facts = {"training": {"pid": 7, "device": "cuda", "first_step_after_s": 18.0, "imported_after_s": 9.0}}
    found = diagnose(STARVED, [anatomy(data=0.75), facts], ended=EndFacts(wall_s=30.0, used=1))
    assert found.cause == "data-bound" and "start-up" in found.tags and "18.0 s of 30.0 s" in found.evidence[-1]


def test_garbage_is_skipped():
    garbage = [{"gpus": 7}, {"gpus": [None, {"utilization_pct": "x", "sm_activity_pct": math.nan}]}, {"t": "soon"}, {}]
    clean = CASES["matmul"][1]
    assert signals(garbage + clean).gpu == signals(clean).gpu and diagnose(garbage + clean).cause == "compute-bound"
