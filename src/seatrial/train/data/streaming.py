"""Training batches from a set that stays on the host: a thread gathers them in pinned memory.

Shapes: N examples of the set, B rows of a batch, C channels, H and W pixels.
"""

from __future__ import annotations

import queue
import threading

import torch
from torch import Tensor

from seatrial.train.data.images import Augment, ImageSet, Normalisation, ResidentImages, shuffled
from seatrial.train.data.shards import Shape, deal
from seatrial.train.distributed import Ranks
from seatrial.train.memory import RESIDENT_SHARE, free_bytes

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
    """The set on the device when it takes at most half of the free memory, else streamed; says which."""
    free = free_bytes(ranks.device)
    resident = data.size_bytes <= free * RESIDENT_SHARE
    if ranks.first:
        how = "kept on" if resident else "streamed to"
        sizes = f"{data.size_bytes / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB free"
        print(f"data: {len(data)} images {how} {ranks.device} ({sizes})", flush=True)
    source = ResidentImages if resident else StreamedImages
    return source(data, normalise, batch, ranks, seed, augment, channels_last=channels_last)
