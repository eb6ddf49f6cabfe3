"""Batches of image sets: gathered on the device, or by a thread in pinned memory for a set that stays on the host.

Shapes: N examples of the set, B rows of a batch, C channels, H and W pixels, S steps of an epoch.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.train.data.shards import Shape, Span, deal
from seatrial.train.distributed import Ranks
from seatrial.train.errors import DataError
from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import cdiv, channels_last, module
from seatrial.train.memory import RESIDENT_SHARE, free_bytes
from seatrial.train.saving.examples import Normalisation

#: Changes images_BCHW of numbers 0 … 255, before they are normalised: what moves in from outside is black.
Augment = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ImageSet:
    """Images and labels, anywhere.

    Attributes:
        images_NCHW: uint8.
        labels_N: int64, 0 … classes - 1.
    """

    images_NCHW: Tensor
    labels_N: Tensor
    classes: int

    def __post_init__(self) -> None:
        if len(self.images_NCHW) != len(self.labels_N):
            raise DataError(f"{len(self.images_NCHW)} images but {len(self.labels_N)} labels")
        if not len(self.labels_N):
            raise DataError("there are no images")
        low, high = int(self.labels_N.min()), int(self.labels_N.max())
        if low < 0 or high >= self.classes:
            raise DataError(f"labels run from {low} to {high}, but the model has classes 0 to {self.classes - 1}")

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def size_bytes(self) -> int:
        """Memory the set takes on a device."""
        return self.images_NCHW.nbytes + self.labels_N.nbytes

    def to(self, device: torch.device) -> ImageSet:
        """The same set on another device."""
        return ImageSet(self.images_NCHW.to(device), self.labels_N.to(device), self.classes)


class ResidentImages:
    """Training batches from a set that lies on the device.

    ``load`` is made of device operations only and steered by a tensor, so that a CUDA graph can capture it.
    """

    resident = True

    def __init__(
        self,
        data: ImageSet,
        normalise: Normalisation,
        batch: int,
        ranks: Ranks,
        seed: int,
        augment: Augment | None = None,
        *,
        channels_last: bool = False,
    ) -> None:
        self.spans = deal(len(data), batch, ranks.rank, ranks.world)
        self._data, self._normalise = data.to(ranks.device), normalise.to(ranks.device)
        self._as_they_are = Normalisation(
            torch.ones_like(self._normalise.scale), torch.zeros_like(self._normalise.shift)
        )
        self._seed, self._augment = seed, augment
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._places_SB = places(self.spans, batch).to(ranks.device)
        self._rows_SB = torch.zeros_like(self._places_SB)

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch: a function of seed and epoch alone, the same on every rank."""
        order_N = shuffled(len(self._data), self._seed, epoch, self._rows_SB.device)
        self._rows_SB.copy_(order_N[self._places_SB])

    def before_step(self) -> None:
        """Nothing to do on the host."""

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Rows ``first`` to ``first + count`` of step ``position`` ([1] on the device): images_BCHW, labels_B."""
        if self._layout == torch.channels_last and runtime.usable(position.device):
            images_BCHW, labels_B = self._gather(position, first, count)
            if self._augment is None:
                return images_BCHW, labels_B
            images_BCHW = self._normalise(self._augment(images_BCHW))
            return images_BCHW.contiguous(memory_format=self._layout), labels_B
        rows_B = self._rows_SB.index_select(0, position).view(-1)[first : first + count]
        images_BCHW = self._data.images_NCHW.index_select(0, rows_B).float()
        if self._augment is not None:
            images_BCHW = self._augment(images_BCHW)
        images_BCHW = self._normalise(images_BCHW)
        return images_BCHW.contiguous(memory_format=self._layout), self._data.labels_N.index_select(0, rows_B)

    def _gather(self, position: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
        """The rows and their labels in one kernel instead of seven; normalised where nothing augments them before."""
        table = self._normalise if self._augment is None else self._as_they_are
        channels, height, width = self._data.images_NCHW.shape[1:]
        images_BCHW = channels_last((count, channels, height, width), self._normalise.scale, torch.float32)
        labels_B = torch.empty(count, dtype=torch.long, device=position.device)
        tensors = (self._data.images_NCHW, self._data.labels_N, self._rows_SB, position)
        sizes = (images_BCHW.numel(), first, self._rows_SB.shape[1], channels, height * width)
        numbers = (table.scale, table.shift, images_BCHW, labels_B, *sizes)
        blocks = cdiv(images_BCHW.numel(), runtime.THREADS)
        module("gather.cu").launch("gather", blocks, *tensors, *numbers)
        return images_BCHW, labels_B


class TestImages:
    """The batches of a test set, this rank's share; together the ranks see every example once."""

    __test__ = False  # pytest would collect it for its name

    def __init__(
        self, data: ImageSet, normalise: Normalisation, ranks: Ranks, batch: int = 1000, *, channels_last: bool = False
    ) -> None:
        share = slice(ranks.rank, None, ranks.world)
        self._images_NCHW = data.images_NCHW[share].to(ranks.device)
        self._labels_N = data.labels_N[share].to(ranks.device)
        self._normalise, self._batch = normalise.to(ranks.device), batch
        self._layout = torch.channels_last if channels_last else torch.contiguous_format

    def __len__(self) -> int:
        return len(self._labels_N)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(self._labels_N), self._batch):
            rows = slice(first, first + self._batch)
            images_BCHW = self._normalise(self._images_NCHW[rows].float())
            yield images_BCHW.contiguous(memory_format=self._layout), self._labels_N[rows]


