"""What is tried for which script, and what is said of the rest."""

from __future__ import annotations

import pytest

from seatrial.agent.tune.candidates import Anatomy, candidates
from seatrial.common.contract.tunables import GROUPS

CPU = Anatomy(
    data=0.0,
    copy=0.0,
    optimizer=0.34,
    sync=0.0,
    communication=0.0,
    computing=0.6,
    gpu_waits=None,
    workers=None,
    persistent=False,
    in_pass=0,
    pinned=False,
    device="cpu",
    dtype="float32",
    autocast=None,
    optimizer_name="Adam",
    fused=False,
    convolutions=False,
    parallel=None,
    compile_s=0.0,
    cuda_graph=False,
)


@pytest.mark.parametrize(
    ("device", "share", "printed"),
    [
        ("cpu", 0.34, "the script trains on the CPU"),
        ("cuda", 0.001, "0 % of a step is the optimizer's"),
        ("cuda", 0.34, None),
    ],
)
def test_why_no_fused_optimizer_is_tried(device: str, share: float, printed: str | None) -> None:
    found = CPU._replace(device=device, optimizer=share)
    tried, left = candidates(found, {}, [], 4, GROUPS if printed is None else ())
    assert left.get("fused_optimizer") == printed
    assert ("fused_optimizer" in [each.name for each in tried]) == (printed is None)
