"""Our optimizers against torch's: the same numbers, the same state."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.optim.optimizer import CHUNK, CHUNKS_PER_LAUNCH, adam, adamw, chunk_size, decay_groups, pieces  # noqa: E402

pytestmark = pytest.mark.torch

OURS = {"adam": lambda model: adam(model, 1e-2), "adamw": lambda model: adamw(model, 1e-2, 0.1)}
TORCHS = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2), fused=True),
    "adamw": lambda model: torch.optim.AdamW(decay_groups(model, 0.1), lr=torch.tensor(1e-2), fused=True),
}


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
    return model.to(memory_format=torch.channels_last)


def train(model, optimizer, steps=5):
    torch.manual_seed(1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", OURS)
def test_same_numbers_as_torch(kind):
    ours, torchs = network(), network()
    trained = train(ours, OURS[kind](ours)), train(torchs, TORCHS[kind](torchs))
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_reads_the_state_of_torchs_adam_and_goes_on_alike():
    theirs, ours = network(), network()
    before = TORCHS["adam"](theirs)
    train(theirs, before, 2)
    ours.load_state_dict(theirs.state_dict())
    after = OURS["adam"](ours)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(train(theirs, before), train(ours, after), strict=True))


def test_pieces_cover_the_memory_once_in_any_layout():
    weights = torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)
    cut = pieces(weights, 64)
    assert [len(piece) for piece in cut] == [64] * 9 + [24]
    for piece in cut:
        piece.add_(1)
    assert torch.equal(torch.cat(cut), weights.permute(0, 2, 3, 1).reshape(-1))


def test_chunks_fill_one_launch_and_large_tensors_stay_whole():
    mnist = (288, 32, 18432, 64, 204800, 128, 1280, 10)
    size = chunk_size(mnist)
    assert 24 < sum(-(-number // size) for number in mnist) <= CHUNKS_PER_LAUNCH
    assert chunk_size((50_000_000, 60_000_000)) == CHUNK


def test_no_compiler_is_imported_by_a_training_that_does_not_compile(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, torch\n"
        "from seatrial.train.optim.optimizer import adam\n"
        "model = torch.nn.Linear(3, 2)\n"
        "optimizer = adam(model, 0.1)\n"
        "model(torch.ones(1, 3)).sum().backward()\n"
        "optimizer.step()\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
