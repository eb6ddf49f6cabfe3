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

with ranks(600) as group:
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


FROZEN = """
import dataclasses
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from seatrial.train.distributed import GradientReducer, ranks
from seatrial.train.errors import InputError

class Body(nn.Module):
    # Three layers; WHAT becomes of the first in the steps after the first one.
    def __init__(self, what, rank):
        super().__init__()
        self.what, self.rank, self.step = what, rank, 0
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        if what in ("frozen", "thawed"):
            self.first.requires_grad_(False)

    def forward(self, x):
        left_out = self.step and (self.what == "unused" or (self.what == "unused on one" and self.rank == 1))
        return self.third(self.second(x if left_out else self.first(x))).square().mean()

def train(what, rank, backward):
    model = Body(what, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    loss = backward(model)
    for model.step in range(4):
        if model.step == 1:
            kept = model.first.weight.detach().clone()
            if what in ("frozen later", "thawed"):
                model.first.requires_grad_(what == "thawed")
        loss(torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * rank + model.step)))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()], not torch.equal(model.first.weight, kept)

with ranks(600) as group:
    def ours(overlap):
        def backward(model):
            reducer = GradientReducer(model, group)
            def run(inputs):
                reducer.clear()
                reducer.overlap = overlap
                model(inputs).backward()
                assert not reducer.agree(False)
                reducer.reduce()
            return run
        return backward

    def theirs(model):
        parallel = DistributedDataParallel(model, find_unused_parameters=True)
        def run(inputs):
            model.zero_grad(set_to_none=True)
            parallel(inputs).backward()
        return run

    def by_hand(model):
        def run(inputs):
            model.zero_grad(set_to_none=True)
            model(inputs).backward()
            for parameter in model.parameters():
                if any(group.gather(parameter.grad is not None)):
                    own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = group.sum(own) / group.world
        return run

    moves = {
        "trained": True, "frozen": False, "frozen later": False, "unused": False, "unused on one": True, "thawed": True
    }
    for what, moved in moves.items():
        right = by_hand if what == "thawed" else theirs  # theirs trains nothing that was frozen when it was made
        expected = train(what, group.rank, right)
        assert expected[1] is moved, what
        for overlap in (False, True):
            found = train(what, group.rank, ours(overlap))
            assert found[1] is moved, (what, overlap)
            for one, other in zip(found[0], expected[0]):
                assert torch.allclose(one, other, atol=1e-6), (what, overlap)

    # A step that becomes a graph cannot agree, and is one that was agreed on.
    model = Body("unused", group.rank)
    model.step = 1
    reducer = GradientReducer(model, dataclasses.replace(group, device=torch.device("cuda")))
    for captured in (False, True):
        torch.cuda.is_current_stream_capturing = lambda: captured
        reducer.clear()
        reducer.overlap = captured
        model(torch.randn(4, 4)).backward()
        assert captured or not reducer.agree(False)
        sent_early = reducer._sent
        reducer.reduce()
        assert model.first.weight.grad is None and model.third.weight.grad is not None
    assert sent_early == 1

    # A weight whose gradient comes in parts is not sent after the first of them.
    shared = nn.Linear(4, 4)
    reducer = GradientReducer(shared, group)
    reducer.clear()
    reducer.overlap = True
    x = torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        x = checkpoint(shared, x, use_reentrant=True)
    try:
        x.sum().backward()
        raise AssertionError("sent too early")
    except RuntimeError as error:
        assert "in several parts" in str(error), error
    reducer.reduce()

    words = nn.Embedding(4, 4, sparse=True)
    reducer = GradientReducer(words, group)
    reducer.clear()
    words(torch.tensor([1])).sum().backward()
    try:
        reducer.reduce()
        raise AssertionError("averaged")
    except InputError as error:
        assert "sparse=False" in str(error)
print("all agree", flush=True)
"""


@pytest.mark.parametrize(
    "worker", [WORKER, FROZEN], ids=["gradients are averaged", "frozen or unused weights stay, others are as with DDP"]
)
def test_two_ranks_agree(tmp_path: Path, worker: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(worker)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.count("all agree") == 2, done.stderr
