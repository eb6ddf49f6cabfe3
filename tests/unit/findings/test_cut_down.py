"""Which GPUs an image that was cut down to some device code runs on."""

from __future__ import annotations

import pytest

from seatrial.findings.gpu_missing import cut_down


def gpu(capability: str | None) -> dict[str, str | None]:
    return {"uuid": "GPU-1", "name": "NVIDIA Thing", "compute_capability": capability}


@pytest.mark.parametrize(
    ("kept", "capability"), [("", "9.0"), ("9.0", "9.0"), ("8.0", "8.9"), ("7.5 9.0", "9.0"), ("9.0", None)]
)
def test_gpus_that_it_has_code_for(kept: str, capability: str | None) -> None:
    assert cut_down(kept, [gpu(capability)]) is None


@pytest.mark.parametrize(
    ("kept", "capability"), [("8.0", "9.0"), ("8.9", "8.0"), ("9.0", "12.0"), ("9.0 12.0", "10.0")]
)
def test_others_are_refused_by_name(kept: str, capability: str) -> None:
    finding = cut_down(kept, [gpu(kept.split()[0]), gpu(capability)])
    assert finding is not None
    assert finding.id == "image-cut-down"
    assert finding.message.endswith(f"only, and NVIDIA Thing is {capability}")
