"""The state of every random number generator a training script draws from, to save and to put back."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python, numpy, torch on the CPU and torch on every GPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Return all states, in types that ``torch.load(weights_only=True)`` reads back."""
    name, keys, position, has_gauss, gauss = cast(tuple[str, Any, int, int, float], np.random.get_state(legacy=True))
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore ``rng_state``'s result. Without a GPU, then or now, the GPU's state stays."""
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
