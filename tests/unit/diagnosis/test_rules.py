"""Every cause from samples as a GPU bound that way gives them, and samples that show nothing."""

import math

import pytest

from seatrial.diagnosis.happened import Ended
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

CASES = {
    "matmul": (
        "compute-bound",
        samples(utilization_pct=100, sm_activity_pct=97, tensor_activity_pct=80, dram_activity_pct=20,
                reasons=["sw_power_cap"], **BUSY),
    ),
    "fp32": ("compute-bound", samples(utilization_pct=100, sm_activity_pct=95, tensor_activity_pct=0,
                                      fp32_activity_pct=70, dram_activity_pct=10, **BUSY)),
    "sorting small pieces": ("latency-bound", samples(utilization_pct=99, sm_activity_pct=88, tensor_activity_pct=0,
                                                      fp32_activity_pct=3, dram_activity_pct=9, **BUSY)),
    "MNIST as a CUDA graph": ("launch-bound", samples(utilization_pct=98, sm_activity_pct=33, tensor_activity_pct=0.9,
                                                      fp32_activity_pct=4, dram_activity_pct=2, **BUSY)),
    "elementwise": ("memory-bandwidth-bound", samples(utilization_pct=100, sm_activity_pct=95, tensor_activity_pct=0,
                                                      dram_activity_pct=88, **BUSY)),
    "normalisation, a little slower": ("memory-bandwidth-bound", samples(
        utilization_pct=90, sm_activity_pct=80, tensor_activity_pct=1, fp32_activity_pct=7, dram_activity_pct=48,
        **BUSY)),
    "features copied back": ("host-memory-bound", samples(utilization_pct=8, sm_activity_pct=0.5, dram_activity_pct=0.3,
                                                          worker_cpu_cores=0, pcie_tx_bytes_per_s=1.7e9, **BUSY)),
    "tiny kernels": ("launch-bound", samples(utilization_pct=30, sm_activity_pct=4.6, dram_activity_pct=1, **BUSY)),
    "tiny kernels before Hopper": ("launch-bound", samples(utilization_pct=40, **BUSY)),
    "slow workers": ("data-bound", samples(utilization_pct=25, sm_activity_pct=3, worker_cpu_cores=3.9, workers=4,
                                           cpu_quota_cores=16, **WAITS)),
    # The next three as measured on an H200, 2026-11-21.
    "loader in main": ("data-bound", samples(utilization_pct=0.5, sm_activity_pct=0, worker_cpu_cores=0, workers=0,
                                             **BUSY)),
    "a loop of tiny kernels": ("launch-bound", samples(utilization_pct=8.3, sm_activity_pct=0.4, workers=0,
                                                       worker_cpu_cores=0, **BUSY)),
    "a sync every step": ("launch-bound", samples(utilization_pct=6.7, sm_activity_pct=0.3, workers=0,
                                                  worker_cpu_cores=0, **BUSY)),
    # As measured the second time, without torch's optimizer in the step.
    "a loop of tiny kernels, quicker": ("launch-bound", samples(utilization_pct=18, sm_activity_pct=0.8, workers=0,
                                                                pcie_rx_bytes_per_s=1e8, worker_cpu_cores=0, **BUSY)),
    "half a core": ("throttled", samples(utilization_pct=1.0, sm_activity_pct=0.06, cpu_throttled_pct=100,
                                         cpu_quota_cores=0.5, main_cpu_cores=0.37, cpu_cores=0.44)),
    "a loader as measured": ("data-bound", samples(utilization_pct=0.7, sm_activity_pct=0.06, worker_cpu_cores=1.44,
                                                   workers=2, main_cpu_cores=0.15, cpu_cores=1.6)),
    # The next five as measured on 2 and 4 H200, 2026-11-21.
    "a rank was killed": ("communication-bound", samples(gpus=4, utilization_pct=64, sm_activity_pct=12,
                                                         tensor_activity_pct=0.3, dram_activity_pct=0.2, workers=4,
                                                         pcie_rx_bytes_per_s=1e9, nvlink_tx_bytes_per_s=5e8,
                                                         worker_cpu_cores=0.75, main_cpu_cores=2.93, cpu_cores=3.7)),
    "a hung collective": ("communication-bound", samples(gpus=4, utilization_pct=59, sm_activity_pct=0.4,
                                                         tensor_activity_pct=0, dram_activity_pct=0, workers=4,
                                                         worker_cpu_cores=0.38, main_cpu_cores=2.39, cpu_cores=2.8)),
    "small kernels on four": ("launch-bound", samples(gpus=4, utilization_pct=78, sm_activity_pct=25,
                                                      tensor_activity_pct=2.7, dram_activity_pct=1.8,
                                                      nvlink_tx_bytes_per_s=3e9, main_cpu_cores=4, cpu_cores=4)),
    "BERT on four, short epochs": ("launch-bound", samples(gpus=4, utilization_pct=66, sm_activity_pct=38,
                                                           tensor_activity_pct=6.4, dram_activity_pct=14,
                                                           nvlink_tx_bytes_per_s=3.8e10, pcie_rx_bytes_per_s=2e9,
                                                           main_cpu_cores=2.24, cpu_cores=2.3)),
    "BERT on four": ("compute-bound", samples(gpus=4, utilization_pct=99, sm_activity_pct=61, tensor_activity_pct=10.4,
                                              dram_activity_pct=22, nvlink_tx_bytes_per_s=6.7e10, main_cpu_cores=3.0,
                                              pcie_rx_bytes_per_s=4.5e9, cpu_cores=3.8)),
    "slow disk": ("data-bound", samples(utilization_pct=8, sm_activity_pct=5, worker_cpu_cores=0.05, **WAITS)),
    "pageable copies": ("host-memory-bound", samples(utilization_pct=35, sm_activity_pct=5,
                                                     pcie_rx_bytes_per_s=9e9, **BUSY)),
    "all-reduce": ("communication-bound", samples(gpus=2, utilization_pct=100, sm_activity_pct=18,
                                                  tensor_activity_pct=1, nvlink_tx_bytes_per_s=2e11,
                                                  dram_activity_pct=12, **BUSY)),
    "all-reduce over PCIe": ("communication-bound", samples(gpus=2, utilization_pct=99, sm_activity_pct=18,
                                                            tensor_activity_pct=1, pcie_rx_bytes_per_s=2e10,
                                                            dram_activity_pct=5, **BUSY)),
    "quota": ("throttled", samples(utilization_pct=5, sm_activity_pct=1, cpu_throttled_pct=95, cpu_quota_cores=0.5,
                                   main_cpu_cores=0.5, cpu_cores=0.5)),
    "heat": ("throttled", samples(utilization_pct=100, sm_activity_pct=97, reasons=["hw_thermal_slowdown"], **BUSY)),
    "one of two works": ("imbalanced", one_of_two(81, 0)),
    "nothing": ("idle", samples(utilization_pct=0, sm_activity_pct=0, main_cpu_cores=0.0, cpu_cores=0.02)),
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


STARVED = samples(utilization_pct=12, sm_activity_pct=3, tensor_activity_pct=1, dram_activity_pct=2, **BUSY)
LOADERS = samples(utilization_pct=12, sm_activity_pct=3, worker_cpu_cores=3.9, workers=4, **WAITS)
FULL = samples(utilization_pct=99, sm_activity_pct=90, tensor_activity_pct=60, **BUSY)
LATENCY = samples(
    utilization_pct=99, sm_activity_pct=6, tensor_activity_pct=0, fp32_activity_pct=2, dram_activity_pct=1, **BUSY
)
RESTING = samples(utilization_pct=2, sm_activity_pct=0.2, **BUSY)
NOTHING = samples(utilization_pct=0, sm_activity_pct=0, main_cpu_cores=0.0, cpu_cores=0.02)
WAITS_AT = [["train.py:41 item", 400, 1.2]]

#: What was measured inside decides where samples alone would guess, or guess wrong.
MEASURED = {
    "a long small LSTM": ("latency-bound", LATENCY, [anatomy(window={"gpu": {"forward": 1.0}, "caught_up": [2, 40]})]),
    "the same, and a GPU that waits for the host": ("launch-bound", LATENCY, [
        anatomy(window={"gpu": {"forward": 1.0}, "caught_up": [39, 40]})]),
    "a long LSTM that computes": ("compute-bound", samples(utilization_pct=99, sm_activity_pct=72, fp32_activity_pct=40,
                                  tensor_activity_pct=0, dram_activity_pct=4, **BUSY), [
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
    "a wait for a GPU that never rests": ("launch-bound", samples(utilization_pct=97, sm_activity_pct=30, **BUSY), [
        anatomy(sync=0.7, window={"waits": WAITS_AT})]),
    "losses that are printed, and a GPU that rests a third of the time": ("synchronisation-bound", samples(
        utilization_pct=67, sm_activity_pct=63, tensor_activity_pct=0, fp32_activity_pct=45, **BUSY), [
        anatomy(sync=0.7, window={"waits": WAITS_AT})]),
    "the same, and a GPU that hardly rests": ("compute-bound", samples(
        utilization_pct=85, sm_activity_pct=75, **BUSY), [anatomy(sync=0.5, window={"waits": WAITS_AT})]),
    "the larger of two causes": ("evaluation-bound", STARVED, [anatomy(evaluation=0.55, data=0.35)]),
    "a disk that is waited for": ("data-bound", NOTHING, [anatomy(data=0.95)]),
    "pinned copies of small batches": ("launch-bound", samples(utilization_pct=20, sm_activity_pct=5,
                                       pcie_rx_bytes_per_s=4e9, **BUSY), [anatomy(copy=0.05)]),
    "evaluation after every few steps": ("evaluation-bound", STARVED, [anatomy(evaluation=0.7, data=0.05)]),
    "a checkpoint after every step": ("checkpoint-bound", STARVED, [anatomy(checkpoint=0.6)]),
    "copies from pageable memory": ("host-memory-bound", STARVED, [anatomy(copy=0.5)]),
    "a rank that waits for another": ("imbalanced", samples(gpus=2, utilization_pct=90, sm_activity_pct=5,
                                      tensor_activity_pct=0, dram_activity_pct=0, **BUSY),
                                      [anatomy(communication=0.7, rank=0), anatomy(communication=0.02, rank=1)]),
    "ranks that wait for the network": ("communication-bound", samples(gpus=2, utilization_pct=90, sm_activity_pct=20,
                                        tensor_activity_pct=3, **BUSY),
                                        [anatomy(communication=0.5, rank=0), anatomy(communication=0.45, rank=1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_inside_decides(name):
    expected, seen, steps = MEASURED[name]
    found = diagnose(seen, steps)
    assert found.cause == expected, found
    assert 1 <= len(found.advice) <= 3


def test_a_gain_is_what_the_measured_share_allows():
    found = diagnose(STARVED, [anatomy(data=0.75)])
    assert found.advice[0].gain.startswith("at most 4×: waiting for data is 75 % of the time")
    assert "75 % of the time waiting for data" in " ".join(found.evidence)


@pytest.mark.parametrize("name", [*CASES, *MEASURED])
def test_no_gain_is_promised_that_no_number_stands_behind(name):
    _, seen, *steps = CASES.get(name) or MEASURED[name]
    for advice in diagnose(seen, *steps, gpu_name="NVIDIA H200").advice:
        assert "up to" not in advice.gain
        assert "×" not in advice.gain or "at most" in advice.gain, advice


def test_copies_name_what_slows_them():
    copied = {"count": 80, "bytes": 8e6, "pageable": 80, "blocking": 40}
    found = diagnose(STARVED, [anatomy(copy=0.5, window={"copied": copied})])
    assert "2 copies a step, 100 % of them from pageable memory and 50 % without non_blocking" in " ".join(
        found.evidence
    )


def test_a_wait_costs_no_more_than_the_gpu_rests():
    busy = samples(utilization_pct=75, sm_activity_pct=60, **BUSY)
    found = diagnose(busy, [anatomy(sync=0.7, window={"waits": WAITS_AT})])
    assert found.cause == "synchronisation-bound" and found.advice[0].gain.startswith("at most 1.3×: 25 %")


def test_the_worst_line_is_named():
    found = diagnose(STARVED, [anatomy(sync=0.4, window={"waits": WAITS_AT})])
    assert found.advice[0].change.startswith("train.py:41 item")


def test_every_cause_has_a_case():
    cases = {cause for cause, _ in CASES.values()} | {cause for cause, _, _ in MEASURED.values()}
    assert {cause for cause, _ in RULES} == cases


def test_a_good_matmul_at_the_power_cap_is_compute_bound_with_a_tag():
    assert diagnose(CASES["matmul"][1]).tags[0] == "power-cap"


def test_communication_is_a_tag_before_it_is_the_cause():
    assert "communication" in diagnose(CASES["BERT on four"][1]).tags
    assert "communication" not in diagnose(CASES["small kernels on four"][1]).tags


def test_waiting_ranks_are_advised_to_find_the_slow_one():
    assert "a rank is slow, stopped or dead" in diagnose(CASES["a rank was killed"][1]).advice[0].change
    assert "a rank" not in diagnose(CASES["all-reduce"][1]).advice[0].change


def test_fp32_is_advised_bf16_and_bf16_is_not():
    assert any("bfloat16" in advice.change for advice in diagnose(CASES["fp32"][1]).advice)
    assert not any("bfloat16" in advice.change for advice in diagnose(CASES["matmul"][1]).advice)


def test_workers_are_advised_within_the_quota():
    seen = samples(utilization_pct=1.5, sm_activity_pct=0.2, worker_cpu_cores=0, workers=0, cpu_quota_cores=4.0, **BUSY)
    first = diagnose(seen).advice[0]
    assert (
        "num_workers=3" in first.change and "4 cores" in first.change and first.gain.startswith("at most 10× or more: ")
    )


def test_reports_of_the_script_come_first():
    steps = [{"t": 100.0 + n, "data_s": 0.6, "flops": 2e14} for n in range(5)]
    found = diagnose(CASES["tiny kernels"][1], steps, "NVIDIA H200")
    assert found.cause == "data-bound" and any("60 % of the time" in line for line in found.evidence)
    assert found.mfu == pytest.approx(2e14 / 9.89e14)


def test_mfu_is_not_guessed():
    steps = [{"t": 100.0 + n, "flops": 2e14} for n in range(5)]
    assert diagnose(CASES["matmul"][1], steps, "Some GPU").mfu is None


@pytest.mark.parametrize("seen", [[], samples(count=2, utilization_pct=50), samples(**WAITS)])
def test_too_little_is_no_diagnosis(seen):
    assert diagnose(seen) is None


def test_ended_run_can_be_too_short():
    few = samples(count=2, utilization_pct=50)
    assert diagnose(few, ended=Ended(wall_s=6.0, used=1)).cause == "too-short"
    assert diagnose(few, ended=Ended(wall_s=6.0)) is None  # nobody knows whether it came to the GPU
    compiled = Ended(wall_s=30.0, used=1, compile_s=20.0)
    assert diagnose(samples(utilization_pct=2), ended=compiled).cause == "compiling"


def test_a_long_start_is_a_tag_where_the_steps_are_judged():
    facts = {"training": {"pid": 7, "device": "cuda", "first_step_after_s": 18.0, "imported_after_s": 9.0}}
    found = diagnose(STARVED, [anatomy(data=0.75), facts], ended=Ended(wall_s=30.0, used=1))
    assert found.cause == "data-bound" and "start-up" in found.tags and "18.0 s of 30.0 s" in found.evidence[-1]


def test_garbage_is_passed_over():
    garbage = [{"gpus": 7}, {"gpus": [None, {"utilization_pct": "x", "sm_activity_pct": math.nan}]}, {"t": "soon"}, {}]
    clean = CASES["matmul"][1]
    assert signals(garbage + clean).gpu == signals(clean).gpu and diagnose(garbage + clean).cause == "compute-bound"
