"""The rules in their order: the first that holds is the cause. Numbers are in thresholds.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.common.signals import REGIONS
from seatrial.diagnosis import AT, MEANING, SHOWN_BY, THRESHOLDS, Cause, Diagnosis, tensor_peak
from seatrial.diagnosis.advice import advise
from seatrial.diagnosis.happened import SHORTEST_S, EndFacts, happened, notes, too_short
from seatrial.diagnosis.signals import Signals, ranks_wait, signals


def diagnose(
    samples: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]] = (),
    gpu_name: str = "",
    ended: EndFacts | None = None,
) -> Diagnosis | None:
    """Return what bounded the time of ``sample`` and ``step`` events, or None; ``ended``: how the run did, or None."""
    seen = signals(samples, steps, gpu_name)
    early, found = happened(seen, ended) if ended is not None else None, diagnose_signals(seen)
    if early is not None and early.cause == "start-up" and found is not None:
        return replace(early, advice=(*early.advice[1:], *found.advice)[:3], runner_up=f"its steps are {found.words}")
    if early is not None:
        return early
    if found is None and ended is not None and ended.used and ended.failed is None:
        return too_short(seen)
    if found is None or ended is None or not seen.ranks:
        return found
    noted = notes(seen.first, ended.wall_s or 0.0)
    return replace(found, tags=(*found.tags, *noted), evidence=(*found.evidence, *noted.values()))


def diagnose_signals(seen: Signals) -> Diagnosis | None:
    """Return the same from signals."""
    if seen.samples < AT.MIN_SAMPLES or not ("utilization_pct" in seen.gpu or "sm_activity_pct" in seen.gpu):
        return None
    if seen.ranks and seen.first.seconds < SHORTEST_S:
        return None
    cause = next(cause for cause, holds in RULES if holds(seen))
    tags = tuple(tag for tag, holds in TAGS if holds(seen))
    peak = tensor_peak(seen.gpu_name)
    mfu = seen.flops_per_s / (peak * 1e12 * seen.gpus) if seen.flops_per_s and peak and seen.gpus else None
    return Diagnosis(cause, tags, _evidence(seen), advise(cause, tags, seen), mfu, _runner_up(cause, seen))


def _runner_up(cause: Cause, seen: Signals) -> str:
    """Return the next largest share, or the next rule that holds, and what would show that it is the cause."""
    shares = sorted(((share(seen), other) for other, share in SHARES), reverse=True)
    others = [*(other for share, other in shares if share > 0), *(other for other, holds in RULES if holds(seen))]
    regions = sorted(((seen.share(region), other) for region, other in _OF_REGION.items()), reverse=True)
    others += [other for share, other in regions if share >= AT.ADVISED_SHARE]
    found = next((other for other in others if other != cause and other in SHOWN_BY), None)
    return f"{found}: {MEANING[found]}; if so, {SHOWN_BY[found]}" if found else ""


#: Region → the cause that it would be, were it larger.
_OF_REGION: Mapping[str, Cause] = {
    "data": "data-bound", "other": "python-bound", "copy": "host-memory-bound", "sync": "synchronisation-bound",
    "evaluation": "evaluation-bound", "checkpoint": "checkpoint-bound", "communication": "communication-bound",
    "forward": "launch-bound", "backward": "launch-bound", "optimizer": "launch-bound",
}  # fmt: skip


def _throttled_by(kind: str) -> Callable[[Signals], bool]:
    """Return the rule for a GPU's clock that was lowered for a reason of this kind for much of the time."""
    return lambda seen: any(seen.throttled.get(each, 0) >= AT.THROTTLED_SHARE for each in THRESHOLDS[kind])


def _cpu_throttled(seen: Signals) -> bool:
    return seen.host.get("cpu_throttled_pct", 0.0) >= AT.CPU_THROTTLED_PCT


