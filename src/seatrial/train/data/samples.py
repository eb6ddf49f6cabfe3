"""Read the examples of any data set as tensors, and refuse those that make no batch.

An example is a tensor, a picture, a number, or any nesting of dictionaries, lists and tuples of these.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from seatrial.train.errors import FIX_LABEL, DataError, InputError, first_line
from seatrial.train.saving.arena import map_items, map_tensors

#: Examples read twice to compare them: a flip of half of them goes unnoticed once in 10^19.
INSPECTED = 64
#: Examples read at once; no number depends on it.
READ_TOGETHER = 256
Collate = Callable[[list[Any]], Any]


def to_device(value: Any, device: torch.device) -> Any:
    """Move a batch to the device; values of a collate that cannot be moved (lengths, texts) stay as they are."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if callable(to := getattr(value, "to", None)):  # a batch of graphs, a packed sequence, an encoding of texts
        return to(device)
    return map_items(lambda item: to_device(item, device), value)


def part_of(batch: Any, first: int, count: int, rows: int) -> Any:
    """Take rows ``first`` to ``first + count`` of a collate's batch. Raises InputError if they cannot be found."""

    def part(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == rows:
            return value[first : first + count]
        what = f"tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        fix = f"a smaller batch without accumulation, or tensors whose first dimension is the {rows} examples"
        raise InputError(f"a batch of {rows} examples cannot be taken in parts: its collate gives a {what}", fix=fix)

    if isinstance(batch, Mapping):
        return {key: part(value) for key, value in batch.items()}
    return tuple(map(part, as_arguments(batch)))


def tensors_of(value: Any) -> list[Tensor]:
    """Return every tensor of a nesting."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, value)  # type: ignore[func-returns-value]
    return found


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Return a batch as the loss takes it: a tuple or list is several arguments, anything else one."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def collate(examples: list[Any]) -> Any:
    """Collate as a DataLoader does; pictures become bytes [C, H, W] first."""
    return default_collate([_picture_as_tensor(example) for example in examples])


def count_examples(dataset: Any) -> int:
    """Return the number of examples. Raises InputError without a map-style data set, DataError for an empty one."""
    if isinstance(dataset, DataLoader):
        fix = "give its data set: batches(loader.dataset, 128); its sampler and collate_fn as sampler= and collate="
        raise InputError("a DataLoader makes batches by itself", fix=fix)
    if isinstance(dataset, Mapping) or (isinstance(dataset, tuple) and all(hasattr(part, "shape") for part in dataset)):
        problem = f"a {type(dataset).__name__} of whole arrays or sets is not a data set: it has no examples by number"
        raise InputError(problem, fix='TensorDataset(inputs, labels), or one entry of it: sets["train"]')
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        problem = f"{type(dataset).__name__} is not a map-style data set: it lacks __len__ or __getitem__"
        raise InputError(problem, fix="list(dataset) where it fits into memory")
    if not len(dataset):
        raise DataError("the data set has no examples")
    return len(dataset)


def example(dataset: Any, place: int) -> Any:
    """Read an example. Raises DataError with its place if the data set fails."""
    try:
        return dataset[place]
    except (MemoryError, torch.OutOfMemoryError, DataError):
        raise
    except Exception as error:  # a stranger's code runs
        raise DataError(f"example {place} cannot be read: {type(error).__name__}: {error}") from error


def first_batch(dataset: Any, batch: int, collated: Collate) -> Any:
    """Return one batch of the user's collate. Raises DataError if it fails."""
    with host_random_numbers_kept():
        return _collated([example(dataset, place) for place in range(min(batch, len(dataset)))], collated)


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Strip the traceback that a reading process puts into the message of its errors."""
    try:
        yield
    except DataError as error:
        if "Original Traceback" not in error.message:
            raise
        text = error.message.rpartition("errors.DataError: ")[2].strip()
        message, _, fix = text.partition(f"\n  {FIX_LABEL}: ")
        raise DataError(message, fix=fix or None) from error


def inspect_samples(dataset: Any) -> tuple[Any, bool]:
    """Read a few examples twice; return a batch, and False if they differ by augmentation. Raises DataError."""
    count = len(dataset)
    chosen = sorted({place * count // INSPECTED for place in range(INSPECTED)})
    with host_random_numbers_kept():
        first = _collated([example(dataset, place) for place in chosen])
        again = _collated([example(dataset, place) for place in chosen])
    _refuse_other_than_tensors(first)
    pairs = zip(tensors_of(first), tensors_of(again), strict=True)
    return first, all(a.shape == b.shape and _equal(a, b) for a, b in pairs)


def read(dataset: Any, rows: Sequence[int] | None = None, workers: int = 0) -> Any:
    """Read all examples, or ``rows`` of them, as a batch in the host's memory. Raises DataError if one does not fit."""
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors if rows is None else [tensor[torch.tensor(rows)] for tensor in dataset.tensors]
        return tuple(tensors)
    chosen = range(len(dataset)) if rows is None else rows
    with host_random_numbers_kept(), in_one_sentence():
        loader: DataLoader[Any] = DataLoader(
            _Examples(dataset), READ_TOGETHER, sampler=chosen, num_workers=workers, collate_fn=_collated
        )
        parts = list(loader)
    try:
        return map_tensors(lambda *tensors: torch.cat(tensors), *parts)
    except (RuntimeError, ValueError, KeyError) as error:
        raise DataError(f"the examples do not fit together: {first_line(error)}", fix=_PAD) from error


@contextmanager
def host_random_numbers_kept() -> Iterator[None]:
    """Restore Python's, numpy's and torch's generators on the host at the end of the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


_PAD = "pad them in the data set, or give batches() a collate that does"


class _Examples(Dataset[Any]):
    """Examples of anything with places, for DataLoader."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __getitem__(self, place: int) -> Any:
        return example(self._items, place)


def _collated(examples: list[Any], collated: Collate = collate) -> Any:
    try:
        return collated(examples)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise DataError(f"examples do not make a batch: {first_line(error)}", fix=_PAD) from error


def _picture_as_tensor(example: Any) -> Any:
    if hasattr(example, "getbands") and hasattr(example, "size"):  # PIL, which need not be installed
        pixels = torch.from_numpy(np.array(example))
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
    return map_items(_picture_as_tensor, example)


def _refuse_other_than_tensors(batch: Any, place: str = "an example") -> None:
    if isinstance(batch, Mapping):
        for key, item in batch.items():
            _refuse_other_than_tensors(item, f"{place}[{key!r}]")
    elif isinstance(batch, (tuple, list)) and not (batch and all(isinstance(item, (str, bytes)) for item in batch)):
        for number, item in enumerate(batch):
            _refuse_other_than_tensors(item, f"{place}[{number}]")
    elif not isinstance(batch, Tensor):
        value = batch[0] if isinstance(batch, (tuple, list)) else batch  # texts stay a list of them
        problem = f"{place} is a {type(value).__name__}: only numbers can be trained on"
        raise DataError(problem, fix="leave it out of the examples")


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)
