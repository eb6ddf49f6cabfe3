"""A run's output, read back in the order it was written.

The agent keeps stdout and stderr apart and complete in two files, and notes every chunk in ``output.idx`` as
``<unix time> <1|2> <bytes>``: following the index interleaves both exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from seatrial.events import Lines
from seatrial.system.nofollow import open_regular

Stream = Literal["stdout", "stderr"]

_STREAMS: dict[bytes, Stream] = {b"1": "stdout", b"2": "stderr"}

#: One read of a log; a run may have printed gigabytes.
_CHUNK_BYTES = 1 << 20


class OutputReader:
    """Reads what is new since the last call; safe beside a live writer.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = Lines(str(folder / "output.idx"))
        self._offsets: dict[Stream, int] = {"stdout": 0, "stderr": 0}

    def new(self) -> Iterator[tuple[Stream, bytes]]:
        """(stream, bytes) in the order they were printed; ends when there is no more for now."""
        for stream, count, _ in self._new_chunks():
            yield from self._take(stream, count)

    def rest(self) -> Iterator[tuple[Stream, bytes]]:
        """What the logs hold beyond the index: an agent that was killed, or a full disk, leaves the index short."""
        for stream in self._offsets:
            yield from self._take(stream, None)

    def skip_to_last(self, chunks: int) -> None:
        """Go on from the last ``chunks`` chunks; the agent writes about one a line."""
        every = list(self._new_chunks())
        kept = every[-chunks:] if chunks > 0 else []
        for stream, count, _ in every[: len(every) - len(kept)]:
            self._offsets[stream] += count
        if kept:
            self._index.offset = kept[0][2]

    def _new_chunks(self) -> Iterator[tuple[Stream, int, int]]:
        """(stream, bytes, where its line begins in the index)."""
        begin = self._index.offset
        for line in self._index.new():
            fields = line.split()
            if len(fields) == 3 and fields[1] in _STREAMS and fields[2].isdigit():
                yield _STREAMS[fields[1]], int(fields[2]), begin
            begin = self._index.offset

    def _take(self, stream: Stream, count: int | None) -> Iterator[tuple[Stream, bytes]]:
        try:
            with open_regular(self._folder / f"{stream}.log") as file:
                file.seek(self._offsets[stream])
                while count is None or count > 0:
                    data = file.read(_CHUNK_BYTES if count is None else min(count, _CHUNK_BYTES))
                    if not data:
                        return
                    self._offsets[stream] += len(data)
                    if count is not None:
                        count -= len(data)
                    yield stream, data
        except FileNotFoundError:
            return


class OfRank:
    """Passes on only the lines of one rank, which begin with ``[rank1]: `` where a run has several nodes."""

    def __init__(self, rank: int, write: Callable[[Stream, bytes], None]) -> None:
        self._mark, self._write = b"[rank%d]: " % rank, write
        self._unfinished: dict[Stream, bytes] = {}

    def __call__(self, stream: Stream, data: bytes) -> None:
        *whole, self._unfinished[stream] = (self._unfinished.get(stream, b"") + data).split(b"\n")
        for line in whole:
            if line.startswith(self._mark):
                self._write(stream, line + b"\n")
