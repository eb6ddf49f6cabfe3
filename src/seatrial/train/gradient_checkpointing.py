"""Gradient checkpointing: a block's input is kept instead of all its activations, which are computed again backwards.

Costs a third more arithmetic (a second forward pass) and lets a network train whose activations do not fit.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """``block(*inputs)``; its activations are not kept. Dropout draws the same numbers again.

    These are put back from the host, which a CUDA graph cannot do: use it in eager steps.
    """
    result: Tensor = checkpoint(block, *inputs, use_reentrant=False)
    return result
