"""Find the bound of a run from its samples and step events, and advise a change.

This file has the Diagnosis (one primary cause with tags, evidence and advice), its thresholds, and the GPUs' peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seatrial.common.gpu_peaks import peak_tflops
from seatrial.system.project_files import own_table

THRESHOLDS, CAUSES = (own_table(Path(__file__).with_name(f"{name}.toml")) for name in ("thresholds", "causes"))


class _Thresholds:
    """Numbers of thresholds.toml by name; the file cites the measurement behind each."""

    def __getattr__(self, name: str) -> float:
        value: float = THRESHOLDS[name]
        return value


AT = _Thresholds()

#: A key of MEANING.
Cause = str

#: Cause → its meaning for people, and the evidence that would confirm it.
MEANING: dict[Cause, str] = {cause: each["meaning"] for cause, each in CAUSES.items()}
SHOWN_BY: dict[Cause, str] = {cause: each["shown_by"] for cause, each in CAUSES.items() if "shown_by" in each}


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
        runner_up: the next cause, and what would distinguish them; "" where nothing else holds.
    """

    cause: Cause
    tags: tuple[str, ...]
    evidence: tuple[str, ...]
    advice: tuple[Advice, ...]
    mfu: float | None = None
    runner_up: str = ""

    @property
    def words(self) -> str:
        """Return cause and meaning: ``data-bound: the GPU waits for data``."""
        return f"{self.cause}: {MEANING[self.cause]}"


def tensor_peak(name: str) -> float | None:
    """Return the dense peak of a product in TFLOP/s by NVML's name: bf16 on tensor cores, fp16 if it has no bf16."""
    return peak_tflops(name, "bf16") or peak_tflops(name, "fp16")
