"""Averaging gradients over two real ranks: the same numbers with and without overlap, and in bf16 on the wire."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORKER = """
import torch
from torch import nn
from seatrial.train.distributed import GradientReducer, ranks

with ranks(60) as group:
    found = {}
    for computed in (torch.float32, torch.bfloat16):
        for overlap in (True, False):
            torch.manual_seed(0)
            body = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
            model = nn.Sequential(body, nn.Flatten(), nn.Linear(288, 10))
            inputs = torch.randn(4, 3, 8, 8) + group.rank
            reducer = GradientReducer(model, group, computed)
            reducer.clear()
            reducer.overlap = overlap
            model(inputs).square().mean().backward()
            alone = [parameter.grad.clone() for parameter in model.parameters()]
            reducer.reduce()
            found[computed, overlap] = [parameter.grad for parameter in model.parameters()]
            assert found[computed, overlap][0].is_contiguous(memory_format=torch.channels_last)
            if not overlap:
                everyone = group.gather([gradient.tolist() for gradient in alone])
                means = [sum(map(torch.tensor, several)) / group.world for several in zip(*everyone)]
                loose = 2e-2 if computed is torch.bfloat16 else 1e-6
                for mean, gradient in zip(means, found[computed, overlap]):
                    assert torch.allclose(mean, gradient, rtol=loose, atol=loose * float(mean.abs().max()))
        for one, other in zip(found[computed, True], found[computed, False]):
            assert torch.equal(one, other)
    same = group.gather([gradient.tolist() for gradient in found[torch.bfloat16, True]])
    assert same[0] == same[1]
    assert any(not torch.equal(a, b) for a, b in zip(found[torch.float32, True], found[torch.bfloat16, True]))
print("all agree", flush=True)
"""


def test_gradients_are_averaged(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("all agree") == 2, done.stderr
