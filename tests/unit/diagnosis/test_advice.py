"""Advice for JAX and TensorFlow names nothing of PyTorch's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from seatrial.diagnosis import MEANING, Advice, advice
from seatrial.diagnosis.advice import ADVICE, elsewhere, in_framework
from seatrial.diagnosis.signals import Signals, signals

PYTORCHS = re.compile(
    r"torch|DataLoader|num_workers|pin_memory|DistributedSampler|no_sync|DDP|\.item\(\)|fused=|SparseAdam"
)

TAGS = [(), ("no-workers",), ("fp32",), ("fp32", "power-cap"), ("host-memory-full",), ("cpu-quota", "slowdown")]


def seen(utilization: float) -> Signals:
    gpu = {
        "uuid": "GPU-a",
        "utilization_pct": utilization,
        "sm_activity_pct": utilization / 2,
        "tensor_activity_pct": 1.0,
    }
    gpus = [gpu, {**gpu, "uuid": "GPU-b", "utilization_pct": 1.0}]
    host = {"cpu_cores": 2.0, "cpu_quota_cores": 2.0}
    return signals(
        [{"type": "sample", "t": float(t), "gpus": gpus, "host": host} for t in range(20)], (), "NVIDIA H200"
    )


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
@pytest.mark.parametrize("cause", list(ADVICE))
def test_advice_names_nothing_of_pytorchs(cause, framework: str) -> None:
    changes = [
        each.change
        for tags in TAGS
        for utilization in (2.0, 60.0, 99.0)
        for each in in_framework(ADVICE[cause](tags, seen(utilization)), framework)
    ]
    assert [change for change in changes if PYTORCHS.search(change)] == []


def test_each_row_is_of_advice_that_is_given() -> None:
    given = inspect.getsource(advice) + Path(inspect.getfile(advice)).with_name("causes.toml").read_text("utf-8")
    assert [each for each in elsewhere() if not re.search(rf"f?[\"']{re.escape(each)}", given)] == []


def test_advice_for_pytorch_stays_and_repeated_advice_is_given_once() -> None:
    advice = (Advice("torch.compile(model)", "at most 2×"), Advice("fused=True for the optimizer: one kernel", "3×"))
    assert in_framework(advice, "torch") == advice
    assert [(each.change[:3], each.gain) for each in in_framework(advice, "tensorflow")] == [("XLA", "at most 2×")]
    assert [each.change[:7] for each in in_framework(advice, "jax")] == ["jax.jit", "the opt"]


@pytest.mark.parametrize("cause", MEANING)
def test_page_explains_each_cause(cause: str) -> None:
    page = Path(__file__).parents[3] / "docs" / "diagnosis.md"
    assert f"| `{cause}` |" in page.read_text(encoding="utf-8")
