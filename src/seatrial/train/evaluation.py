"""Evaluate a model: losses and metrics over a test set, with every module's mode kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from seatrial.train.data import samples
from seatrial.train.data.batches import Transform, transformed
from seatrial.train.data.samples import tensors_of, to_device
from seatrial.train.distributed import Ranks
from seatrial.train.errors import InputError
from seatrial.train.memory import RESIDENT_SHARE, free_for_data
from seatrial.train.precision import Precision
from seatrial.train.saving.arena import map_tensors


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore each module's mode at the end: one that a fine-tuning keeps in evaluation stays there."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


#: (model, inputs) → logits [B, classes].
Predict = Callable[[nn.Module, Any], Tensor]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Any, Tensor]],
    ranks: Ranks,
    precision: Precision,
    predict: Predict = nn.Module.__call__,
) -> dict[str, float]:
    """Return means over all ranks' examples: ``test_loss`` and ``accuracy`` (0 to 1). Shares may differ in size."""
    sums = torch.zeros(3, dtype=torch.double, device=ranks.device)  # loss, correct, examples
    with modes_kept(model):
        model.eval()
        for inputs, labels_B in batches:
            with precision.autocast():
                logits = predict(model, inputs)
            sums[0] += F.cross_entropy(logits.float(), labels_B, reduction="sum")
            sums[1] += (logits.argmax(1) == labels_B).sum()
            sums[2] += len(labels_B)
    loss, correct, examples = ranks.sum(sums).tolist()
    return {"test_loss": loss / examples, "accuracy": correct / examples}


#: (model, *batch) → name → numbers [B] of each row, or their mean. ``test_loss`` picks the best checkpoint.
Score = Callable[..., Mapping[str, Any]]


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

    __test__ = False  # pytest would collect it for its name

    def __init__(
        self,
        dataset: Any,
        score: Score,
        *,
        batch: int = 1000,
        transform: Transform | None = None,
        collate: samples.Collate | None = None,
    ) -> None:
        self._examples = samples.count_examples(dataset)
        self._dataset, self._score, self._batch = dataset, score, batch
        self._transform, self._collate = transform, collate
        self._data: Any = None

    @torch.no_grad()
    def __call__(self, model: nn.Module, ranks: Ranks, precision: Precision) -> dict[str, float]:
        """Return each name of the score and its mean."""
        sums: dict[str, Tensor] = {}
        rows = 0
        with modes_kept(model):
            model.eval()
            for batch, count in self._batches(ranks):
                with precision.autocast():
                    scores = self._score(model, *transformed(batch, self._transform))
                for name, total in _totals(scores, count, ranks.device).items():
                    sums[name] = sums.get(name, 0) + total
                rows += count
        names = sorted({name for found in ranks.gather(sorted(sums)) for name in found})
        zero = torch.zeros((), dtype=torch.double, device=ranks.device)
        totals = torch.stack([*(sums.get(name, zero) for name in names), zero + rows])
        *means, examples = ranks.sum(totals).tolist()
        return {name: total / examples for name, total in zip(names, means, strict=True)}

    def _batches(self, ranks: Ranks) -> Iterator[tuple[Any, int]]:
        """Yield this rank's batches and their sizes; together the ranks see every example once."""
        mine = range(ranks.rank, self._examples, ranks.world)
        if self._data is None and self._collate is None and mine:
            sample, _ = samples.inspect_samples(self._dataset)
            size = sum(tensor.nbytes // len(tensor) for tensor in tensors_of(sample)) * len(mine)
            if size <= free_for_data(ranks.device) * RESIDENT_SHARE:
                self._data = to_device(samples.read(self._dataset, mine), ranks.device)
        counts = [min(self._batch, len(mine) - first) for first in range(0, len(mine), self._batch)]
        if self._data is not None:
            for number, count in enumerate(counts):
                rows = slice(number * self._batch, number * self._batch + count)
                # A copy: values that a transform or a score changes in place are whole again in the next test.
                yield map_tensors(lambda tensor, rows=rows: tensor[rows].clone(), self._data), count
            return
        with samples.host_random_numbers_kept():
            loader: DataLoader[Any] = DataLoader(
                Subset(self._dataset, mine), batch_size=self._batch, collate_fn=self._collate or samples.collate
            )
            for batch, count in zip(loader, counts, strict=True):
                yield to_device(batch, ranks.device), count


def _totals(scores: Any, count: int, device: torch.device) -> dict[str, Tensor]:
    """Sum each name's numbers over a batch. Raises InputError for neither one number nor one for each example."""
    if not isinstance(scores, Mapping):
        problem = f"the score gives a {type(scores).__name__}, not a dictionary of names and numbers"
        raise InputError(problem, fix='return {"test_loss": …}')
    totals = {}
    for name, given in scores.items():
        values = torch.as_tensor(given, device=device).detach()
        if values.numel() != count and values.numel() != 1:
            fix = "one number for each example, or their mean"
            raise InputError(f"the score gives {name} of shape {list(values.shape)} for {count} examples", fix=fix)
        totals[name] = values.double().sum() if values.numel() == count else values.double().view(()) * count
    return totals
