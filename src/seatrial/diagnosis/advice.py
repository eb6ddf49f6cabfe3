"""Advice: the two or three changes most likely to help, in the user's terms, and what to expect of each.

A gain is an upper bound by arithmetic (a GPU that is busy a third of the time can go three times as fast before it is
the limit), or a ratio measured here; where it is neither, no number is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from seatrial.diagnosis import thresholds as at
from seatrial.diagnosis.diagnosis import Advice, Cause
from seatrial.diagnosis.signals import Signals, ranks_wait


def advise(cause: Cause, tags: tuple[str, ...], seen: Signals) -> tuple[Advice, ...]:
    """At most three changes, the most promising first."""
    return tuple(ADVICE[cause](tags, seen))[:3]


def _up_to(busy_pct: float | None) -> str:
    """The bound that a share of busy time sets on the gain of never waiting."""
    if not busy_pct:
        return f"up to {at.MAX_GAIN:.0f}× or more"
    factor = 100.0 / busy_pct
    if factor >= at.MAX_GAIN:
        return f"up to {at.MAX_GAIN:.0f}× or more"
    return f"up to {factor:.1f}×" if factor >= 1.05 else "a few percent"


def _without(share: float) -> str:
    """The bound on the gain of taking away a measured share of the time (Amdahl's law)."""
    factor = 1 / max(1e-3, 1 - share)
    if factor >= at.MAX_GAIN:
        return f"up to {at.MAX_GAIN:.0f}× or more: it is {100 * share:.0f} % of the time"
    return f"up to {factor:.2g}×: it is {100 * share:.0f} % of the time"


def _busy(seen: Signals) -> float | None:
    return seen.gpu.get("utilization_pct", seen.gpu.get("graphics_activity_pct"))


def _data(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    gain = _without(seen.share("data")) if seen.ranks else _up_to(_busy(seen))
    quota = seen.host.get("cpu_quota_cores")
    cores = max(1, math.floor(quota)) if quota else None
    within = f" (the container has {cores} cores)" if cores else ""
    found = []
    loader = seen.ranks[0].facts.get("loader") if seen.ranks else None
    set_workers = loader.get("workers") if isinstance(loader, dict) else None
    if set_workers == 0 or ("no-workers" in tags and not set_workers):
        count = min(8, cores - 1) if cores and cores > 1 else 4
        found.append(Advice(f"DataLoader(num_workers={count}, persistent_workers=True){within}", gain))
    elif quota and seen.host.get("cpu_cores", 0.0) >= 0.9 * quota:
        found.append(Advice(f"give the container more CPU: --cpus {math.ceil(quota * 2)}{within}", gain))
    else:
        workers = set_workers or max(1, round(seen.host.get("workers", 1)))
        more = min(2 * workers, cores) if cores else 2 * workers
        found.append(Advice(f"more loader workers: num_workers={more} instead of {workers}{within}", gain))
    found.append(Advice("prepare the data once, before training, and keep it on the GPU if it fits", gain))
    found.append(Advice("pin_memory=True and .to(device, non_blocking=True)", "copies overlap with computing"))
    return found


def _launch(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    gain = _up_to(seen.gpu.get("sm_activity_pct"))
    return [
        Advice("a larger batch: the same launches, more work in each", gain),
        Advice(
            'torch.compile(model, mode="reduce-overhead"), which puts the step into a CUDA graph',
            "measured on an H200: MNIST 9.05 → 0.30 s an epoch together with data kept on the GPU",
        ),
        Advice("no .item(), print or .cpu() in every step: each waits for the GPU", "up to 2×"),
    ]


def _compute(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    found = []
    if "fp32" in tags:
        found.append(Advice('torch.autocast("cuda", dtype=torch.bfloat16)', "2× to 8× in matmuls and convolutions"))
        found.append(Advice('torch.set_float32_matmul_precision("high")', "up to 4× in matmuls, no other change"))
    else:
        found.append(
            Advice("no simple change left: the GPU is fully used; use more GPUs, or a smaller model", "linear")
        )
    found.append(Advice("torch.compile(model)", "10 % to 50 % with element-wise operations between matmuls"))
    if "power-cap" in tags:
        found.append(Advice("the GPU is at its power limit: nvidia-smi -q -d POWER", "a few percent"))
    return found


def _bandwidth(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    return [
        Advice("torch.compile(model): fuses element-wise operations, so data is read once", "up to 3×"),
        Advice('torch.autocast("cuda", dtype=torch.bfloat16): half the bytes', "up to 2×"),
        Advice("channels_last for convolutions, fused=True for the optimizer", "10 % to 30 %"),
    ]


def _communication(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    if ranks_wait(seen):
        return [
            Advice("a rank is slow, stopped or dead: compare their output (seatrial runs logs RUN)", "all of it"),
            Advice("the same work for each rank: DistributedSampler, drop_last, no work for rank 0 alone", "all of it"),
        ]
    return [
        Advice("gradient accumulation with model.no_sync(): one all-reduce for several batches", "near linear"),
        Advice("a larger batch per GPU: more compute per all-reduce", "near linear"),
        Advice("DDP with gradient_as_bucket_view=True and a bf16 compression hook", "up to 2× less to send"),
    ]


def _host_memory(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    if "host-memory-full" in tags:
        return [
            Advice("a higher --memory, or fewer workers and a smaller prefetch_factor", "no more page reclaim"),
            Advice("memory-mapped data (numpy.memmap, Arrow) instead of loading all of it", "the same"),
        ]
    return [
        Advice("pin_memory=True and .to(device, non_blocking=True)", "4× to 8× faster copies, overlapped with compute"),
        Advice("keep the data on the GPU: copy once, not every step", _up_to(_busy(seen))),
        Advice("send uint8 and convert to float on the GPU", "4× less to copy"),
    ]


def _synchronisation(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    sites = [wait.site for wait in seen.ranks[0].waits[:2]] if seen.ranks else []
    gain = _without(seen.share("sync"))
    return [
        *(Advice(f"{site}: add the number up on the GPU, and read it every 50 steps", gain) for site in sites),
        Advice("no print, .item(), .cpu() or if on a CUDA tensor within a step", gain),
    ]


def _evaluation(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    return [
        Advice("evaluate less often, or on fewer batches", _without(seen.share("evaluation"))),
        Advice("a larger batch for evaluation, under torch.inference_mode()", "no gradients are kept: it fits more"),
    ]


def _checkpoint(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    return [
        Advice("save less often", _without(seen.share("checkpoint"))),
        Advice("copy to pinned host memory, and write in a thread", _without(seen.share("checkpoint"))),
    ]


def _imbalance(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    if seen.utilization and min(seen.utilization) < at.IDLE_UTILIZATION_PCT:
        return [
            Advice("one process per GPU: seatrial run --launcher torchrun, and DistributedDataParallel", "near linear"),
            Advice("only the GPUs that it uses: --gpus 1", "the others are free for somebody else"),
        ]
    return [
        Advice("the same work for each rank: DistributedSampler, drop_last, none for rank 0 alone", "all of the wait"),
        Advice("compare the ranks' output: seatrial runs logs RUN", "finds the one that is slow"),
    ]


def _nothing(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    return []


def _throttled(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    found = []
    if "cpu-quota" in tags:
        quota = seen.host.get("cpu_quota_cores", 1.0)
        found.append(Advice(f"raise the CPU limit: --cpus {math.ceil(quota) * 4}", _up_to(_busy(seen))))
        found.append(
            Advice(f"no more workers and threads than cores: num_workers={math.floor(quota)}", "less switching")
        )
    if "slowdown" in tags:
        found.append(Advice("cooling and power of the host: nvidia-smi -q -d PERFORMANCE,TEMPERATURE", "full clocks"))
    return found


def _idle(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    return [
        Advice("find out what it waits for: seatrial runs exec RUN -- py-spy dump --pid 1, or its log", "all of it"),
        Advice("a download or a lock? fetch data and models before the run, and mount them with --data", "all of it"),
    ]


#: Cause → its advice.
ADVICE: dict[Cause, Callable[[tuple[str, ...], Signals], list[Advice]]] = {
    "data-bound": _data,
    "launch-bound": _launch,
    "compute-bound": _compute,
    "memory-bandwidth-bound": _bandwidth,
    "communication-bound": _communication,
    "host-memory-bound": _host_memory,
    "throttled": _throttled,
    "idle": _idle,
    "synchronisation-bound": _synchronisation,
    "evaluation-bound": _evaluation,
    "checkpoint-bound": _checkpoint,
    "imbalanced": _imbalance,
    **dict.fromkeys(("failed-early", "cpu-only", "too-short", "start-up", "compiling"), _nothing),  # happened.py's own
}
