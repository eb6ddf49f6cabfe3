"""Checkpoints in the host's memory that wait for the process that writes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seatrial.train.memory import free_bytes
from seatrial.train.saving import arena
from seatrial.train.saving.atomic import write_file
from seatrial.train.saving.writer_process import WriterProcess

#: Memory that stays free for everything else, as a multiple of a checkpoint's.
FREE_BESIDE = 2


@dataclass(frozen=True)
class QueuedCheckpoint:
    """One whose tensors are in an arena; ``layout`` is what ``arena.fill`` gave."""

    global_step: int
    held: arena.Arena
    layout: Any
    best: bool


class HostQueue:
    """Hands checkpoints to the process, in order, from a thread; without the process it writes them itself.

    Args:
        write: (global step, (path) → None that writes the file, best).
        fail: called with the error of a write.
    """

    def __init__(
        self, keep: int, write: Callable[[int, Callable[[Path], object], bool], None], fail: Callable[[Exception], None]
    ) -> None:
        self._keep, self._write, self._fail = keep, write, fail
        self._waiting: list[QueuedCheckpoint] = []
        self._free: list[arena.Arena] = []
        self._made, self._closed = 0, False
        self._changed = threading.Condition()
        self._process: WriterProcess | None = WriterProcess()
        self._thread = threading.Thread(target=self._write_all, name="checkpoint-queue", daemon=True)
        self._thread.start()

    def room(self, size_bytes: int, most: int) -> arena.Arena:
        """Memory for a checkpoint: one of at most ``most`` that are made, or of one that is written; waits for it."""
        with self._changed:
            while True:
                fitting = [held for held in self._free if held.size_bytes == size_bytes]
                if fitting:
                    self._free.remove(fitting[0])
                    return fitting[0]
                for other in self._free:
                    other.close()
                self._made -= len(self._free)
                self._free.clear()
                free = free_bytes(torch.device("cpu"))
                if self._made == 0 or (self._made < most and free > (1 + FREE_BESIDE) * size_bytes):
                    self._made += 1
                    break
                if not self.drop(newer=1):  # the one that needs the memory
                    self._changed.wait()
        try:
            return arena.Arena(size_bytes)
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify_all()
            raise

    def give_back(self, held: arena.Arena) -> None:
        """Nothing in it is to be written any more."""
        with self._changed:
            self._free.append(held)
            self._changed.notify_all()

    def give(self, waiting: QueuedCheckpoint) -> None:
        """Have it written after those before it."""
        with self._changed:
            self._waiting.append(waiting)
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all are written; end thread and process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._process is not None:
            self._process.close()
        for held in self._free:
            held.close()

    def drop(self, newer: int) -> bool:
        """Leave out the oldest with ``keep`` behind it: once these are written it would be deleted. Not the best.

        Args:
            newer: those that are not given yet.
        """
        with self._changed:
            excess = len(self._waiting) + newer - self._keep
            for number, waiting in enumerate(self._waiting[: max(0, excess)]):
                if not waiting.best:
                    del self._waiting[number]
                    self._free.append(waiting.held)
                    self._changed.notify_all()
                    return True
        return False

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                waiting = self._waiting.pop(0)
            try:
                self._write(waiting.global_step, partial(self._to_disk, waiting), waiting.best)
            except Exception as error:  # noqa: BLE001  raised again on the caller's thread
                self._fail(error)
            self.give_back(waiting.held)

    def _to_disk(self, waiting: QueuedCheckpoint, path: Path) -> None:
        if self._process is not None:
            try:
                self._process.write(path, waiting.held, waiting.layout)
                return
            except ProcessLookupError:  # killed, for memory perhaps: then here
                self._process.close()
                self._process = None
        state = arena.read(waiting.held.memory, waiting.layout)
        write_file(path, lambda file: torch.save(state, file))
