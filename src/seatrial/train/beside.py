"""Work on a second stream of the GPU, beside what the first one does, for steps of one process alone.

A step whose kernels wait for one another leaves multiprocessors idle: at the end of each product of matrices, and where
one moves bytes the arithmetic. In a graph, kernels of the first stream go before those of the second (engine.Graphed).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Beside:
    """A second stream; where it is off (a CPU, several ranks), what would go there is done at once."""

    def __init__(self, device: torch.device, *, on: bool = True) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and on else None  # type: ignore[no-untyped-call]
        self._begun: list[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = []

    @property
    def on(self) -> bool:
        """Whether there is a second stream."""
        return self._stream is not None

    @contextmanager
    def running(self, *used: Tensor) -> Iterator[None]:
        """What is queued within runs after all that was queued before, beside what follows.

        Args:
            used: tensors that must live until it has run.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._begun.append((self.event(), used))

    def event(self) -> torch.cuda.Event:
        """What says that all of the second stream so far is done."""
        assert self._stream is not None
        event: torch.cuda.Event = self._stream.record_event()
        return event

    def wait(self, but: int = 0) -> None:
        """The first stream waits for all that was begun but the last so many."""
        ended = len(self._begun) - but
        if ended > 0:
            self._begun[ended - 1][0].wait()
            del self._begun[:ended]

    def forget(self) -> None:
        """What was begun was part of a step that failed: its memory is given up when it has run, a capture can end."""
        if self._begun and self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._begun = []
