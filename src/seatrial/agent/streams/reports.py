"""The target's reports: what it appends to $SEATRIAL_EVENTS, read as it grows and passed on to the journal."""

from seatrial.agent.activity import Activity
from seatrial.agent.streams.journal import Journal
from seatrial.events import Lines

#: Read in one go, at most: a script that reports faster than this must not keep the agent from its samples.
_AT_ONCE_BYTES = 16 << 20

#: At the end all is read, up to here.
_AT_END_BYTES = 256 << 20

#: Passed on of one target, in lines. A million takes its reader a minute; a script that writes "{}" for ever could keep
#: one busy for days after its own end.
_MOST_LINES = 1_000_000


class Reports:
    """Call ``read`` now and then, and ``finish`` when the target has ended.

    Args:
        path: of the file. What is in it when the agent starts has been passed on by an agent before, or is nobody's.
    """

    def __init__(self, path: str, journal: Journal, activity: Activity) -> None:
        self._journal, self._activity = journal, activity
        self._complained = False
        self._count = 0
        self._lines = Lines(path, self._complain)
        self._lines.skip_to_last(0)

    def read(self, most_bytes: int = _AT_ONCE_BYTES) -> None:
        """Pass on the lines that are complete."""
        try:
            for line in self._lines.new(most_bytes):
                self._pass_on(line)
        except OSError:  # the file system failed; what was read counts
            pass

    def finish(self) -> None:
        """Pass on what is left, an unfinished last line included."""
        self.read(_AT_END_BYTES)
        try:
            self._pass_on(self._lines.rest())
        except OSError:
            pass

    def _pass_on(self, line: bytes) -> None:
        if not line.strip():
            return
        self._activity.happened()
        self._count += 1
        if self._count <= _MOST_LINES:
            self._journal.report(line)
        elif self._count == _MOST_LINES + 1:
            self._journal.note("lines in $SEATRIAL_EVENTS beyond the first %d are ignored" % _MOST_LINES)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._journal.note("reports in $SEATRIAL_EVENTS are not read: %s" % error.strerror)
