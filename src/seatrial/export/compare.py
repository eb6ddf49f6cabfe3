"""Compare the exported model's outputs with the original's, at several batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.export.formats import Run
from seatrial.models.model import Original
from seatrial.train.errors import TrainError

#: Allowed by default, of what ``scaled`` measures. Sources: fp32 and fp64, sums of some thousand terms in another
#: order (a thousand times the type's epsilon, 1.2e-7 and 2.2e-16, is 1e-4 and less than 1e-8); fp16 and bf16, ten times
#: their epsilon (9.8e-4, 7.8e-3): each product is rounded to it.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}

#: Size of an output that is zero everywhere: the smallest normal fp32, 1.2e-38.
LEAST = 1.2e-38


class DisagreesError(TrainError):
    """The exported model does not compute what the original computes."""


@dataclass(frozen=True)
class Difference:
    """The result of the comparison.

    Attributes:
        scaled: largest |a - b| / max(|b|, r), b the original's and r its root mean square over the output, so that
            probabilities of many classes are measured as logits are. absolute: largest |a - b|.
        batches: sizes compared.
    """

    scaled: float
    absolute: float
    batches: tuple[int, ...]


@torch.no_grad()
def compare(original: Original, before: Run, after: Run) -> Difference:
    """Compare at batch 1, with all inputs, and with a larger batch; and with the outputs saved after training.

    Raises DisagreesError: other shapes, other types, or other places that are not finite.
    """
    scaled = absolute = 0.0
    count = len(original.examples)
    sizes = (original.fixed_batch,) if original.fixed_batch else (1, count, 2 * count + 5)
    for size in sizes:
        rows = original.rows(size)
        got, wanted = after(rows), before(rows)
        pairs = [*_pairs(original, got, wanted, size)]
        if size == count and original.examples.outputs:
            pairs += [*_pairs(original, got, tuple(original.examples.outputs.values()), size)]
        for mine, theirs in pairs:
            distance = (mine - theirs).abs()
            absolute = max(absolute, float(distance.max()))
            size_of_output = max(float(theirs.square().mean().sqrt()), LEAST)
            scaled = max(scaled, float((distance / theirs.abs().clamp(min=size_of_output)).max()))
    return Difference(scaled, absolute, tuple(sizes))


def _pairs(
    original: Original, got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each output of both in double precision, without numbers that are not finite at the same places."""
    if len(got) != len(wanted):
        raise DisagreesError(f"the exported model gives {len(got)} outputs, the original {len(wanted)}")
    for name, mine, theirs in zip(original.outputs, got, wanted, strict=False):
        if mine.shape != theirs.shape:
            raise DisagreesError(
                f"with {rows} rows the exported {name} is {tuple(mine.shape)}, the original's {tuple(theirs.shape)}",
                fix="a network that does not fix its batch size: look for sizes that are taken from the first batch",
            )
        mine, theirs = mine.double(), theirs.double()
        same = (mine == theirs) | (mine.isnan() & theirs.isnan())
        if not bool((same | (mine.isfinite() & theirs.isfinite())).all()):
            raise DisagreesError(
                f"with {rows} rows {name} is not finite in one of the two models, and finite in the other"
            )
        finite = torch.where(same, torch.zeros_like(mine), mine), torch.where(same, torch.zeros_like(theirs), theirs)
        if mine.numel():
            yield finite
