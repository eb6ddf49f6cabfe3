"""The agent's pen: evidence and the target's reports, numbered, to the engine's log or to a file of the agent's own.

In a container both leave as frames on stdout, which the target can reach only through the agent. Without one, or where
a person sits at the terminal, they go to a file (Plan.evidence_dir). A full disk costs the line, never the run.
"""

import json
import os
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Union

from seatrial import events, frames
from seatrial.agent.streams.log_stream import FramedOutput, LogStream
from seatrial.agent.streams.pass_through import PassThrough
from seatrial.agent.streams.redaction import Redactor

#: Kinds that a summary repeats: without them nobody knows what ran where. Signals tell why it ended.
_REPEATED = (
    events.AgentStarted,
    events.GpuCheck,
    events.GpuKernel,
    events.Found,
    events.TargetStarted,
    events.GpuContext,
    events.Signal,
)
_MOST_REPEATED = 64
_LONGEST_REPEATED = 8192

#: Refused reports are told one by one up to here, then only counted.
_TOLD_ONE_BY_ONE = 20


class Journal:
    """Writes events, from any thread. Losing some is said once, on the agent's own stderr.

    Args:
        folder: gets events.jsonl; None: frames on stdout.
        repeats: keeps what ``summary`` repeats.
    """

    def __init__(self, folder: Optional[str], repeats: bool = False) -> None:
        self._to_repeat: Optional[List[Dict[str, Any]]] = [] if repeats else None
        self._stream = LogStream() if folder is None else None
        self._log = None if folder is None else events.EvidenceLog(os.path.join(folder, "events.jsonl"), "agent")
        self._redactor = Redactor([])
        self._lock = threading.Lock()
        self._seq = 0
        self._complained = False
        self._refused: Dict[str, int] = {}

    def write(self, event: events.Event) -> None:
        """One event, or a complaint when it cannot be written."""
        keys = events.as_dict(event, "agent", events.now())
        with self._lock:
            self._seq += 1
            keys["_seq"] = self._seq
            line = self._redacted(events.encode(keys)[:-1])
            self._remember(event, line)
            if self._stream is not None:
                self._stream.send(frames.encode(frames.EVIDENCE, line), keep=True)
            else:
                self._append(events.parse(line))

    def _remember(self, event: events.Event, line: bytes) -> None:
        kept = self._to_repeat
        if kept is None or len(kept) >= _MOST_REPEATED or len(line) > _LONGEST_REPEATED:
            return
        parsed = events.parse(line) if isinstance(event, _REPEATED) else None
        if parsed is not None:
            kept.append(parsed)

    def summary(self, output_lines: List[int]) -> None:
        """What matters once more, where the beginning of the log may be cut: in a pod, before the agent's last line."""
        if self._to_repeat is not None:
            self.write(events.AgentSummary(events=self._to_repeat, output_lines=output_lines))

    def report(self, line: bytes) -> None:
        """A line that the target has written to $SEATRIAL_EVENTS. Whatever it says, it is a report or nothing."""
        step, claimed = (None, None)
        if self._log is not None or b'"type"' in line or b'"source"' in line or b"\\" in line:
            step, claimed = events.report(line)
        if claimed is not None:
            self._refuse(claimed)
            return
        with self._lock:
            if self._stream is not None:
                self._seq += 1
                line = b"%d %.4f %s" % (self._seq, time.time(), self._redacted(line[: events.MAX_REPORT_BYTES + 1]))
                self._stream.send(frames.encode(frames.REPORT, line), keep=True)
            else:
                step = step or events.as_dict(events.ReportUnreadable(), "agent", events.now())
                self._seq += 1
                step["_seq"] = self._seq
                if step["t"] is None:
                    step["t"] = events.now()
                self._append(events.parse(self._redacted(events.encode(step)[:-1])))

    def _refuse(self, claimed: str) -> None:
        self._refused[claimed] = self._refused.get(claimed, 0) + 1
        if sum(self._refused.values()) <= _TOLD_ONE_BY_ONE:
            self.write(events.ReportRefused(claims={claimed: 1}))

    def tell_refused(self) -> None:
        """How many reports posed as evidence beyond those told one by one. Call once, at the end."""
        if sum(self._refused.values()) > _TOLD_ONE_BY_ONE:
            self.write(events.ReportRefused(claims=dict(self._refused), total=True))

    def _append(self, event: Optional[Dict[str, Any]]) -> None:
        assert self._log is not None
        try:
            self._log.append([event] if event else [])
        except OSError as error:
            if not self._complained:
                self._complained = True
                say("events are being lost: %s: %s" % (self._log.path, error.strerror))

    def _redacted(self, line: bytes) -> bytes:
        return self._redactor.feed(line) + self._redactor.flush()

    def way_out(self, number: int) -> "Union[PassThrough, FramedOutput]":
        """Where the target's stdout (1) or stderr (2) is passed on to."""
        return PassThrough(number) if self._stream is None else FramedOutput(number, self._stream)

    def hide(self, secrets: "List[bytes]") -> None:
        """Cut these out of every event from now on, as they are and as JSON writes them."""
        escaped = [json.dumps(secret.decode("utf-8", "surrogateescape"))[1:-1].encode() for secret in secrets]
        self._redactor = Redactor([*secrets, *escaped])

    def flush(self, wait_s: float) -> None:
        """Wait for the log stream's reader."""
        if self._stream is not None:
            self._stream.flush(wait_s)

    def note(self, message: str) -> None:
        """A sentence for the receipt's timeline."""
        self.write(events.Note(message=message))


def say(message: str) -> None:
    """A line on the agent's own stderr, which engines keep. Nobody may be listening any more."""
    try:
        sys.stderr.write("seatrial: %s\n" % message)
        sys.stderr.flush()
    except OSError:
        pass