def _starved(seen: Signals) -> bool:
    """Return whether the SMs have spare capacity; without GPM (before Hopper), by utilisation."""
    return seen.gpu.get("sm_activity_pct", seen.gpu.get("utilization_pct", 0.0)) < AT.STARVED_SM_PCT


def _idle(seen: Signals) -> bool:
    rests = seen.gpu.get("utilization_pct", 0.0) < AT.IDLE_UTILIZATION_PCT
    rests = rests and seen.gpu.get("sm_activity_pct", 0.0) < AT.IDLE_SM_PCT
    return rests and seen.host.get("cpu_cores", 0.0) < AT.WORKERS_ACTIVE_CORES


def _communication(seen: Signals) -> bool:
    exposed = max((rank.exposed_communication or 0.0 for rank in seen.ranks), default=0.0)
    measured = min((rank.share("communication") for rank in seen.ranks), default=0.0)
    if max(seen.communication_wait or 0.0, exposed, measured) >= AT.WAIT_SHARE:
        return True
    if seen.gpus < 2 or seen.gpu.get("tensor_activity_pct", 0.0) >= AT.COMMUNICATION_SM_PCT:
        return False
    over_pcie = (
        max(seen.gpu.get("pcie_rx_bytes_per_s", 0.0), seen.gpu.get("pcie_tx_bytes_per_s", 0.0))
        >= AT.PCIE_EXCHANGE_BYTES_PER_S
        and seen.gpu.get("utilization_pct", 0.0) >= AT.COMMUNICATION_UTILIZATION_PCT
        and seen.gpu.get("sm_activity_pct", 100.0) < AT.COMMUNICATION_SM_PCT
        and seen.gpu.get("tensor_activity_pct", 0.0) < AT.TENSOR_USED_PCT
    )
    loads = max((rank.share("data") for rank in seen.ranks), default=0.0) >= AT.WAIT_SHARE
    return _nvlink(seen) >= AT.NVLINK_BUSY_BYTES_PER_S or over_pcie or (not loads and ranks_wait(seen))


def _nvlink(seen: Signals) -> float:
    return max(seen.gpu.get("nvlink_tx_bytes_per_s", 0.0), seen.gpu.get("nvlink_rx_bytes_per_s", 0.0))


def _memory_bandwidth(seen: Signals) -> bool:
    tensor = seen.gpu.get("tensor_activity_pct", 0.0)
    dram = seen.gpu.get("dram_activity_pct", 0.0)
    arithmetic = max(tensor, seen.gpu.get("fp32_activity_pct", tensor))
    return dram > tensor and (dram >= AT.DRAM_BOUND_PCT or (dram >= AT.DRAM_LEADS_PCT and dram > 2 * arithmetic))


def _compute(seen: Signals) -> bool:
    if (activity := seen.gpu.get("sm_activity_pct")) is None:
        return seen.gpu.get("utilization_pct", 0.0) >= AT.BUSY_UTILIZATION_PCT
    return activity >= AT.COMPUTE_BOUND_SM_PCT


def _half_at_work(seen: Signals) -> bool:
    """Return whether kernels run all the time, or arithmetic is as busy as where it is the limit."""
    arithmetic = max(seen.gpu.get(key, 0.0) for key in ("tensor_activity_pct", "fp32_activity_pct"))
    return seen.gpu.get("utilization_pct", 0.0) >= AT.BUSY_UTILIZATION_PCT or arithmetic >= AT.ARITHMETIC_PCT


def _latency(seen: Signals) -> bool:
    """Return whether kernels run all the time while neither arithmetic nor memory is busy: they wait for results.

    Launches must not be missing, by the hook's measurement unless SMs are busy all the time.
    """
    keys = ("tensor_activity_pct", "fp32_activity_pct", "dram_activity_pct")
    gpu = seen.gpu
    if "sm_activity_pct" not in gpu or gpu.get("utilization_pct", 0.0) < AT.LATENCY_UTILIZATION_PCT:
        return False
    if any(gpu.get(key, 100.0) >= AT.LATENCY_ACTIVITY_PCT for key in keys):
        return False
    caught_up = seen.first.caught_up
    behind = caught_up is not None and caught_up <= AT.LATENCY_CAUGHT_UP
    return behind or gpu["sm_activity_pct"] >= AT.COMPUTE_BOUND_SM_PCT


