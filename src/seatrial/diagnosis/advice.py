"""Advice: the two or three changes most likely to help, in the user's terms, and the most to expect of each.

A gain is a bound that follows from what was measured, by Amdahl's law: a part that takes 75 % of the time gives 4× when
it is gone. Without a bound, none is shown. ``seatrial tune`` measures the real effect of a change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from importlib import resources

from seatrial.common.gpu_peaks import peak_tflops
from seatrial.diagnosis import AT, CAUSES, THRESHOLDS, Advice, Cause, tensor_peak
from seatrial.diagnosis.signals import Signals, ranks_wait

UNKNOWN = "no bound follows from what was measured"


def advise(cause: Cause, tags: tuple[str, ...], seen: Signals) -> tuple[Advice, ...]:
    """Return at most three changes, the most promising first."""
    return tuple(ADVICE[cause](tags, seen))[:3] if cause in ADVICE else ()


def _times(share: float) -> str:
    """Return the gain of taking away a share of the time."""
    if (factor := 1 / max(1e-3, 1 - share)) >= AT.MAX_GAIN:
        return f"{AT.MAX_GAIN:.0f}× or more"
    return f"{factor:.2g}×" if factor >= 1.05 else "a few percent"


def _without(share: float, what: str = "it") -> str:
    """Return the bound on the gain of taking away a measured share of the time."""
    return f"at most {_times(share)}: {what} is {100 * share:.0f} % of the time"


def _full(busy_pct: float | None, what: str) -> str:
    """Return the bound of a GPU that is busy for a part of the time: it can be busy all the time."""
    if busy_pct is None:
        return UNKNOWN
    return f"at most {_times(1 - busy_pct / 100)}: {what} {busy_pct:.0f} % of the time now"


def _rest(seen: Signals) -> str:
    """Return the gain until the GPU never rests."""
    return _full(seen.gpu.get("utilization_pct", seen.gpu.get("graphics_activity_pct")), "the GPU runs kernels")


def _sped_up(share: float, what: str, times: float, whole: float | None = None, more: float = 0.0) -> str:
    """Return the bound on the gain of speeding up a share, or ``whole``, while the rest stays and takes ``more``."""
    most = _times(1 - max(1 - share + more, (whole or share) / times))
    return f"at most {most}: {what} is {100 * share:.0f} % of the time, and can be {times:.2g}× as fast"


def _always(cause: Cause, seen: Signals, key: str = "advice") -> list[Advice]:
    """Return the advice of causes.toml, with the bounds that it names."""
    most_pct = max(seen.gpu.get(f"{unit}_activity_pct", 0.0) for unit in ("tensor", "fp32", "dram"))
    busy = seen.utilization or (0.0,)
    apart = max([(max(busy) - min(busy)) / 100, *(rank.share("communication") for rank in seen.ranks)])
    bounds = {
        "unknown": UNKNOWN,
        "rest": _rest(seen),
        "larger": _larger(most_pct),
        "fill": _full(most_pct, "arithmetic and memory are at work at most"),
        "ranks": _waiting(seen),
        "half": _waiting(seen, 0.5),
        "uneven": _without(apart, "a rank's waiting"),
        "python": _without(seen.share("other"), "Python between the steps"),
        "evaluation": _without(seen.share("evaluation"), "evaluation"),
        "saving": _without(seen.share("checkpoint"), "saving"),
        "recompiled": _without(seen.recompiled, "compiling after the first steps"),
    }
    return [Advice(change, gain.format_map(bounds)) for change, gain in CAUSES[cause][key]]


def _by_table(cause: Cause, tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    return _always(cause, seen, "if_ranks_wait" if "if_ranks_wait" in CAUSES[cause] and ranks_wait(seen) else "advice")


def _data(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    waited, first = seen.share("data"), seen.first
    gain = _without(waited, "waiting for data") if waited else _rest(seen)
    limits = [seen.host.get("cpu_quota_cores"), first.facts.get("cores")]
    cores = min((max(1, math.floor(limit)) for limit in limits if isinstance(limit, (int, float)) and limit), default=0)
    within = f" (the container has {cores} cores)" if cores else ""
    loader = first.facts.get("loader")
    workers = loader.get("workers") if isinstance(loader, dict) else None
    if not isinstance(workers, int):
        workers = 0 if "no-workers" in tags else max(1, round(seen.host.get("workers", 1)))
    busy = seen.host.get("worker_cpu_cores", 0.0) / workers if workers else seen.host.get("main_cpu_cores", 1.0)
    most = int(AT.MOST_WORKERS) if cores else max(4, 2 * workers)
    if busy >= AT.MAKER_BUSY_CORES and cores:
        most = min(most, max(1, cores // max(1, seen.gpus) - 1))
    found = []
    if first.starts_s / (first.seconds or 1.0) >= max(AT.ADVISED_SHARE, waited / 3):  # before the first batch
        found.append(Advice("persistent_workers=True, in a DataLoader that is made once", gain))
    if cores and seen.host.get("cpu_cores", 0.0) >= 0.9 * cores:
        wanted = max(2 * cores, workers + 1)
        by_cores = f"at most {_times(1 - cores / wanted)}: all cores are at work"
        found.append(Advice(f"give the container more CPU: --cpus {wanted}{within}", by_cores))
    elif workers < most:
        change = f"more loader workers: num_workers={most} instead of {workers}{within}"
        change = change if workers else f"DataLoader(num_workers={most}, persistent_workers=True){within}"
        whole, more = (1.0, 0.0) if workers else (waited, AT.FROM_WORKER_S * (first.steps_per_s or 0.0))
        by_workers = _sped_up(waited, "waiting for data", most / max(1, workers), whole, min(more, waited))
        found.append(Advice(change, by_workers if waited else gain))
    found.append(Advice("prepare the data once, before training, and keep it on the GPU if it fits", gain))
    if (copied := seen.share("copy")) >= AT.ADVISED_SHARE:
        found.append(Advice("pin_memory=True and .to(device, non_blocking=True)", _without(copied, "copying")))
    return found


def _python(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    found = [
        Advice(f"{site}: take it out of the step, or let workers do it ahead", _without(share, "this line"))
        for site, share in seen.first.lines[:2]
        if share >= AT.ADVISED_SHARE
    ]
    if not found:
        gain = _without(seen.share("other"), "Python between the steps")
        found.append(Advice("find the line: py-spy record, or Python 3.12 or later, which names it here", gain))
    return [*found, *_always("python-bound", seen)]


def _larger(busy_pct: float | None) -> str:
    """Return the bound on the gain of a batch BATCHES times as large, from the share of the GPU at work."""
    if busy_pct is None:
        return UNKNOWN
    most = _times(1 - max(busy_pct / 100, 1 / AT.BATCHES))
    return f"at most {most}, in examples a second, with {AT.BATCHES:.0f} times the batch: it works {busy_pct:.0f} % now"


def _launch(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    found = [
        Advice("a larger batch: the same launches, more work in each", _larger(seen.gpu.get("sm_activity_pct"))),
        Advice('torch.compile(model, mode="reduce-overhead"), which puts the step into a CUDA graph', _rest(seen)),
    ]
    for site, share in seen.first.lines[:1]:
        if share >= AT.WAIT_SHARE:
            change = f"{site}: torch._foreach_ functions for all tensors at once, or torch.compile around it"
            found.insert(0, Advice(change, _without(share, "this line")))
    if (calls := seen.first.calls_per_step) >= AT.MANY_CALLS:
        change = f"one call of the model in place of {calls:.0f} a step: the whole batch, or a layer such as nn.LSTM"
        share = sum(map(seen.share, ("forward", "backward", "other"))) * (1 - 1 / calls)
        found.insert(0, Advice(change, _without(share, "what the others take")))
    if (optimizer := seen.share("optimizer")) >= AT.ADVISED_SHARE:
        change = "fused=True for the optimizer: one kernel in place of one or more for each parameter"
        found.insert(0 if optimizer >= AT.WAIT_SHARE else 1, Advice(change, _without(optimizer, "the optimizer")))
    if (synced := seen.lost_in_waits) >= AT.ADVISED_SHARE:
        found.append(Advice("no .item(), print or .cpu() in every step", _without(synced, "waiting for the GPU")))
    return found


def _compute(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    found = []
    if seen.first.facts.get("parameter_dtype") == "float64":
        found.append(Advice("float32 in place of float64: torch.set_default_dtype, or .float() on the data", UNKNOWN))
    busy = seen.gpu.get("sm_activity_pct", seen.gpu.get("utilization_pct", 100.0)) / 100
    at_work = f"SMs are at work {100 * busy:.0f} % of the time"
    if "fp32" in tags:
        tensor_tflops, fp32_tflops = tensor_peak(seen.gpu_name), peak_tflops(seen.gpu_name, "fp32")
        ratio = tensor_tflops / fp32_tflops if tensor_tflops and fp32_tflops else None
        for change, kind, times in (
            ('torch.autocast("cuda", dtype=torch.bfloat16)', "bf16", ratio),
            ('torch.set_float32_matmul_precision("high"), and no other change', "TF32", ratio and ratio / 2),
        ):
            peaks = f"{kind} has {times or 0:.0f}× the peak of fp32, and the {at_work}"
            found.append(Advice(change, f"at most {1 / (1 - busy + busy / times):.2g}×: {peaks}" if times else UNKNOWN))
    elif not found and busy < AT.COMPUTE_BOUND_SM_PCT / 100:
        found.append(Advice("a larger batch: more work in each kernel", _full(100 * busy, "the SMs are at work")))
    elif not found:
        change = "no simple change left: the GPU is fully used; use more GPUs, or a smaller model"
        found.append(Advice(change, f"at most {_times(1 - busy)} on this GPU: its {at_work}"))
    tensor = seen.gpu.get("tensor_activity_pct", 0.0) / 100
    if 0 < tensor < busy and "fp32" not in tags:  # without tensor cores it is not known what matrix products take
        rest = f"kernels other than matrix products take at most {100 * (busy - tensor):.0f} % of the time"
        found.append(Advice("torch.compile(model)", f"at most {_times(busy - tensor)}: {rest}"))
    if "power-cap" in tags:
        found.append(Advice("the GPU is at its power limit: nvidia-smi -q -d POWER", UNKNOWN))
    return found


def _bandwidth(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    dram = min(1.0, seen.gpu.get("dram_activity_pct", 0.0) / 100)
    moved = f"memory is at work {100 * dram:.0f} % of the time"
    found = [Advice("torch.compile(model): fuses element-wise operations, so data is read once",
                    f"at most {_times(dram)}: {moved}")]  # fmt: skip
    spent = max(seen.share("optimizer"), seen.first.gpu.get("optimizer", 0.0))
    if spent >= AT.WAIT_SHARE:
        change = "sparse gradients for large embeddings (sparse=True with SparseAdam), or fused=True"
        found.insert(0, Advice(change, _without(spent, "the optimizer")))
    if "autocast" not in seen.first.facts:
        bf16 = 'torch.autocast("cuda", dtype=torch.bfloat16): half the bytes'
        found.append(Advice(bf16, f"at most {_times(dram / 2)}"))
    return found


def _waited(seen: Signals) -> float:
    """Return the share of the time that ranks wait for each other, by any measurement."""
    exposed = max((rank.exposed_communication or 0.0 for rank in seen.ranks), default=0.0) * seen.share("backward")
    shares = [rank.share("communication") for rank in seen.ranks]
    link = seen.gpu.get("nvlink_tx_bytes_per_s", 0.0) / AT.NVLINK_PEAK_BYTES_PER_S
    return float(min(0.99, max(seen.communication_wait or 0.0, exposed, *shares, link)))


def _waiting(seen: Signals, part: float = 1.0) -> str:
    waited, what = part * _waited(seen), "communication" if part == 1.0 else "half of communication"
    return _without(waited, what) if waited >= 0.05 * part else UNKNOWN


def _host_memory(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    if "host-memory-full" in tags:
        return _always("host-memory-bound", seen, "if_full")
    copied, first = seen.share("copy"), seen.first
    stands = copied >= AT.COPY_SHARE  # the script waits while it copies
    gain = _without(copied, "copying") if stands else _rest(seen)
    moved = max(seen.gpu.get("pcie_rx_bytes_per_s", 0.0), seen.gpu.get("pcie_tx_bytes_per_s", 0.0))
    share = copied if stands else min(0.99, moved / AT.PCIE_PEAK_BYTES_PER_S)  # of pinned memory, at the link's speed
    bytes_gain = f"at most {_times(0.75 * share)}: a quarter of the bytes of float32" if share else UNKNOWN
    found = [
        Advice("keep the data on the GPU: copy once, not every step", gain),
        Advice("send images as uint8 and convert to float on the GPU", bytes_gain),
    ]
    if not stands and seen.ranks:
        return found[::-1]
    if not seen.ranks or first.pageable >= 0.5:
        rate = first.copied_bytes_per_s
        pinned = _sped_up(copied, "copying", AT.PCIE_PEAK_BYTES_PER_S / rate) if rate else gain
        found.insert(0, Advice("pin_memory=True and .to(device, non_blocking=True)", pinned))
    if first.copies_per_step >= AT.MANY_COPIES:
        change = f"one copy in place of {first.copies_per_step:.0f}: stack the batch's fields on the host first"
        found.insert(0, Advice(change, gain))
    return found


def _synchronisation(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    rests = "so much of the time the script waits for the GPU, and the GPU for the script"
    gain = f"at most {_times(seen.lost_in_waits)}: {100 * seen.lost_in_waits:.0f} %, {rests}"
    changes = [f"{wait.site}: keep it on the GPU, and read it every 50 steps" for wait in seen.first.waits[:2]]
    changes.append("no print, .item(), .cpu(), mask or if on a CUDA tensor within a step")
    return [Advice(change, gain) for change in changes]


def for_idle_gpus(gpus: int, working: int) -> tuple[Advice, Advice]:
    """Return the advice to let all GPUs work, and to take those that do."""
    gain = f"at most {gpus / (working or 1):.2g}×: so many times the GPUs that work now"
    return (
        Advice("one process per GPU: seatrial run --launcher torchrun, and DistributedDataParallel", gain),
        Advice(f"only the GPUs that it uses: --gpus {working}", "the others are free for somebody else"),
    )


def _imbalance(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    if seen.utilization and min(seen.utilization) < AT.IDLE_UTILIZATION_PCT:
        working = sum(each >= AT.IDLE_UTILIZATION_PCT for each in seen.utilization) or 1
        return [*for_idle_gpus(len(seen.utilization), working)]
    return _always("imbalanced", seen)


def _throttled(tags: tuple[str, ...], seen: Signals) -> list[Advice]:
    found = []
    if "cpu-quota" in tags:
        quota = seen.host.get("cpu_quota_cores", 1.0)
        found.append(Advice(f"raise the CPU limit: --cpus {math.ceil(quota) * 4}", _rest(seen)))
        fewer = f"no more workers and threads than cores: num_workers={math.floor(quota)}"
        found.append(Advice(fewer, "less switching"))
    if "slowdown" in tags:
        slowed = max((seen.throttled.get(reason, 0.0) for reason in THRESHOLDS["SLOWDOWNS"]), default=0.0)
        gain = f"full clocks in {100 * slowed:.0f} % of the time"
        found.append(Advice("cooling and power of the host: nvidia-smi -q -d PERFORMANCE,TEMPERATURE", gain))
    return found


#: Cause → its advice; the others are advised in happened.py.
ADVICE: dict[Cause, Callable[[tuple[str, ...], Signals], list[Advice]]] = {
    **{cause: partial(_by_table, cause) for cause, each in CAUSES.items() if "advice" in each},
    "data-bound": _data, "python-bound": _python, "launch-bound": _launch, "compute-bound": _compute,
    "memory-bandwidth-bound": _bandwidth, "host-memory-bound": _host_memory, "throttled": _throttled,
    "synchronisation-bound": _synchronisation, "imbalanced": _imbalance,
}  # fmt: skip


@lru_cache(maxsize=1)
def elsewhere() -> dict[str, dict[str, str | None]]:
    """Return the beginning of an advice in PyTorch's words → its words by framework; None if there is none.

    Sources: docs.jax.dev (jit, lax.scan, device_put, sharding), flax.readthedocs.io, orbax.readthedocs.io,
    google-grain.readthedocs.io; tensorflow.org/guide (data_performance, mixed_precision, function,
    distributed_training), keras.io (Model.compile), tensorflow.org/api_docs (CheckpointOptions, prefetch_to_device).
    """
    text = resources.files("seatrial.diagnosis").joinpath("frameworks.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str | None]] = json.loads(text)
    return found


def in_framework(advice: Iterable[Advice], framework: str) -> tuple[Advice, ...]:
    """Return the same advice in the words of ``jax``, ``tensorflow`` or ranks of ``torchrun``, each change once."""
    kept: dict[str, Advice] = {}
    for each in advice:
        words = next((words for begin, words in elsewhere().items() if each.change.startswith(begin)), None)
        change = each.change if words is None else words.get(framework, each.change)
        if change is not None:
            kept.setdefault(change, replace(each, change=change))
    return tuple(kept.values())
