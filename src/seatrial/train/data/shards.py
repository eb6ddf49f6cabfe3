"""Deal an epoch's examples to batches and ranks, each exactly once."""

from __future__ import annotations

from typing import NamedTuple

from seatrial.train.errors import InputError


class Shape(NamedTuple):
    """The fixed properties of one rank's batch; a captured step serves every batch of one shape.

    Attributes:
        rows: examples in it; 0 when the last global batch has fewer examples than there are ranks.
        share: rows times ranks over the rows of all ranks: the weight that makes the mean of the ranks' gradients
            the gradient of the mean over all examples. 1.0 for every full batch.
        length: tokens a row is padded to, for text; the side in pixels, for images whose size changes.
    """

    rows: int
    share: float = 1.0
    length: int = 0


class Span(NamedTuple):
    """Positions ``first`` to ``first + shape.rows`` of the epoch's global order."""

    first: int
    shape: Shape


def deal(examples: int, batch: int, rank: int = 0, world: int = 1, *, drop_last: bool = False) -> list[Span]:
    """This rank's batches of one epoch. Every rank gets the same number of them; every example is in one.

    Args:
        batch: examples per rank and step; the global batch is ``batch * world``.
        drop_last: leave out the last batch when it is not full.

    Raises:
        InputError: the global batch is larger than the data.
    """
    if batch < 1:
        raise InputError(f"a batch of {batch} has no examples", fix="a batch of 1 or more")
    together = batch * world
    if together > examples:
        fix = f"a batch of {examples // world} or less" if examples >= world else None
        raise InputError(
            f"a batch of {batch} on {world} rank{'s'[: world != 1]} is larger than the {examples} training examples",
            fix=fix,
        )
    spans = [Span(first + rank * batch, Shape(batch)) for first in range(0, examples - together + 1, together)]
    left = examples % together
    if left and not drop_last:
        rows = [left // world + (other < left % world) for other in range(world)]
        first = examples - left + sum(rows[:rank])
        spans.append(Span(first, Shape(rows[rank], rows[rank] * world / left)))
    return spans
