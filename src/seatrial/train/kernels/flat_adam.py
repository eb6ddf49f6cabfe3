"""AdamW over all parameters of a large model in one launch, with what comes before and after it.

Rows of an embedding are updated when somebody looks at them: a batch has a thousand tokens of thirty thousand, and what
the others miss (their moments fade, they decay) is made up for later, step by step, with the same numbers.

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

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import KernelModule, module
from seatrial.train.kernels.runtime import THREADS

#: Blocks that sum the squares: four for each multiprocessor of a large GPU (H200: 132).
PARTS = 528
#: Pieces of four elements that a thread updates, all read before the first is computed.
EACH = 2
#: Added to the norm as torch.nn.utils.clip_grad_norm_ does.
TINY = 1e-6


@dataclass(frozen=True)
class Rule:
    """AdamW's numbers."""

    betas: tuple[float, float]
    epsilon: float
    decay: float

    def constants(self) -> dict[str, float]:
        """The kernels' constants."""
        return {
            "SHARE1": 1 - self.betas[0], "SHARE2": 1 - self.betas[1], "BETA2": self.betas[1], "EPSILON": self.epsilon,
            "DECAY": self.decay, "LOG1": math.log(self.betas[0]), "LOG2": math.log(self.betas[1]),
        }  # fmt: skip


def kernels(dtype: torch.dtype, rule: Rule) -> KernelModule:
    """The kernels for gradients of this type."""
    return module("adam_flat.cu", dtype, **rule.constants(), EACH=EACH)


def clip_factor(gradients: Tensor, most: float, norm: Tensor, rule: Rule) -> None:
    """``norm`` [2]: the gradients' norm, and the factor that brings it down to ``most``, at most 1."""
    if not runtime.usable(gradients.device):
        norm[0] = gradients.float().square().sum(dtype=torch.double).sqrt()
        norm[1] = (most / (norm[0] + TINY)).clamp(max=1.0)
        return
    eights, made = gradients.numel() // 8, kernels(gradients.dtype, rule)
    parts = torch.empty(min(PARTS, -(-eights // THREADS)), device=gradients.device)
    made.launch("square_parts", len(parts), gradients, parts, eights)
    made.launch("clip_factor", 1, parts, len(parts), float(most), norm)


def update(
    flat: Sequence[Tensor], decayed: int, copied: int, norm: Tensor | None, done: Tensor,
    rate: Tensor, rule: Rule, rules: Tensor | None = None, applied: Tensor | None = None,
) -> None:  # fmt: skip
    """One step of AdamW.

    Args:
        flat: parameters, first and second moments (fp32), gradients, and the copy (in the type of the products).
        decayed: so many of the first elements decay. copied: from here on they are copied. Multiples of 4.
        norm: as ``clip_factor`` makes it. done: steps with this one, on the device.
        rules: [kept, 3]: gets what ``update_rows`` needs to know of this step.
        applied: nothing is done where this is ``done`` already.
    """
    parameters, means, squares, gradients, values = flat
    if runtime.usable(parameters.device):
        quads, kept = parameters.numel() // 4, 0 if rules is None else len(rules)
        numbers = (quads, decayed, copied, norm, done, rate, rules, kept, applied)
        blocks = -(-quads // (THREADS * EACH))
        kernels(gradients.dtype, rule).launch("adam_flat", blocks, *flat, *numbers)
        return
    if applied is not None and applied == done:
        return
    step_size = rate / -torch.expm1(done * math.log(rule.betas[0]))
    root = (-torch.expm1(done * math.log(rule.betas[1]))).sqrt()
    if rules is not None:
        rules[int(done) % len(rules)] = torch.stack([rate * rule.decay, step_size, root])
    parameters[:decayed] -= rate * rule.decay * parameters[:decayed]
    _moved(parameters, means, squares, gradients.float() * (1.0 if norm is None else norm[1]), step_size, root, rule)
    values[copied:].copy_(parameters[copied:])


def update_rows(
    table: tuple[Tensor, Tensor, Tensor], gradients_SH: Tensor | None, targets_S: Tensor | None, seen: Tensor,
    norm: Tensor | None, done: Tensor, rules: Tensor, rule: Rule, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Bring rows of a table to step ``done``: first through the steps that they have missed, whose gradients were zero.

    What a dense AdamW does with them, element by element in the same order, but only when somebody looks.

    Args:
        table: parameters and both moments, [V, H] each.
        gradients_SH: of the last step; None: the last step was missed as well.
        targets_S: each one's row; -1: none. None: all rows. seen: [V]: the step that a row is at.
        dtype: of gradients, here or elsewhere: one text for all.
        rules: as ``update`` has written them, for every step since the oldest of ``seen``.
    """
    parameters = table[0]
    if runtime.usable(parameters.device):
        count = len(parameters) if targets_S is None else len(targets_S)
        given = (*table, gradients_SH, targets_S, seen, norm, done, rules, len(rules), parameters.shape[1])
        kernels(dtype, rule).launch("adam_rows", count, *given)
        return
    rows = torch.arange(len(parameters)) if targets_S is None else targets_S[targets_S >= 0].long()
    now = int(done)
    first = int(seen[rows].min()) + 1 if len(rows) else now + 1
    for step in range(first, now + 1):
        behind = rows[seen[rows] < step]
        decay, step_size, root = rules[step % len(rules)]
        own, mean, square = (each[behind] for each in table)
        slopes = torch.zeros_like(own)
        if step == now and gradients_SH is not None and targets_S is not None:
            real = (targets_S >= 0).nonzero().view(-1)
            slopes = gradients_SH[real].float() * (1.0 if norm is None else norm[1])
        own -= decay * own
        _moved(own, mean, square, slopes, step_size, root, rule)
        for each, value in zip(table, (own, mean, square), strict=True):
            each[behind] = value
    seen[rows] = now


def _moved(
    own: Tensor, mean: Tensor, square: Tensor, slopes: Tensor, step_size: Tensor, root: Tensor, rule: Rule
) -> None:
    mean += (1 - rule.betas[0]) * (slopes - mean)
    square.mul_(rule.betas[1]).addcmul_(slopes, slopes, value=1 - rule.betas[1])
    own -= step_size * mean / (square.sqrt() / root + rule.epsilon)
