"""The caller's input on its way to the target: read from a named pipe, written to the target's stdin as it takes it."""

import os
import selectors
import stat
from typing import Callable

from seatrial.agent.process.standard import END_OF_INPUT, Standard
from seatrial.input_frames import Decoder, NotOursError

_CHUNK_BYTES = 32 * 1024


class Input:
    """Feeds the target's stdin. Reads no more while the target has not taken what came before.

    Args:
        path: of the pipe. streams: whose stdin there is to write to, or none: then only sizes are passed on.

    Raises OSError: the pipe is not there, or no pipe.
    """

    def __init__(
        self, path: str, streams: Standard, selector: selectors.BaseSelector, note: Callable[[str], None]
    ) -> None:
        self._streams, self._selector, self._note = streams, selector, note
        self._decoder = Decoder()
        self._waiting = b""
        self._ending = False
        # Non-blocking, it opens before anybody writes; and a pipe without a writer yet is not at its end (poll(2)).
        self._source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._reads, self._writes = False, False
        if not stat.S_ISFIFO(os.fstat(self._source).st_mode):
            os.close(self._source)
            raise OSError("%s is not a named pipe" % path)
        self._wait_for_source(True)

    def serve(self, descriptor: int) -> None:
        """The selector told that this one of ours is ready."""
        if descriptor == self._source and self._reads:
            self._read()
        elif self._writes:
            self._write()

    def close(self) -> None:
        """The target has ended, or takes no more. Closing twice is fine."""
        if self._source < 0:
            return
        self._wait_for_source(False)
        self._end_stdin()
        os.close(self._source)  # from now on the caller's writes fail, so that it reads no more for us
        self._source = -1

    def _read(self) -> None:
        try:
            data = os.read(self._source, _CHUNK_BYTES)
            messages = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, NotOursError) as error:
            self._note("standard input is not passed on any more: %s" % error)
            self.close()
            return
        for message in messages:
            self._waiting += message.data
            if message.size is not None:
                self._streams.resize(*message.size)
        self._ending = not data
        self._write()

    def _write(self) -> None:
        """What is waiting, as far as the target takes it now."""
        stdin = self._streams.stdin
        if stdin is None:
            self._waiting = b""
        try:
            while self._waiting and stdin is not None:
                self._waiting = self._waiting[os.write(stdin, self._waiting) :]
        except BlockingIOError:
            pass
        except OSError:  # the target has closed its stdin
            self.close()
            return
        if self._ending and not self._waiting:
            self.close()
            return
        self._wait_for_source(not self._waiting)
        self._wait_for_stdin(bool(self._waiting))

    def _end_stdin(self) -> None:
        stdin = self._streams.stdin
        self._wait_for_stdin(False)
        if stdin is None:
            return
        if self._streams.controlled:
            try:
                os.write(stdin, END_OF_INPUT)
            except OSError:  # nobody has it open any more
                pass
        os.close(stdin)
        self._streams.stdin = None

    def _wait_for_source(self, wanted: bool) -> None:
        if wanted and not self._reads:
            self._selector.register(self._source, selectors.EVENT_READ, self)
        elif self._reads and not wanted:
            self._selector.unregister(self._source)
        self._reads = wanted

    def _wait_for_stdin(self, wanted: bool) -> None:
        stdin = self._streams.stdin
        if stdin is not None and wanted and not self._writes:
            self._selector.register(stdin, selectors.EVENT_WRITE, self)
        elif stdin is not None and self._writes and not wanted:
            self._selector.unregister(stdin)
        self._writes = wanted