def shuffled(examples: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """A permutation of the examples, drawn on the device; touches no global generator."""
    generator = torch.Generator(device).manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(examples, generator=generator, device=device)


def places(spans: list[Span], batch: int) -> Tensor:
    """[S, B] positions in an epoch's order that each step reads; a short batch is filled up with place 0, unread."""
    table_SB = torch.zeros(len(spans), batch, dtype=torch.long)
    for step, (first, shape) in enumerate(spans):
        table_SB[step, : shape.rows] = torch.arange(first, first + shape.rows)
    return table_SB


#: Batches gathered ahead: one being copied, one ready, one being filled.
BUFFERS = 3


class StreamedImages:
    """The same batches as ResidentImages, in the same order, for a set larger than the device's memory.

    Each batch is copied into one fixed place on the device, so that a captured step can read it: one step a replay.
    """

    resident = False

    def __init__(
        self,
        data: ImageSet,
        normalise: Normalisation,
        batch: int,
        ranks: Ranks,
        seed: int,
        augment: Augment | None = None,
        *,
        channels_last: bool = False,
    ) -> None:
        self.spans = deal(len(data), batch, ranks.rank, ranks.world)
        self._data, self._normalise = data, normalise.to(ranks.device)
        self._seed, self._augment = seed, augment
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._on_gpu = ranks.device.type == "cuda"
        picture = data.images_NCHW.shape[1:]
        self._images_BCHW = torch.zeros(batch, *picture, dtype=torch.uint8, device=ranks.device)
        self._labels_B = torch.zeros(batch, dtype=torch.long, device=ranks.device)
        self._pool = [self._host_buffer(batch, picture) for _ in range(BUFFERS)]
        self._ready: queue.Queue[int] = queue.Queue()
        self._empty: queue.Queue[int] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle, and start gathering the epoch's batches from ``first_step`` on."""
        if self._thread is not None:  # an epoch that was left early
            self._stop.set()
            self._thread.join()
        self._ready, self._empty, self._stop = queue.Queue(), queue.Queue(), threading.Event()
        for number in range(BUFFERS):
            self._empty.put(number)
        order_N = shuffled(len(self._data), self._seed, epoch, self._images_BCHW.device).cpu()
        arguments = (order_N, first_step, self._ready, self._empty, self._stop)
        self._thread = threading.Thread(target=self._gather, args=arguments, name="gather", daemon=True)
        self._thread.start()

    def before_step(self) -> None:
        """Queue the copy of the next batch to the device; returns before it is done."""
        number = self._ready.get()
        images, labels, copied = self._pool[number]
        self._images_BCHW.copy_(images, non_blocking=True)
        self._labels_B.copy_(labels, non_blocking=True)
        if copied is not None:
            copied.record()
        self._empty.put(number)

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Rows ``first`` to ``first + count`` of the batch that ``before_step`` brought: images_BCHW, labels_B."""
        images_BCHW = self._images_BCHW[first : first + count].float()
        if self._augment is not None:
            images_BCHW = self._augment(images_BCHW)
        images_BCHW = self._normalise(images_BCHW)
        return images_BCHW.contiguous(memory_format=self._layout), self._labels_B[first : first + count]

    def _gather(
        self, order_N: Tensor, first_step: int, ready: queue.Queue[int], empty: queue.Queue[int], stop: threading.Event
    ) -> None:
        for first, shape in self.spans[first_step:]:
            while True:
                try:
                    number = empty.get(timeout=0.2)
                    break
                except queue.Empty:
                    if stop.is_set():
                        return
            images, labels, copied = self._pool[number]
            if copied is not None:
                copied.synchronize()  # the device may still be reading it
            rows = order_N[first : first + shape.rows]
            torch.index_select(self._data.images_NCHW, 0, rows, out=images[: shape.rows])
            torch.index_select(self._data.labels_N, 0, rows, out=labels[: shape.rows])
            ready.put(number)

    def _host_buffer(self, batch: int, picture: torch.Size) -> tuple[Tensor, Tensor, torch.cuda.Event | None]:
        images = torch.zeros(batch, *picture, dtype=torch.uint8, pin_memory=self._on_gpu)
        labels = torch.zeros(batch, dtype=torch.long, pin_memory=self._on_gpu)
        return images, labels, torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]


def training_images(
    data: ImageSet,
    normalise: Normalisation,
    batch: int,
    ranks: Ranks,
    seed: int,
    augment: Augment | None = None,
    *,
    channels_last: bool = False,
) -> ResidentImages | StreamedImages:
    """Keep the set on the device if it takes at most half of the free memory, else stream it; print which."""
    free = free_bytes(ranks.device)
    resident = data.size_bytes <= free * RESIDENT_SHARE
    if ranks.first:
        how = "kept on" if resident else "streamed to"
        sizes = f"{data.size_bytes / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB free"
        print(f"data: {len(data)} images {how} {ranks.device} ({sizes})", flush=True)
    source = ResidentImages if resident else StreamedImages
    return source(data, normalise, batch, ranks, seed, augment, channels_last=channels_last)
