"""Peaks of GPUs by their whole product name."""

from __future__ import annotations

import pytest

from seatrial.common.gpu_peaks import peak_tflops


@pytest.mark.parametrize(
    ("product", "kind", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Riva 128", "bf16", None),
        ("NVIDIA RTX A1000", "bf16", None),
        ("NVIDIA RTX A4000", "fp16", None),
        ("NVIDIA T400", "fp16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA A2", "bf16", None),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", 70),
    ],
)
def test_peak_is_of_the_whole_name(product: str, kind: str, peak: float | None) -> None:
    assert peak_tflops(product, kind) == peak
