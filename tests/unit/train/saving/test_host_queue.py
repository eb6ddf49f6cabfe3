"""What waits in the host's memory, and which of it is left out."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial.train.saving import arena  # noqa: E402
from seatrial.train.saving.host_queue import HostQueue, QueuedCheckpoint  # noqa: E402

pytestmark = pytest.mark.torch

SIZE_BYTES = 4096


class Disk:
    """Writes nothing before ``goes_on`` is set; then the steps in ``written``."""

    def __init__(self) -> None:
        self.goes_on, self.begun, self.written = threading.Event(), threading.Event(), list[int]()

    def write(self, global_step: int, to_disk: Callable[[Path], None], best: bool) -> None:
        self.begun.set()
        self.goes_on.wait(30)
        self.written.append(global_step)


def fail(error: Exception) -> None:
    raise error


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.goes_on.set()


def queue_of(disk: Disk, steps: range, bests: tuple[int, ...] = (), keep: int = 2) -> HostQueue:
    """With the first of the steps being written and the others behind it."""
    queue = HostQueue(keep, disk.write, fail)
    for step in steps:
        queue.give(QueuedCheckpoint(step, queue.room(SIZE_BYTES, len(steps)), None, step in bests))
        disk.begun.wait(30)
    return queue


def test_what_enough_newer_ones_stand_behind_is_left_out_oldest_first(disk: Disk) -> None:
    queue = queue_of(disk, range(1, 5))  # 2, 3 and 4 wait
    assert queue.drop(newer=1)  # 2
    assert not queue.drop(newer=0), "3 and 4 are the two to keep"
    assert queue.drop(newer=2) and queue.drop(newer=2)  # 3 and 4
    assert not queue.drop(newer=9), "nothing waits any more"
    disk.goes_on.set()
    queue.close()
    assert disk.written == [1]


def test_the_best_is_written_and_the_next_in_excess_is_left_out(disk: Disk) -> None:
    queue = queue_of(disk, range(1, 6), bests=(2, 3))  # 2 to 5 wait
    assert not queue.drop(newer=0), "in excess are the best two alone"
    assert queue.drop(newer=1)  # 4
    assert not queue.drop(newer=1)
    disk.goes_on.set()
    queue.close()
    assert disk.written == [1, 2, 3, 5]


def test_room_is_that_of_the_one_left_out(disk: Disk) -> None:
    queue = queue_of(disk, range(1, 5))
    given: list[arena.Arena] = []
    asks = threading.Thread(target=lambda: given.append(queue.room(SIZE_BYTES, 4)))
    asks.start()
    asks.join(30)
    assert given, "the thread that asks holds the lock, and waits for itself"
    queue.give(QueuedCheckpoint(5, given[0], None, False))
    disk.goes_on.set()
    queue.close()
    assert disk.written == [1, 3, 4, 5]


def test_who_waits_for_room_is_told_of_one_left_out(disk: Disk) -> None:
    queue = queue_of(disk, range(1, 3), keep=3)
    given: list[arena.Arena] = []
    asks = threading.Thread(target=lambda: given.append(queue.room(SIZE_BYTES, 2)))
    asks.start()
    time.sleep(0.1)
    assert not given, "there is one newer checkpoint, and three are kept"
    assert queue.drop(newer=3)
    asks.join(30)
    assert given
    disk.goes_on.set()
    queue.give(QueuedCheckpoint(3, given[0], None, False))
    queue.close()
    assert disk.written == [1, 3]


def test_memory_that_could_not_be_had_or_is_given_back_is_not_counted() -> None:
    queue = HostQueue(1, Disk().write, fail)
    with pytest.raises(OSError):
        queue.room(2**62, 1)  # more than a process can address
    held = queue.room(SIZE_BYTES, 1)
    queue.give_back(held)
    assert queue.room(SIZE_BYTES, 1) is held
    queue.close()
