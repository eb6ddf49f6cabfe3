"""Give the target its standard streams: pipes or pseudo-terminals, and the caller's input."""

import os
import selectors
import stat
import struct
import subprocess
from contextlib import suppress
from typing import Callable, List, Optional, Set, Tuple

from seatrial.common.agent_plan import AgentPlan, Terminal
from seatrial.frames import InputDecoder, NotOursError

#: The byte that ends a terminal's input, Ctrl-D.
END_OF_INPUT = b"\x04"

_CHUNK_BYTES = 32 * 1024


class Standard:
    """Both ends of the target's streams.

    ``theirs``: stdin, stdout and stderr, as subprocess.Popen takes them. ``stdin``, ``stdout``, ``stderr``: our ends;
    None where the target has the agent's own. ``terminals``: descriptors whose window size is the target's.
    ``controlled``: its stdin is the terminal that controls its session.
    """

    def __init__(self) -> None:
        self.theirs: List[Optional[int]] = [None, None, None]
        self.stdin: Optional[int] = None
        self.stdout: Optional[int] = None
        self.stderr: Optional[int] = None
        self.terminals: List[int] = []
        self.controlled = False

    def close_theirs(self) -> None:
        """Close the target's ends here: it has its own copies, so that its last one closed is the end."""
        for descriptor in {end for end in self.theirs if end is not None and end >= 0}:
            os.close(descriptor)

    def resize(self, lines: int, columns: int) -> None:
        """Set the terminals to the size of the caller's window, which sends SIGWINCH to who controls one."""
        for descriptor in self.terminals:
            _resize(descriptor, lines, columns)


def open_streams(plan: AgentPlan, note: Callable[[str], None]) -> Standard:
    """Return the streams that the plan requests; without a terminal in the system, pipes and a note. Raises OSError."""
    standard = Standard()
    if plan.interactive:
        return standard
    if (terminal := plan.terminal) is not None:
        try:
            _open_terminals(standard, terminal)
        except (OSError, ImportError) as error:
            note("no terminal for the target: %s" % error)
    if standard.theirs[0] is None:
        if plan.input is None or (terminal is not None and 0 in terminal.streams):
            standard.theirs[0] = subprocess.DEVNULL
        else:
            standard.theirs[0], standard.stdin = os.pipe()
    if standard.stdout is None:
        standard.stdout, standard.theirs[1] = os.pipe()
    if standard.stderr is None:
        standard.stderr, standard.theirs[2] = os.pipe()
    for ours in (standard.stdin, standard.stdout, standard.stderr):
        if ours is not None:
            os.set_blocking(ours, False)  # a grandchild that keeps the other end open cannot hold us
    return standard


def _open_terminals(standard: Standard, terminal: Terminal) -> None:
    opened = {stream: _open_terminal(terminal) for stream in (1, 2) if stream in terminal.streams}  # all, or none
    standard.terminals += [ours for ours, _ in opened.values()]
    if 1 in opened:
        standard.stdout, standard.theirs[1] = opened[1]
        if 0 in terminal.streams:
            standard.stdin, standard.theirs[0] = os.dup(opened[1][0]), opened[1][1]
            standard.controlled = True
    if 2 in opened:
        standard.stderr, standard.theirs[2] = opened[2]


def _open_terminal(terminal: Terminal) -> Tuple[int, int]:
    """Open a new pseudo-terminal and return (our end, theirs)."""
    import termios  # a Python that has none still runs what needs no terminal

    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    _resize(ours, terminal.lines, terminal.columns)
    return ours, theirs


def _resize(descriptor: int, lines: int, columns: int) -> None:
    import fcntl
    import termios

    with suppress(OSError):  # it has gone
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


class Input:
    """Feeds the target's stdin. Reads no more while the target has not taken what came before.

    ``streams``: with the stdin to write to; without one, only sizes are passed on. Raises OSError without the pipe.
    """

    def __init__(
        self, path: str, streams: Standard, selector: selectors.BaseSelector, note: Callable[[str], None]
    ) -> None:
        self._streams, self._selector, self._note = streams, selector, note
        self._decoder = InputDecoder()
        self._waiting = b""
        self._ending = False
        # Non-blocking, it opens before anybody writes; and a pipe without a writer yet is not at its end (poll(2)).
        self._source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._watched: Set[int] = set()
        if not stat.S_ISFIFO(os.fstat(self._source).st_mode):
            os.close(self._source)
            raise OSError("%s is not a named pipe" % path)
        self._watch(self._source, selectors.EVENT_READ, True)

    def serve(self, descriptor: int) -> None:
        """Serve one of our descriptors that the selector found ready."""
        if descriptor in self._watched:
            (self._read if descriptor == self._source else self._write)()

    def close(self) -> None:
        """Stop passing stdin on, as the target has ended or takes no more. Closing twice is fine."""
        if self._source < 0:
            return
        self._watch(self._source, selectors.EVENT_READ, False)
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
        """Write the waiting input, as far as the target takes it now."""
        if (stdin := self._streams.stdin) is None:
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
        self._watch(self._source, selectors.EVENT_READ, not self._waiting)
        self._watch(stdin, selectors.EVENT_WRITE, bool(self._waiting))

    def _end_stdin(self) -> None:
        stdin = self._streams.stdin
        self._watch(stdin, selectors.EVENT_WRITE, False)
        if stdin is None:
            return
        if self._streams.controlled:
            with suppress(OSError):  # nobody has it open any more
                os.write(stdin, END_OF_INPUT)
        os.close(stdin)
        self._streams.stdin = None

    def _watch(self, descriptor: Optional[int], event: int, wanted: bool) -> None:
        if descriptor is not None and wanted and descriptor not in self._watched:
            self._selector.register(descriptor, event, self)
            self._watched.add(descriptor)
        elif descriptor is not None and descriptor in self._watched and not wanted:
            self._selector.unregister(descriptor)
            self._watched.discard(descriptor)
