"""Why a training ends before its last epoch: no better validation loss for some epochs, or a SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from types import FrameType

from seatrial.train.command_line import RUN_DIR_VARIABLE


@dataclass
class EarlyStopping:
    """Remembers the best validation loss.

    Attributes:
        patience: tests without improvement after which to stop; None never stops.
        least_improvement: a loss counts as better when it is lower by more than this.
    """

    patience: int | None = None
    least_improvement: float = 0.0
    best: float = float("inf")
    waited: int = 0

    def better(self, loss: float) -> bool:
        """Take an epoch's validation loss; whether it is the best so far."""
        if loss < self.best - self.least_improvement:
            self.best, self.waited = loss, 0
            return True
        self.waited += 1
        return False

    @property
    def stop(self) -> bool:
        """Whether patience is at its end."""
        return self.patience is not None and self.waited >= self.patience


class StopRequest:
    """Remembers a SIGTERM, so that the loop ends at a step's end and saves. Use as a context manager.

    Within a run also the first SIGINT, which ``seatrial run`` sends on Ctrl-C; elsewhere that is a notebook's.
    Only the main thread of a process gets signals: in another one nothing is remembered.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGTERM, *([signal.SIGINT] if RUN_DIR_VARIABLE in os.environ else [])]
            self._previous = {number: signal.signal(number, self._remember) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested:
            raise KeyboardInterrupt
        self.requested = True
