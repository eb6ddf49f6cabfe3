"""GPU memory: a cap, what fits, and what was used."""

from __future__ import annotations

from pathlib import Path

import torch

from seatrial.train.errors import InputError

#: Share of the free memory that a data set may take: the rest is for the model, gradients and activations.
RESIDENT_SHARE = 0.5


def cap(fraction: float, device: torch.device) -> None:
    """Let this process allocate at most ``fraction`` of the GPU. Raises InputError outside (0, 1] and on a CPU."""
    if not 0 < fraction <= 1:
        raise InputError(
            f"the memory fraction must be above 0 and at most 1, not {fraction}", fix="--memory-fraction 0.9"
        )
    if device.type != "cuda":
        raise InputError(
            "a memory fraction needs a GPU: this run is on the CPU", fix="omit --memory-fraction, or --gpus 1"
        )
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def free_bytes(device: torch.device) -> int:
    """Free memory of the GPU, or of the machine (MemAvailable) for the CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def peak(device: torch.device) -> dict[str, int]:
    """Most memory allocated to tensors and reserved from the driver since the start; empty on the CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_memory_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "gpu_memory_reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def summary(device: torch.device) -> str:
    """One line on the GPU's memory, or that there is none."""
    used = peak(device)
    if not used:
        return "GPU memory: none, this run is on the CPU"
    allocated, reserved = (number / 2**20 for number in used.values())
    total = torch.cuda.get_device_properties(device).total_memory / 2**20
    return f"GPU memory: peak {allocated:,.0f} MiB allocated, {reserved:,.0f} MiB reserved, of {total:,.0f} MiB"
