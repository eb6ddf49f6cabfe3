"""A checkpoint's tensors in memory that two processes see."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.saving import arena  # noqa: E402

pytestmark = pytest.mark.torch


def test_tensors_of_any_layout_come_back_and_only_the_copy_touches_them() -> None:
    """What reads a GPU's tensor on another stream than its copy would read it too early or too late."""
    table = torch.arange(24.0).view(4, 6)
    given = {
        "dense": table,
        "transposed": table.t(),
        "cut": table[:, 1:4],
        "stepped": table[::2],
        "expanded": torch.tensor([[1], [2]], dtype=torch.int16).expand(2, 3),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.zeros(0, 3),
        "one": torch.tensor(7),
    }
    held = arena.Arena(arena.size_of(given))
    copied: list[torch.Tensor] = []

    def copy(to: torch.Tensor, tensor: torch.Tensor) -> None:
        copied.append(tensor)
        to.copy_(tensor)

    shown = pickle.loads(pickle.dumps(arena.fill(held, given, copy)))
    assert all(one is other for one, other in zip(copied, [t for t in given.values() if t.numel()], strict=True))
    back = arena.read(held.memory, shown)
    for name, tensor in given.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name
    assert back["transposed"].stride() == (1, 6) and back["cut"].is_contiguous()
    assert back["channels last"].is_contiguous(memory_format=torch.channels_last)
    del back
    held.close()