def _host_memory(seen: Signals) -> bool:
    copies = max(seen.gpu.get("pcie_rx_bytes_per_s", 0.0), seen.gpu.get("pcie_tx_bytes_per_s", 0.0))
    # If the copies that the script waits for were measured, and are few, the limit must be the whole link.
    most = AT.PCIE_FULL_BYTES_PER_S if seen.ranks else AT.PCIE_BUSY_BYTES_PER_S
    rests = seen.gpu.get("utilization_pct", 100.0) < AT.LAUNCH_UTILIZATION_PCT
    loads = seen.host.get("worker_cpu_cores", 0.0) >= AT.WORKERS_ACTIVE_CORES
    slowly = not seen.ranks and rests and not loads and copies >= AT.PCIE_SLOW_BYTES_PER_S
    copied = (copies >= most or slowly) and seen.gpus < 2
    return _starved(seen) and (copied or (seen.host_memory_share or 0.0) >= AT.HOST_MEMORY_FULL)


def _waits_for_data(seen: Signals) -> float:
    """Return the share spent waiting for batches while the GPU, if its clock was read, waits too."""
    share = seen.share("data")
    return share if share >= AT.WAIT_SHARE and seen.first.gpu.get("data", 1.0) >= AT.GPU_WAITS_SHARE else 0.0


def _between_the_steps(seen: Signals) -> float:
    """Return the share of Python between the steps while the GPU rests."""
    share = seen.share("other") - seen.python_for_waits
    if share < AT.OWN_PYTHON_SHARE or not seen.share("forward") or not _starved(seen):
        return 0.0
    utilization = seen.gpu.get("utilization_pct", 100.0)
    between = seen.first.gpu.get("data", 0.0) >= AT.WAIT_SHARE and utilization < AT.RESTLESS_UTILIZATION_PCT
    return share if between or utilization < AT.OWN_PYTHON_UTILIZATION_PCT else 0.0


def _at_least(region: str, least: float, *, starved: bool = False) -> Callable[[Signals], float]:
    """Return the share of a region if it is so large, and the GPU is starved if that is required."""

    def share(seen: Signals) -> float:
        found = seen.share(region)
        return found if found >= least and (not starved or _starved(seen)) else 0.0

    return share


def _synchronises(seen: Signals) -> float:
    """Return the share lost to frequent or long waits for numbers of a GPU that rests; one that works is the limit."""
    if (lost := seen.lost_in_waits) < AT.SYNC_SHARE:
        return 0.0
    often = seen.first.waits_per_step >= AT.SYNCS_PER_STEP
    return lost if often or seen.share("sync") >= AT.LONG_SYNC_SHARE else 0.0


#: Measured parts of the host's time, each with the share of it that removing the part would save. The largest leads.
SHARES: tuple[tuple[Cause, Callable[[Signals], float]], ...] = (
    ("data-bound", _waits_for_data),
    ("python-bound", _between_the_steps),
    ("evaluation-bound", _at_least("evaluation", AT.WAIT_SHARE)),
    ("checkpoint-bound", _at_least("checkpoint", AT.WAIT_SHARE)),
    ("host-memory-bound", _at_least("copy", AT.COPY_SHARE, starved=True)),
    ("synchronisation-bound", _synchronises),
    ("compiling", lambda seen: seen.recompiled if seen.recompiled >= AT.WAIT_SHARE else 0.0),
)


