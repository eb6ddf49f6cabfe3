"""Podman's log as it lies on this machine: complete lines of a file that only grows.

``podman logs`` of 4.3.1 is not enough while a container prints: with ``--follow`` it takes a line that is half written
for a whole one, and what it prints then is not what it prints later. In the file each line is
``<time> <stream> <F or P> <text>``, P for one that goes on. Source: conmon src/ctr_logging.c, write_k8s_log.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 256 * 1024

#: How often a file is looked at that has not grown, and a reader that takes nothing.
_LOOK_S = 0.1


class K8sFile:
    """What a container has printed on stdout, as one stream.

    Args:
        path: of the log.
        goes_on: whether the one who writes the log lives; None: read to the end as it is now.

    Attributes:
        stdout: read end of a pipe.

    Raises OSError: the file cannot be read.
    """

    def __init__(self, path: Path, goes_on: Callable[[], bool] | None) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.stdout, self._way_in = os.pipe()
        os.set_blocking(self._way_in, False)
        self._goes_on, self._stopping, self._whole = goes_on, threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="k8s-file", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> int:
        """Make it end if it has not; 0 where it had come to its end."""
        self._stopping.set()
        self._thread.join()
        return 0 if self._whole else -1

    def close(self) -> None:
        self.end()
        os.close(self.stdout)

    def _run(self) -> None:
        try:
            self._whole = self._pass_on_all()
        except OSError:  # a broken disk; or nobody reads any more
            pass
        finally:
            os.close(self._way_in)
            os.close(self._file)

    def _pass_on_all(self) -> bool:
        held, last_look = b"", self._goes_on is None
        while not self._stopping.is_set():
            data = os.read(self._file, _CHUNK_BYTES)
            if data:
                whole, newline, held = (held + data).rpartition(b"\n")
                self._write(b"".join(map(text_of, whole.split(b"\n"))) if newline else b"")
            elif last_look:
                return True
            elif self._goes_on is not None and not self._goes_on():
                last_look = True  # what was written before it ended is there by now
            else:
                self._stopping.wait(_LOOK_S)
        return False

    def _write(self, data: bytes) -> None:
        poll = select.poll()
        poll.register(self._way_in, select.POLLOUT)
        left = memoryview(data)
        while left and not self._stopping.is_set():
            if poll.poll(_LOOK_S * 1000):
                left = left[os.write(self._way_in, left[:65536]) :]


def text_of(line: bytes) -> bytes:
    """What a line of the file says of stdout; nothing where it is another stream's, or none that conmon writes."""
    fields = line.split(b" ", 3)
    if len(fields) < 3 or fields[1] != b"stdout" or fields[2] not in (b"F", b"P"):
        return b""
    return (fields[3] if len(fields) == 4 else b"") + (b"\n" if fields[2] == b"F" else b"")
