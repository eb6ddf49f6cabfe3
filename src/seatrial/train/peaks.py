"""Peak dense TFLOP/s of known chips, as their makers state them: without sparsity, at boost clock.

Sources: NVIDIA's data sheets of H200, H100, A100, L40S, L4, V100, T4 (figures with sparsity halved), the Hopper white
paper (table of peak rates) and the Ada white paper (appendix A, RTX 4090).
"""

from __future__ import annotations

#: Part of the device name → peak of each kind. The first match counts, so longer names come first.
PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H100 PCIe", {"fp32": 51.2, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513}),
    ("H200", {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}),
    ("H100", {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}),
    ("A100", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
    ("L40S", {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362, "fp8": 733}),
    ("L4", {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242}),
    ("RTX 4090", {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3}),
    ("V100", {"fp32": 15.7, "fp16": 125}),
    ("T4", {"fp32": 8.1, "fp16": 65}),
)


def peak_tflops(device_name: str, kind: str) -> float | None:
    """Peak of the chip for ``fp32`` (CUDA cores), ``tf32``, ``bf16``, ``fp16`` or ``fp8``; None when not known."""
    for part, peaks in PEAKS:
        if part in device_name:
            return peaks.get(kind)
    return None
