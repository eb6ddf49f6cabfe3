"""Diagnosis: one primary cause, tags, the evidence and what would help; and the peaks of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from seatrial.common.gpu_peaks import peak_tflops

#: A key of MEANING.
Cause = str

#: Cause → what it means, for people.
MEANING: dict[Cause, str] = {
    "data-bound": "the GPU waits for data",
    "python-bound": "Python of the script's own between the steps takes the time",
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
    "undetermined": "the GPU rests, and nothing that was measured shows why",
}

#: Cause → what would show that it is this one.
SHOWN_BY: dict[Cause, str] = {
    "data-bound": "steps on one batch, used again and again, are faster",
    "python-bound": "py-spy record has its lines on top",
    "launch-bound": "a batch twice as large gives as many steps a second",
    "compute-bound": "half the batch takes half the time",
    "memory-bandwidth-bound": "bf16 halves the time of a step",
    "latency-bound": "a batch twice as large gives as many steps a second, at the same utilisation",
    "communication-bound": "one GPU alone makes more steps a second",
    "imbalanced": "one rank alone makes as many steps a second",
    "host-memory-bound": "steps on a batch that stays on the GPU are faster",
    "synchronisation-bound": "steps without .item(), print and .cpu() are faster",
    "evaluation-bound": "the same steps without evaluation end sooner",
    "checkpoint-bound": "the same steps without saving end sooner",
    "throttled": "a rested or less limited machine is faster",
    "idle": "py-spy dump has the line that waits",
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
        runner_up: the next cause, and what would tell them apart; "" where nothing else holds.
    """

    cause: Cause
    tags: tuple[str, ...]
    evidence: tuple[str, ...]
    advice: tuple[Advice, ...]
    mfu: float | None = None
    runner_up: str = ""

    @property
    def words(self) -> str:
        """``data-bound: the GPU waits for data``."""
        return f"{self.cause}: {MEANING[self.cause]}"


class Peaks(NamedTuple):
    """Dense peaks of a GPU in FLOP/s: bf16 on tensor cores (fp16 if it has no bf16), and fp32 without them."""

    tensor: float
    fp32: float | None


def peaks(name: str) -> Peaks | None:
    """Return the peaks of a product by NVML's name, or None if it is not in the table (then MFU is unknown)."""
    tensor, fp32 = peak_tflops(name, "bf16") or peak_tflops(name, "fp16"), peak_tflops(name, "fp32")
    return Peaks(tensor * 1e12, fp32 * 1e12 if fp32 else None) if tensor else None