def _leads(share: Callable[[Signals], float]) -> Callable[[Signals], bool]:
    """Return the rule that this share is the largest of those that hold."""
    return lambda seen: bool(seen.ranks) and share(seen) > 0 and share(seen) == max(other(seen) for _, other in SHARES)


def _imbalanced(seen: Signals) -> bool:
    """Return whether one rank waits in collectives for another, or one GPU is busy and another is not."""
    waits = [rank.share("communication") for rank in seen.ranks]
    if len(waits) > 1 and max(waits) >= AT.WAIT_SHARE and min(waits) <= max(waits) / 4:
        return True
    busy = seen.utilization
    return len(busy) > 1 and max(busy) >= AT.BUSY_WHILE_OTHERS_IDLE_PCT and min(busy) <= max(busy) / 4


def _workers_busy(seen: Signals) -> bool:
    """Return whether loader processes work and the process that drives the GPU waits for them."""
    workers = seen.host.get("worker_cpu_cores", 0.0) / max(1, seen.gpus)
    main = seen.host.get("main_cpu_cores", 0.0) / max(1, seen.gpus)
    return workers >= AT.WORKERS_ACTIVE_CORES and main < AT.MAIN_BUSY_CORES and _starved(seen)


def _main_launches(seen: Signals) -> bool:
    """Return whether the process that drives the GPU is busy, and its kernels run but do not fill the chip."""
    main = seen.host.get("main_cpu_cores", 0.0) / max(1, seen.gpus)
    utilization = seen.gpu.get("utilization_pct", seen.gpu.get("graphics_activity_pct", 0.0))
    if main < AT.MAIN_BUSY_CORES or utilization < AT.MAIN_LAUNCH_UTILIZATION_PCT:
        return False
    return seen.gpu.get("sm_activity_pct", 0.0) < AT.LAUNCH_SM_OF_UTILIZATION * utilization or _starved(seen)


def _kernels_too_small(seen: Signals) -> bool:
    """Return whether there is utilisation without SM activity, which nothing else explains."""
    utilization = seen.gpu.get("utilization_pct", 0.0)
    if "sm_activity_pct" not in seen.gpu or utilization < AT.LAUNCH_UTILIZATION_PCT:
        return False
    restless = utilization >= AT.RESTLESS_UTILIZATION_PCT and _starved(seen)
    return restless or seen.gpu["sm_activity_pct"] < AT.LAUNCH_SM_OF_UTILIZATION * utilization


#: Cause → rule. Measurements and reports come before inferences, and causes that stop everything come first.
RULES: tuple[tuple[Cause, Callable[[Signals], bool]], ...] = (
    ("throttled", _throttled_by("SLOWDOWNS")),
    ("throttled", lambda seen: _cpu_throttled(seen) and _starved(seen)),
    ("imbalanced", _imbalanced),
    *((cause, _leads(share)) for cause, share in SHARES),
    ("data-bound", lambda seen: (seen.data_wait or 0.0) >= AT.WAIT_SHARE),
    ("idle", _idle),
    ("communication-bound", _communication),
    ("memory-bandwidth-bound", _memory_bandwidth),
    ("host-memory-bound", _host_memory),
    ("latency-bound", _latency),
    ("compute-bound", _compute),
    ("data-bound", lambda seen: not seen.ranks and _workers_busy(seen)),  # infers what the hook measures
    ("launch-bound", _main_launches),
    ("launch-bound", _kernels_too_small),
    ("launch-bound", lambda seen: bool(seen.ranks) and _starved(seen)),  # nothing else takes the time
    ("compute-bound", _half_at_work),
    ("undetermined", lambda seen: True),
)


def _without_tensor_cores(seen: Signals) -> bool:
    tensor, fp32 = seen.gpu.get("tensor_activity_pct", 100.0), seen.gpu.get("fp32_activity_pct", 0.0)
    return tensor < min(AT.TENSOR_USED_PCT, fp32)


