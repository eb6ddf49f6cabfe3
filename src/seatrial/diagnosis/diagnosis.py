"""Diagnosis: one primary cause, tags, the evidence and what would help; and the peaks of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Cause = Literal[
    "data-bound",
    "launch-bound",
    "compute-bound",
    "memory-bandwidth-bound",
    "latency-bound",
    "communication-bound",
    "host-memory-bound",
    "throttled",
    "idle",
    "synchronisation-bound",
    "evaluation-bound",
    "checkpoint-bound",
    "imbalanced",
    "failed-early",
    "cpu-only",
    "too-short",
    "start-up",
    "compiling",
]

#: Cause → what it means, for people.
MEANING: dict[Cause, str] = {
    "data-bound": "the GPU waits for data",
    "launch-bound": "its kernels are too small, or launched too slowly, to fill the GPU",
    "compute-bound": "the GPU's arithmetic is the limit",
    "memory-bandwidth-bound": "the GPU's memory bandwidth is the limit",
    "latency-bound": "its kernels keep the GPU busy, but compute little and move little: they wait within themselves",
    "communication-bound": "the GPUs wait for each other",
    "host-memory-bound": "host memory, or copies out of it, is the limit",
    "throttled": "the GPU clock or the CPU is throttled",
    "idle": "nothing was computed on the GPU",
    "synchronisation-bound": "the script waits for the GPU again and again, and the GPU for the script",
    "evaluation-bound": "most of the time goes into evaluation between the steps",
    "checkpoint-bound": "training waits until checkpoints are written",
    "imbalanced": "one GPU does the work while another waits",
    "failed-early": "the script failed before there was any training to judge",
    "cpu-only": "the script never used the GPU",
    "too-short": "there was too little training to judge",
    "start-up": "most of the run was start-up",
    "compiling": "most of the run was compilation",
}


@dataclass(frozen=True)
class Advice:
    """A change likely to help, in the user's terms, and its expected gain."""

    change: str
    gain: str


@dataclass(frozen=True)
class Diagnosis:
    """The bound of a run.

    Attributes:
        tags: further things that hold, e.g. ``power-cap``, ``fp32``, ``cpu-quota``, ``worker-limit``.
        evidence: sentences with the numbers it rests on.
        mfu: model FLOPs utilisation, 0 to 1; None unless the script counts its FLOPs and the GPU's peak is known.
    """

    cause: Cause
    tags: tuple[str, ...]
    evidence: tuple[str, ...]
    advice: tuple[Advice, ...]
    mfu: float | None = None

    @property
    def words(self) -> str:
        """``data-bound: the GPU waits for data``."""
        return f"{self.cause}: {MEANING[self.cause]}"


class Peaks(NamedTuple):
    """Dense peaks of a GPU in FLOP/s: bf16 on tensor cores (fp16 if it has no bf16), and fp32 without them.

    Source: NVIDIA's data sheets, dense figures without sparsity.
    """

    name: str
    tensor: float
    fp32: float | None


#: By a part of NVML's product name. The first entry that fits counts, so longer names stand first.
_PEAKS = tuple(Peaks(*row) for row in (
    ("GB300", 2.5e15, None),
    ("GB200", 2.5e15, None),
    ("B300", 2.25e15, None),
    ("B200", 2.25e15, None),
    ("H200 NVL", 8.35e14, 6.0e13),
    ("H200", 9.89e14, 6.7e13),
    ("GH200", 9.89e14, 6.7e13),
    ("H100 PCIe", 7.56e14, 5.1e13),
    ("H100 NVL", 8.35e14, 6.0e13),
    ("H100", 9.89e14, 6.7e13),
    ("H800", 9.89e14, None),
    ("H20", 1.48e14, None),
    ("A100", 3.12e14, 1.95e13),
    ("A800", 3.12e14, 1.95e13),
    ("A40", 1.497e14, 3.74e13),
    ("A30", 1.65e14, 1.03e13),
    ("A10", 1.25e14, 3.12e13),
    ("L40S", 3.62e14, 9.16e13),
    ("L40", 1.81e14, 9.05e13),
    ("L4", 1.21e14, 3.03e13),
    ("RTX 4090", 1.652e14, 8.26e13),
    ("RTX 3090", 7.1e13, 3.56e13),
    ("V100", 1.25e14, None),
    ("T4", 6.5e13, 8.1e12),
))  # fmt: skip


def peaks(name: str) -> Peaks | None:
    """Return the peaks of a product, or None if it is not in the table (there is no MFU then)."""
    return next((each for each in _PEAKS if each.name in name), None)
