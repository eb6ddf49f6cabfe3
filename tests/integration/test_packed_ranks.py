"""Packed training on two ranks over Gloo is the training of one with all texts in a step."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("packed_rank.py")


def trained(out: Path, world: int, rows: int) -> list[dict[str, Any]]:
    out.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    command = [sys.executable, *torchrun, str(SCRIPT), str(out), str(rows)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    return [torch.load(out / f"rank-{rank}.pt") for rank in range(world)]


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    (alone,) = trained(tmp_path / "alone", 1, 26)
    both = trained(tmp_path / "both", 2, 13)
    assert both[0]["losses"] == both[1]["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert alone["losses"][-1] < alone["losses"][0]
    for name, tensor in both[0]["model"].items():
        assert torch.equal(tensor, both[1]["model"][name]), name
