"""Tensors that come to the host by two small pieces of memory."""

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.saving import arena  # noqa: E402
from seatrial.train.saving.arena import HostCopies, Staging  # noqa: E402

pytestmark = pytest.mark.torch


def everything(device="cpu"):
    """Types, orders and sizes as states have them."""
    torch.manual_seed(0)
    images = torch.randn(3, 5, 7, 2, device=device)
    return {
        "channels last": images.to(memory_format=torch.channels_last),
        "turned": torch.randn(6, 4, device=device).T,
        "every other": torch.arange(40, device=device)[::2],
        "expanded": torch.randn(3, 1, device=device).expand(3, 4),
        "a view": torch.randn(50, device=device)[7:31],
        "one": torch.tensor(3.5, device=device),
        "none": torch.empty(0, 3, device=device),
        "yes and no": torch.rand(33, device=device) > 0.5,
        "half": torch.randn(129, device=device).bfloat16(),
        "complex": torch.randn(5, dtype=torch.complex64, device=device),
        "large": torch.randn(1000, device=device),
    }


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1000, 10**6])
def test_what_comes_out_is_what_went_in(piece_bytes):
    given = everything()
    held, staging = arena.Arena(arena.size_of(given)), Staging(piece_bytes)
    for _ in range(2):  # it is used again
        shown = arena.fill(held, given, lambda to, tensor: staging.copy(to, tensor, None))
        staging.finish()
        found = arena.read(held.memory, shown)
        for name, tensor in given.items():
            assert torch.equal(found[name], tensor), name
        held.bytes.zero_()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_from_a_gpu_behind_kernels_that_still_run():
    given, copies = everything("cuda"), HostCopies()
    given["huge"] = torch.zeros(60_000_000, device="cuda")
    for number in range(3):
        torch.cuda._sleep(100_000_000)
        given["huge"].add_(1.0)
        ready = torch.cuda.Event()
        ready.record()
        held = arena.Arena(arena.size_of(given))
        found = arena.read(held.memory, copies.fill(held, given, ready))
        assert (found["huge"] == number + 1).all()
        for name, tensor in given.items():
            assert torch.equal(found[name], tensor.cpu()), name
