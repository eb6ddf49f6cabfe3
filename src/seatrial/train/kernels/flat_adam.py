"""AdamW over all parameters of a large model in one launch, with what comes before and after it.

Rows of an embedding are updated when they are read: a batch has a thousand tokens of thirty thousand. The steps that
the others miss (their moments fade, they decay) are computed later, one by one, with the same numbers.

Everything lies in flat arrays of n elements: parameters and moments in fp32, gradients in the type of the products. The
gradient's norm is taken before (two launches), its clipping is done in the update, and so is the copy of the weights in
the type of the products: of n parameters 30 bytes a parameter are moved, of 32 and more by separate kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.train.kernels.ops import KernelModule, cdiv, module
from seatrial.train.kernels.runtime import THREADS

#: Blocks that sum the squares: four for each multiprocessor of a large GPU (H200: 132).
PARTS = 528
#: Pieces of four elements that a thread updates, all read before the first is computed.
EACH = 2


@dataclass(frozen=True)
class Rule:
    """AdamW's numbers."""

    betas: tuple[float, float]
    epsilon: float
    decay: float


def kernels(dtype: torch.dtype, rule: Rule) -> KernelModule:
    """Return the kernels for gradients of this type."""
    first, second = rule.betas
    shares = {"SHARE1": 1 - first, "SHARE2": 1 - second, "BETA2": second, "EPSILON": rule.epsilon, "DECAY": rule.decay}
    return module("adam_flat.cu", dtype, **shares, LOG1=math.log(first), LOG2=math.log(second), EACH=EACH)


def clip_factor(gradients: Tensor, most: float, norm: Tensor, rule: Rule) -> None:
    """Fill ``norm`` [2]: the gradients' norm, and the factor that brings it down to ``most``, at most 1."""
    eights, made = gradients.numel() // 8, kernels(gradients.dtype, rule)
    parts = torch.empty(min(PARTS, cdiv(eights, THREADS)), device=gradients.device)
    made.launch("square_parts", len(parts), gradients, parts, eights)
    made.launch("clip_factor", 1, parts, len(parts), float(most), norm)


def update(
    flat: Sequence[Tensor], decayed: int, copied: int, norm: Tensor | None, done: Tensor,
    rate: Tensor, rule: Rule, rules: Tensor | None = None, applied: Tensor | None = None,
) -> None:  # fmt: skip
    """Run one step of AdamW.

    Args:
        flat: parameters, first and second moments (fp32), gradients, and the copy (in the type of the products).
        decayed: so many of the first elements decay. copied: from here on they are copied. Multiples of 4.
        norm: as ``clip_factor`` makes it. done: steps with this one, on the device.
        rules: [kept, 3]: gets what ``update_rows`` needs to know of this step.
        applied: nothing is done where this is ``done`` already.
    """
    quads, kept = flat[0].numel() // 4, 0 if rules is None else len(rules)
    numbers = (quads, decayed, copied, norm, done, rate, rules, kept, applied)
    kernels(flat[3].dtype, rule).launch("adam_flat", cdiv(quads, THREADS * EACH), *flat, *numbers)


def update_rows(
    table: tuple[Tensor, Tensor, Tensor], gradients_SH: Tensor | None, targets_S: Tensor | None, seen: Tensor,
    norm: Tensor | None, done: Tensor, rules: Tensor, rule: Rule, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Update rows of a table to step ``done``: first by the steps that they have missed, whose gradients were zero.

    What a dense AdamW does with them, element by element in the same order, but only when somebody looks.

    Args:
        table: parameters and both moments, [V, H] each.
        gradients_SH: of the last step; None: the last step was missed as well.
        targets_S: each one's row; -1: none. None: all rows. seen: [V]: the step that a row is at.
        dtype: of gradients, here or elsewhere: one text for all.
        rules: as ``update`` has written them, for every step since the oldest of ``seen``.
    """
    count = len(table[0]) if targets_S is None else len(targets_S)
    given = (*table, gradients_SH, targets_S, seen, norm, done, rules, len(rules), table[0].shape[1])
    kernels(dtype, rule).launch("adam_rows", count, *given)
