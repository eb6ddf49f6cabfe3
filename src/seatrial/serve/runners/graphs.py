"""Run a model on batches: on a GPU each batch size is captured in a CUDA graph once and replayed, elsewhere eagerly.

Shapes: N rows of a request's batch, B rows of a captured batch, B ≥ N; the rows beyond N hold earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.serve.errors import DeviceLostError, ServeError
from seatrial.train.errors import first_line

#: A forward pass: a tensor [B, …] for each input → one for each output.
Forward = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
#: Runs before a capture: cuDNN and cuBLAS choose kernels and take their workspaces.
WARM_UP_RUNS = 2


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Return 1, 2, 4, 8 … and ``max_batch``: at most half of a batch is unused."""
    powers = [1 << bit for bit in range(max_batch.bit_length()) if 1 << bit < max_batch]
    return (*powers, max_batch)


class EagerRunner:
    """Run batches of any size; for a CPU, and for programs that cannot be captured."""

    captured: tuple[int, ...] = ()

    def __init__(self, forward: Forward, device: torch.device) -> None:
        self._forward, self._device = forward, device

    def prepare(self) -> None:
        """Prepare nothing, since nothing is captured."""

    def __call__(self, columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Compute [N, …] of each output from rows of each input. Raises DeviceLostError."""
        inputs = tuple(torch.from_numpy(np.stack(column)).to(self._device) for column in columns)
        with torch.inference_mode(), watched(self._device):
            return [output.cpu().numpy() for output in self._forward(inputs)]


class GraphedRunner:
    """Replay a graph for each of ``batch_sizes``, with buffers that all share; or for the only size."""

    def __init__(
        self,
        forward: Forward,
        rows: Sequence[tuple[tuple[int, ...], torch.dtype]],
        max_batch: int,
        device: torch.device,
        *,
        only: int | None = None,
    ) -> None:
        self._forward, self._device = forward, device
        self.captured = (only,) if only else batch_sizes(max_batch)
        shapes = [((max_batch, *shape), dtype) for shape, dtype in rows]
        self._pinned = [torch.zeros(shape, dtype=dtype, pin_memory=True) for shape, dtype in shapes]
        self._arrays = [tensor.numpy() for tensor in self._pinned]
        self._inputs = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes]
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self._answers: list[Tensor] = []

    def prepare(self) -> None:
        """Capture, the largest first: the others fit into its memory."""
        pool: Any = None
        with torch.inference_mode(), watched(self._device):
            for size in reversed(self.captured):
                inputs = tuple(tensor[:size] for tensor in self._inputs)
                graph, outputs = capture(lambda inputs=inputs: self._forward(inputs), pool)  # type: ignore[misc]
                pool = pool or graph.pool()
                self._graphs[size] = graph, list(outputs)
                if not self._answers:
                    self._answers = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in outputs]
            torch.cuda.synchronize(self._device)

    def __call__(self, columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Compute [N, …] of each output from rows of each input. Raises DeviceLostError."""
        count = len(columns[0])
        size = next(size for size in self.captured if size >= count)
        for array, column in zip(self._arrays, columns, strict=True):
            np.stack(column, out=array[:count])
        graph, outputs = self._graphs[size]
        with torch.inference_mode(), watched(self._device):
            for pinned, tensor in zip(self._pinned, self._inputs, strict=True):
                tensor[:count].copy_(pinned[:count], non_blocking=True)
            graph.replay()
            for answer, output in zip(self._answers, outputs, strict=True):
                answer[:count].copy_(output[:count], non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        return [answer[:count].numpy().copy() for answer in self._answers]


def capture(run: Callable[[], tuple[Tensor, ...]], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
    """Capture ``run``'s kernels; return the graph, and the tensors that each replay fills."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # thread_local: another thread of the server (NVML, metrics) must not end the capture.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        outputs = run()
    return graph, outputs


class watched:
    """Check after a CUDA error in this block if the device is lost: then nothing works on it until the process ends.

    Raises DeviceLostError, and ServeError when there is too little memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            message = "the GPU has too little free memory for the model"
            raise ServeError(message, fix="--max-batch 8, or a larger GPU") from error
        if self._device.type == "cuda" and isinstance(error, RuntimeError) and lost(self._device):
            raise DeviceLostError(f"the GPU no longer computes: {first_line(error)}") from error


def lost(device: torch.device) -> bool:
    """Return True if the device fails even to synchronise, as after an illegal access or off the bus."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
