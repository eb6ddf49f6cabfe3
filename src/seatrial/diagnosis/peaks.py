"""Dense bf16 tensor peak of each GPU, for model FLOPs utilisation (MFU). fp16 where the chip has no bf16 tensor cores.

Source: NVIDIA's data sheets, dense figures without sparsity.
"""

from __future__ import annotations

#: Part of NVML's product name → FLOP/s. The first entry that fits counts, so longer names stand first.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("GB300", 2.5e15),
    ("GB200", 2.5e15),
    ("B300", 2.25e15),
    ("B200", 2.25e15),
    ("H200 NVL", 8.35e14),
    ("H200", 9.89e14),
    ("GH200", 9.89e14),
    ("H100 PCIe", 7.56e14),
    ("H100 NVL", 8.35e14),
    ("H100", 9.89e14),
    ("H800", 9.89e14),
    ("H20", 1.48e14),
    ("A100", 3.12e14),
    ("A800", 3.12e14),
    ("A40", 1.497e14),
    ("A30", 1.65e14),
    ("A10", 1.25e14),
    ("L40S", 3.62e14),
    ("L40", 1.81e14),
    ("L4", 1.21e14),
    ("RTX 4090", 1.652e14),
    ("RTX 3090", 7.1e13),
    ("V100", 1.25e14),
    ("T4", 6.5e13),
)

#: The same for fp32 without tensor cores.
PEAK_FP32: tuple[tuple[str, float], ...] = (
    ("H200 NVL", 6.0e13),
    ("H200", 6.7e13),
    ("GH200", 6.7e13),
    ("H100 PCIe", 5.1e13),
    ("H100 NVL", 6.0e13),
    ("H100", 6.7e13),
    ("A100", 1.95e13),
    ("A800", 1.95e13),
    ("A40", 3.74e13),
    ("A30", 1.03e13),
    ("A10", 3.12e13),
    ("L40S", 9.16e13),
    ("L40", 9.05e13),
    ("L4", 3.03e13),
    ("RTX 4090", 8.26e13),
    ("RTX 3090", 3.56e13),
    ("T4", 8.1e12),
)


def tensor_ratio(name: str) -> float | None:
    """How many times the peak of fp32 tensor cores have in bf16, or None."""
    tensor, plain = peak_flops(name), next((flops for part, flops in PEAK_FP32 if part in name), None)
    return tensor / plain if tensor and plain else None


def peak_flops(name: str) -> float | None:
    """FLOP/s of a product, or None when it is not in the table (MFU is not told then)."""
    return next((flops for part, flops in PEAK_FLOPS if part in name), None)
