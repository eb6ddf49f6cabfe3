"""Make training batches from any map-style data set: kept on the device if it fits, else streamed.

Shapes: N examples of the set, B rows of a batch, S steps of an epoch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from seatrial.train.data import samples
from seatrial.train.data.order import Order, Shape, Source, Span, deal, places, seed_host
from seatrial.train.data.samples import Collate, as_arguments, part_of, tensors_of, to_device
from seatrial.train.distributed import Ranks, here
from seatrial.train.memory import RESIDENT_SHARE, free_bytes, free_for_data
from seatrial.train.saving.arena import map_tensors

#: Changes a batch on the device: gets its parts as arguments, returns them all. Augmentation belongs here.
Transform = Callable[..., Any]
MOST_WORKERS = 8


def batches(
    dataset: Any,
    batch: int,
    *,
    transform: Transform | None = None,
    seed: int = 0,
    drop_last: bool = False,
    sampler: Any = None,
    collate: Collate | None = None,
    workers: int | None = None,
    ranks: Ranks | None = None,
) -> ResidentBatches | StreamedBatches:
    """Keep the set on the device if it takes at most half of the free memory, else stream it; print which.

    Args:
        dataset: with ``__len__`` and ``__getitem__``; one that augments at random is always streamed.
        batch: examples per rank and step.
        transform: changes each batch on the device, in the captured step.
        sampler: places of an epoch's examples, as DataLoader takes it: a WeightedRandomSampler, ``range(len(dataset))``
            for no shuffling. Its draws from the global generators follow from seed and epoch. None: shuffled.
        collate: examples to a batch, as DataLoader takes it: streamed then; its result reaches the loss unchanged.
        workers: processes that read; None: up to 8 for a GPU, for a CPU none.

    Raises:
        InputError: no map-style data set. DataError: its examples do not make a batch.
    """
    ranks = ranks or here()
    count, on_gpu = samples.count_examples(dataset), ranks.device.type == "cuda"
    order = Order(count, seed, sampler)
    spans = deal(order.length, batch, ranks.rank, ranks.world, drop_last=drop_last)
    workers = workers if workers is not None else (min(MOST_WORKERS, len(os.sched_getaffinity(0))) if on_gpu else 0)
    note = print if ranks.first else lambda *text, **_: None
    how = f"{workers} processes" if workers else "this process"
    if collate is not None:
        sample = samples.first_batch(dataset, batch, collate)
        note(f"data: {count} examples streamed to {ranks.device} by {how}", flush=True)
        return StreamedBatches(dataset, sample, spans, batch, ranks, seed, order, transform, collate, workers)
    sample, steady = samples.inspect_samples(dataset)
    size = sum(tensor.nbytes // len(tensor) for tensor in tensors_of(sample)) * count
    whole = type(dataset) is TensorDataset  # it is in the host's memory already
    free = free_bytes(ranks.device) if whole else free_for_data(ranks.device)
    megabytes = f"{size / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB free"
    if steady and size <= free * RESIDENT_SHARE:
        began = time.perf_counter()
        data = map_tensors(lambda tensor: tensor.to(ranks.device), samples.read(dataset, workers=workers))
        took = time.perf_counter() - began
        note(f"data: {count} examples kept on {ranks.device} ({megabytes}), read in {took:.1f} s", flush=True)
        return ResidentBatches(data, spans, batch, ranks, order, transform)
    why = "" if steady else "; an example comes out different each time: augment in transform= to keep them there"
    note(f"data: {count} examples streamed to {ranks.device} by {how} ({megabytes}){why}", flush=True)
    return StreamedBatches(dataset, sample, spans, batch, ranks, seed, order, transform, None, workers)


class ResidentBatches(Source):
    """Batches of a set that is on the device, gathered there.

    ``load`` consists of device operations only and follows a tensor, so that a CUDA graph can capture it.
    """

    def __init__(
        self, data: Any, spans: list[Span], batch: int, ranks: Ranks, order: Order, transform: Transform | None
    ) -> None:
        self.spans = spans
        self._data, self._order, self._transform = data, order, transform
        self._places_SB = places(spans, batch).to(order.device)
        self._rows_SB = torch.zeros_like(self._places_SB, device=ranks.device)

    def start(self, epoch: int, first_step: int) -> None:
        """Put an epoch's examples in order: a function of seed and epoch alone, the same on every rank."""
        self._rows_SB.copy_(self._order.draw(epoch)[self._places_SB])

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Any, ...]:
        """Return rows ``first`` to ``first + count`` of step ``position`` ([1] on the device)."""
        rows_B = self._rows_SB.index_select(0, position).view(-1)[first : first + count]
        return transformed(map_tensors(lambda tensor: tensor.index_select(0, rows_B), self._data), self._transform)


