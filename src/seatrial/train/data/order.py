"""The order of an epoch's examples: shuffled, or as a sampler of the user's gives it; the same on every rank."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from seatrial.train.data.examples_of import host_random_numbers_kept
from seatrial.train.data.images import shuffled
from seatrial.train.errors import DataError, InputError

#: Examples in an epoch at most: minGPT's endless sampler has a length of 10^10.
MOST = 2**31


class Order:
    """Places in a data set for each epoch, a function of seed and epoch alone.

    Args:
        examples: in the data set.
        sampler: as DataLoader takes it; None shuffles.

    Raises:
        InputError: a sampler without a length, or of one rank's share.
    """

    def __init__(self, examples: int, seed: int, sampler: Any = None) -> None:
        self._examples, self._seed, self._sampler = examples, seed, sampler
        if sampler is None:
            self.length = examples
            return
        if isinstance(sampler, DistributedSampler):
            raise InputError("batches() deals the examples to the ranks itself", fix="no DistributedSampler")
        if not hasattr(sampler, "__len__"):
            raise InputError(f"a {type(sampler).__name__} does not say how many examples an epoch has: no __len__")
        self.length = len(sampler)
        if self.length > MOST:
            raise InputError(
                f"the sampler gives {self.length:,} examples in an epoch, which is planned step by step",
                fix="num_samples=len(dataset), and more epochs",
            )

    def of(self, epoch: int) -> Tensor:
        """Return [N] places. Raises DataError for a sampler that gives another number or other values."""
        if self._sampler is None:
            return shuffled(self._examples, self._seed, epoch, torch.device("cpu"))
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


def seed_host(seed: int, epoch: int, place: int = 0) -> None:
    """Seed Python, numpy and torch on the host for what draws there in one epoch, for one example."""
    number = ((seed * 1_000_003 + epoch) * 1_000_000_007 + place) % 2**63
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