#: Tag → its condition. Tags do not exclude one another.
TAGS: tuple[tuple[str, Callable[[Signals], bool]], ...] = (
    ("power-cap", _throttled_by("CAPS")),
    ("slowdown", _throttled_by("SLOWDOWNS")),
    ("cpu-quota", _cpu_throttled),
    ("fp32", _without_tensor_cores),
    ("no-workers", lambda seen: seen.host.get("worker_cpu_cores", 0.0) < AT.WORKERS_ACTIVE_CORES),
    ("main-process-busy", lambda seen: seen.host.get("main_cpu_cores", 0.0) / max(1, seen.gpus) >= AT.MAIN_BUSY_CORES),
    ("communication", lambda seen: seen.gpus > 1 and _nvlink(seen) >= AT.NVLINK_TAG_BYTES_PER_S),
    ("host-memory-full", lambda seen: (seen.host_memory_share or 0.0) >= AT.HOST_MEMORY_FULL),
)


def _measured(seen: Signals) -> list[str]:
    """Return the parts of a step, and the line of the script that waits most for the GPU."""
    first = seen.first
    large = [(share, region) for region in REGIONS if (share := first.share(region)) >= 0.05]
    parts = [f"{100 * share:.0f} % of the time {first.words(region)}" for share, region in large]
    if seen.share("copy") >= 0.05 and first.copies_per_step:
        parts.append(
            f"{first.copies_per_step:.3g} copies a step, {100 * first.pageable:.0f} % of them from pageable memory"
            f" and {100 * first.blocking:.0f} % without non_blocking"
        )
    parts += [f"{site} takes {100 * share:.0f} %" for site, share in first.lines[:1] if share >= 0.05]
    worst = first.waits[:1]
    parts += [f"{wait.site} waits {wait.per_step:.3g} times a step" for wait in worst if seen.share("sync") >= 0.05]
    return parts


def _evidence(seen: Signals) -> tuple[str, ...]:
    gpu = [
        f"{label} {seen.gpu[key]:.{0 if seen.gpu[key] >= 9.95 else 1}f} %"
        for key, label in (
            ("utilization_pct", "utilisation"),
            ("sm_activity_pct", "SM activity"),
            ("tensor_activity_pct", "tensor"),
            *((("fp32_activity_pct", "fp32"), ("sm_occupancy_pct", "occupancy")) if _latency(seen) else ()),
            ("dram_activity_pct", "DRAM"),
        )
        if key in seen.gpu
    ]
    copies = [
        f"{label} {seen.gpu[key] / 1e9:.1f} GB/s"
        for key, label in (
            ("pcie_rx_bytes_per_s", "PCIe to the GPU"),
            ("pcie_tx_bytes_per_s", "PCIe from it"),
            ("nvlink_tx_bytes_per_s", "NVLink out"),
        )
        if seen.gpu.get(key, 0.0) >= 0.5e9
    ]
    processes = (("main_cpu_cores", "main process"), ("worker_cpu_cores", "workers"))
    host = [f"{label} {seen.host[key]:.2f} cores" for key, label in processes if key in seen.host]
    if (throttled := seen.host.get("cpu_throttled_pct", 0.0)) >= 1:
        host.append(f"CPU quota throttled it in {throttled:.0f} % of periods")
    reasons = [
        f"{name.replace('sw_', '').replace('hw_', 'hardware ').replace('_', ' ')} in {100 * share:.0f} % of samples"
        for name, share in sorted(seen.throttled.items())
        if share >= 0.05
    ]
    waits = [
        f"{100 * share:.0f} % of the time spent waiting for {what}, as reported by the script"
        for share, what in ((seen.data_wait, "data"), (seen.communication_wait, "other ranks"))
        if share is not None
    ]
    lines = (", ".join(part) for part in (gpu, copies, host, reasons, waits, _measured(seen)))
    return tuple(line[0].upper() + line[1:] for line in lines if line)
