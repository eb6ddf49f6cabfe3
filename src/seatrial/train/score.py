"""Test of any model on any map-style data set: means over all examples of all ranks.

Shapes: B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from seatrial.train.data import examples_of
from seatrial.train.data.batches import Transform, _transformed
from seatrial.train.data.examples_of import map_tensors, tensors_of
from seatrial.train.memory import RESIDENT_SHARE, free_for_data

if TYPE_CHECKING:
    from seatrial.train.distributed import Ranks
    from seatrial.train.precision import Precision

#: (model, *batch) → name → numbers [B] of each row, or their mean. ``test_loss`` picks the best checkpoint.
Score = Callable[..., dict[str, Tensor]]


class Test:
    """A test set and what is measured on it.

    Args:
        dataset: as ``batches`` takes it.
        score: gets the model and a batch, as the loss does; gives names and their numbers, one for each example or
            their mean. ``test_loss`` picks the best checkpoint, and ``patience`` follows it.
        batch: examples at once; the numbers do not depend on it.
        collate: as ``batches`` takes it.
        transform: of each batch, on the device, as ``batches`` takes it: without what is random.
    """

    __test__ = False  # not a test case, whatever pytest thinks of the name

    def __init__(
        self,
        dataset: Any,
        score: Score,
        *,
        batch: int = 1000,
        transform: Transform | None = None,
        collate: examples_of.Collate | None = None,
    ) -> None:
        self._examples = examples_of.check(dataset)
        self._dataset, self._score, self._batch = dataset, score, batch
        self._transform, self._collate = transform, collate
        self._data: Any = None

    @torch.no_grad()
    def __call__(self, model: nn.Module, ranks: Ranks, precision: Precision) -> dict[str, float]:
        """Each name of the score and its mean."""
        was_training = model.training
        model.eval()
        sums: dict[str, Tensor] = {}
        rows = 0
        for batch in self._batches(ranks):
            count = len(tensors_of(batch)[0])
            with precision.autocast():
                scores = self._score(model, *_transformed(batch, self._transform))
            for name, values in scores.items():
                total = values.double().sum() if values.ndim else values.double() * count
                sums[name] = sums.get(name, 0) + total
            rows += count
        model.train(was_training)
        names = sorted({name for found in ranks.gather(sorted(sums)) for name in found})
        zero = torch.zeros((), dtype=torch.double, device=ranks.device)
        totals = torch.stack([*(sums.get(name, zero) for name in names), zero + rows])
        *means, examples = ranks.sum(totals).tolist()
        return {name: total / examples for name, total in zip(names, means, strict=True)}

    def _batches(self, ranks: Ranks) -> Iterator[Any]:
        """This rank's share; together the ranks see every example once."""
        mine = range(ranks.rank, self._examples, ranks.world)
        if self._data is None and self._collate is None and mine:
            sample, _ = examples_of.look_at(self._dataset)
            size = sum(tensor.nbytes // len(tensor) for tensor in tensors_of(sample)) * len(mine)
            if size <= free_for_data(ranks.device) * RESIDENT_SHARE:
                read = examples_of.read(self._dataset, mine)
                self._data = map_tensors(lambda tensor: tensor.to(ranks.device), read)
        if self._data is not None:
            for first in range(0, len(mine), self._batch):
                rows = slice(first, first + self._batch)
                yield map_tensors(lambda tensor, rows=rows: tensor[rows], self._data)
            return
        with examples_of.host_random_numbers_kept():
            loader: DataLoader[Any] = DataLoader(
                Subset(self._dataset, mine),
                batch_size=self._batch,
                collate_fn=self._collate or examples_of.collate,
            )
            for batch in loader:
                yield map_tensors(lambda tensor: tensor.to(ranks.device), batch)