class StreamedBatches:
    """The same batches in the same order, read while the device computes.

    Random draws follow from seed, epoch and place, not from processes, so that a resumed training repeats them.
    """

    resident = False

    def __init__(
        self,
        dataset: Any,
        sample: Any,
        spans: list[Span],
        batch: int,
        ranks: Ranks,
        seed: int,
        order: Order,
        transform: Transform | None,
        collate: Collate | None,
        workers: int,
    ) -> None:
        self.spans = spans
        #: Why no step can be captured, or None: a captured one reads a batch of one shape from one place.
        self.uncaptured = "batches of a collate may differ in shape" if collate else None
        self._order, self._transform = order, transform
        self._steps: list[list[tuple[int, int]]] = []
        self._next, self._device = 0, ranks.device
        self._collated, on_gpu = collate is not None, ranks.device.type == "cuda"
        if self._collated:
            self._batch = to_device(sample, ranks.device)
        else:
            self._batch = map_tensors(
                lambda tensor: tensor.new_zeros((batch, *tensor.shape[1:]), device=ranks.device), sample
            )
        #: On a GPU the place that every batch is copied to, for a captured step to read.
        self._fixed = self._batch if on_gpu and not self._collated else None
        self._loader: DataLoader[Any] = DataLoader(
            _Batches(dataset, seed, collate or samples.collate),
            batch_size=None,
            sampler=self._steps,
            num_workers=workers,
            pin_memory=on_gpu,
            persistent_workers=workers > 0,
            collate_fn=_unchanged,
        )
        self._read: Iterator[Any] = iter(())

    def start(self, epoch: int, first_step: int) -> None:
        """Order the examples, and start reading the epoch's batches from ``first_step`` on."""
        order_N = self._order.draw(epoch).tolist()
        rows = [order_N[first : first + shape.rows] for first, shape in self.spans[first_step:]]
        self._steps[:] = [[(epoch, place) for place in step] for step in rows if step]
        self._next = first_step
        with samples.host_random_numbers_kept():  # DataLoader draws its processes' seed
            self._read = iter(self._loader)

    def before_step(self) -> None:
        """Queue the copy of the next batch to the device; return before it is done."""
        rows = self.spans[self._next % len(self.spans)].shape.rows
        self._next += 1
        if not rows:
            return
        with samples.host_random_numbers_kept(), samples.in_one_sentence():
            read = next(self._read)
        if self._fixed is None:
            self._batch = to_device(read, self._device)
            return
        map_tensors(lambda fixed, tensor: fixed[:rows].copy_(tensor, non_blocking=True), self._fixed, read)

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Any, ...]:
        """Return rows ``first`` to ``first + count`` of the batch that ``before_step`` brought."""
        part = self._batch
        if self._collated and count != shape.rows:
            part = part_of(part, first, count, shape.rows)
        elif not self._collated:
            part = map_tensors(lambda tensor: tensor[first : first + count], part)
            if self._transform is not None:  # it may work in place, and a step that ran out of memory loads again
                part = map_tensors(torch.clone, part)
        return transformed(part, self._transform)


class _Batches(Dataset[Any]):
    """Whole batches by lists of (epoch, place), whose examples draw from generators that were seeded for them."""

    def __init__(self, dataset: Any, seed: int, collate: Collate) -> None:
        self._dataset, self._seed, self._collate = dataset, seed, collate
        self._whole = type(dataset) is TensorDataset and collate is samples.collate

    def __getitem__(self, step: list[tuple[int, int]]) -> Any:
        if self._whole:
            rows = torch.tensor([place for _, place in step])
            return [tensor[rows] for tensor in self._dataset.tensors]
        return self._collate([self._example(*key) for key in step])

    def _example(self, epoch: int, place: int) -> Any:
        if type(self._dataset) is not TensorDataset:
            seed_host(self._seed, epoch, place)
        return samples.example(self._dataset, place)


def _unchanged(batch: Any) -> Any:
    return batch


def transformed(batch: Any, transform: Transform | None) -> tuple[Any, ...]:
    """Return a batch as arguments of the loss, changed by the transform."""
    arguments = as_arguments(batch)
    return arguments if transform is None else as_arguments(transform(*arguments))
