"""Memory: a cap on the GPU's, what is free there and on the host, and what was used."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import torch

from seatrial.train.errors import InputError, TrainError

#: Share of the free memory that a data set may take: the rest is for the model, gradients and activations.
RESIDENT_SHARE = 0.5


def cap(fraction: float, device: torch.device) -> None:
    """Let this process allocate at most ``fraction`` of the GPU. Raises InputError outside (0, 1] and on a CPU."""
    if not 0 < fraction <= 1:
        problem = f"the memory fraction must be above 0 and at most 1, not {fraction}"
        raise InputError(problem, fix="--memory-fraction 0.9")
    if device.type != "cuda":
        problem = "a memory fraction needs a GPU: this run is on the CPU"
        raise InputError(problem, fix="omit --memory-fraction, or --gpus 1")
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def free_bytes(device: torch.device) -> int:
    """Return the memory that is left: of the GPU, within its cap; of the host, within its control groups."""
    if device.type != "cuda":
        return _free_on_host()
    free, total = torch.cuda.mem_get_info(device)
    capped = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.8
    fraction = capped(device) if capped else 1.0
    return min(free, max(0, int(total * fraction) - torch.cuda.memory_reserved(device)))


def free_for_data(device: torch.device) -> int:
    """Return the free memory for a data set; the host's counts, too, since it is read there first."""
    return min(free_bytes(device), _free_on_host())


class MicroBatch:
    """Rows that go through the network at once; a batch is made of as many as it takes."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def halve(self, device: torch.device, announce: bool) -> None:
        """Halve the rows from now on and free the failed attempt's memory. Raises TrainError if it was one row."""
        if self.rows == 1:
            fix = "a smaller model, --precision bf16, or more free memory: nvidia-smi shows what else uses the GPU"
            raise TrainError("out of memory even with micro-batches of 1 row", fix=fix)
        old, self.rows = self.rows, -(-self.rows // 2)
        gc.collect()  # the traceback of the failed attempt may still hold its activations
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if announce:
            print(f"out of memory with micro-batches of {old} rows: continuing with {self.rows}", flush=True)


def _free_on_host(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return MemAvailable, or less if a control group leaves less; page cache that can be dropped counts as free."""
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for folder in _control_groups(proc / "self" / "cgroup", cgroups):
        for limit, usage, cache in _CGROUP_FILES:
            try:
                most, used = (int((folder / name).read_text()) for name in (limit, usage))
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # of the other version, or "max": no limit
                continue
            free = min(free, most - used + int(counts.get(cache, 0)))
    return max(0, free)


#: Limit, usage and the page cache within it: cgroup v2, then v1. Source: docs.kernel.org/admin-guide/cgroup-v2.html
#: and cgroup-v1/memory.html.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _control_groups(listing: Path, mount: Path) -> Iterator[Path]:
    """Yield this process's group and those around it. In a container its own is often the mount itself."""
    try:
        lines = [line.split(":", 2) for line in listing.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers in ("", "memory"):
            top = mount / controllers
            inner = Path(path.lstrip("/"))
            yield from (top / folder for folder in (inner, *inner.parents))


def peak(device: torch.device) -> dict[str, int]:
    """Return the most memory allocated to tensors and reserved from the driver; empty on the CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_memory_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "gpu_memory_reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def summary(device: torch.device) -> str:
    """Describe the GPU's memory in one line, or that there is none."""
    used = peak(device)
    if not used:
        return "GPU memory: none, this run is on the CPU"
    allocated, reserved = (number / 2**20 for number in used.values())
    total = torch.cuda.get_device_properties(device).total_memory / 2**20
    return f"GPU memory: peak {allocated:,.0f} MiB allocated, {reserved:,.0f} MiB reserved, of {total:,.0f} MiB"
