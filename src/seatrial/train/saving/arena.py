"""A checkpoint's tensors side by side in memory that two processes see: one fills it, the other writes the file.

The memory is a file without a name (memfd): it counts as the processes' own, needs no /dev/shm, and is gone with them.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

#: Bytes that a tensor's beginning is a multiple of.
ALIGNED_BYTES = 64
#: In place of a tensor in what is sent between the processes: where it begins, and what it is.
Place = tuple[int, str, tuple[int, ...], tuple[int, ...]]


class Arena:
    """Memory for one checkpoint."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create("seatrial-checkpoint", 0)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            self.memory = mmap.mmap(self.descriptor, size_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.descriptor)
        del self.bytes, self.memory


def sizes_of(value: Any) -> dict[torch.device, int]:
    """Return the bytes that an arena needs for a nesting's tensors on each device."""
    sizes: dict[torch.device, int] = {}

    def add(tensor: Tensor) -> None:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES

    map_tensors(value, add)
    return sizes


def size_of(value: Any) -> int:
    """Return the bytes that an arena needs for the tensors of a nesting."""
    return max(sum(sizes_of(value).values()), mmap.PAGESIZE)


def fill(arena: Arena, value: Any, copy: Callable[[Tensor, Tensor], object]) -> Any:
    """Queue a copy of every tensor; the nesting with a ``Place`` in place of each, in types that pickle carries.

    Args:
        copy: (to, from). All that is done with a tensor is done there, on the stream that it chooses: one made dense
            here, on the stream of the moment, might be read before it is there.
    """
    begin = 0

    def placed(tensor: Tensor) -> dict[str, Place]:
        nonlocal begin
        stride = tensor.stride() if _is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        place = (begin, str(tensor.dtype), tuple(tensor.shape), stride)
        if tensor.numel():
            copy(as_tensor(arena.bytes, place), tensor)
        begin += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        return {_MARK: place}

    return map_tensors(value, placed)


def read(memory: mmap.mmap, value: Any) -> Any:
    """Return the nesting with tensors over the memory: each a storage of its own, as torch.save writes them."""
    if isinstance(value, dict):
        if _MARK in value:
            begin, kind, shape, stride = value[_MARK]
            dtype = getattr(torch, kind.removeprefix("torch."))
            count = math.prod(shape)
            if not count:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(memory, dtype=dtype, count=count, offset=begin).as_strided(shape, stride)
        return {key: read(memory, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(read(memory, item) for item in value)
    return value


def as_tensor(memory: Tensor, place: Place) -> Tensor:
    """Return a tensor over its place."""
    begin, kind, shape, stride = place
    dtype = getattr(torch, kind.removeprefix("torch."))
    piece = memory[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype)
    return piece.as_strided(shape, stride, piece.storage_offset())


_MARK = "seatrial tensor"


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Change every tensor in a nesting of dictionaries, lists and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def _is_dense(tensor: Tensor) -> bool:
    """Return True if its elements lie side by side, in any order."""
    sizes = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in sizes:
        if stride != expected:
            return False
        expected *= size
    return True
