"""Deal an epoch's examples to batches and ranks, and put them in order: shuffled, or as a user's sampler gives them.

Shapes: N examples of the set, B rows of a batch, S steps of an epoch.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from seatrial.train.data.samples import host_random_numbers_kept
from seatrial.train.errors import DataError, InputError

#: Examples in an epoch at most: minGPT's endless sampler has a length of 10^10.
MOST = 2**31
CPU = torch.device("cpu")


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


class Source(Protocol):
    """Where training batches come from: ``batches``, ``training_images``, Texts, or a user's own.

    Attributes:
        spans: this rank's steps of an epoch, in order. ``start`` may reorder them, never change their number.
        resident: ``before_step`` does nothing, so several steps can be queued at once.

    One whose shapes change from epoch to epoch also has ``spans_in(epoch)``: the spans of an epoch, always as many.
    ``steps_per_replay`` is how many of its steps one graph holds.
    """

    spans: list[Span]
    resident: bool = True

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch that begins at ``first_step``."""

    def before_step(self) -> None:
        """Do the host's work before each step; there is none where the set is on the device."""
        return

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Any, ...]:
        """Return rows of the batch at ``position`` as the loss takes them, by device operations only."""


def deal(examples: int, batch: int, rank: int = 0, world: int = 1, *, drop_last: bool = False) -> list[Span]:
    """Return this rank's batches of an epoch. Every rank gets the same number of them; every example is in one.

    ``batch``: examples per rank and step. ``drop_last``: leave out the last global batch when it is not full. Raises
    InputError if the global batch is larger than the data.
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


def places(spans: list[Span], batch: int) -> Tensor:
    """Return the positions [S, B] in an epoch's order that each step reads; a short batch is filled up with place 0."""
    table_SB = torch.zeros(len(spans), batch, dtype=torch.long)
    for step, (first, shape) in enumerate(spans):
        table_SB[step, : shape.rows] = torch.arange(first, first + shape.rows)
    return table_SB


def shuffled(examples: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """Draw a permutation of the examples on the device; touch no global generator."""
    generator = torch.Generator(device).manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(examples, generator=generator, device=device)


def seed_host(seed: int, epoch: int, place: int = 0) -> None:
    """Seed Python, numpy and torch on the host for the draws of one epoch, and one example."""
    number = ((seed * 1_000_003 + epoch) * 1_000_000_007 + place) % 2**63
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)


class Order:
    """Places in a data set for each epoch, a function of seed and epoch alone; the same on every rank.

    ``sampler``: as DataLoader takes it; None shuffles by the generator of ``device``: each device has other numbers.
    Raises InputError for a sampler without a length, or of one rank's share.
    """

    def __init__(self, examples: int, seed: int, sampler: Any = None, device: torch.device = CPU) -> None:
        self._examples, self._seed, self._sampler, self.device = examples, seed, sampler, device
        self.length = examples
        if sampler is None:
            return
        if isinstance(sampler, DistributedSampler):
            raise InputError("batches() deals the examples to the ranks itself", fix="no DistributedSampler")
        if not hasattr(sampler, "__len__"):
            raise InputError(f"a {type(sampler).__name__} does not give the number of an epoch's examples: no __len__")
        self.length = len(sampler)
        if self.length > MOST:
            problem = f"the sampler gives {self.length:,} examples in an epoch, which is planned step by step"
            raise InputError(problem, fix="num_samples=len(dataset), and more epochs")

    def draw(self, epoch: int) -> Tensor:
        """Return [N] places. Raises DataError for a sampler that gives another number or other values."""
        if self._sampler is None:
            return shuffled(self._examples, self._seed, epoch, self.device)
        with host_random_numbers_kept():
            seed_host(self._seed, epoch)
            given = list(islice(self._sampler, self.length + 1))
        try:
            order_N = torch.tensor(given)
        except (TypeError, ValueError):  # lists of several lengths: of a batch sampler
            order_N = torch.zeros(())
        if order_N.ndim != 1 or order_N.is_floating_point():
            raise DataError("the sampler gives no places in the data set", fix="one number at a time, as sampler= does")
        if len(order_N) != self.length:
            found = len(order_N) if len(order_N) < self.length else "more"
            raise DataError(f"the sampler gives {found} examples in epoch {epoch}, and its length is {self.length}")
        if len(order_N) and not 0 <= int(order_N.min()) <= int(order_N.max()) < self._examples:
            raise DataError(f"the sampler gives places outside of the {self._examples} examples")
        return order_N
