"""Events read back.

Lines come from other versions, and from targets: of no key but ``type`` and ``t`` is the type of its value known.
"""

import errno
import json
import sys
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Type

from seatrial.events.lines import Lines
from seatrial.events.schema import EVIDENCE_TYPES, REPORT_TYPES, Event, Step

#: A longer line of a report is no step; a script that reports a thousand numbers a line needs 30 KB.
MAX_REPORT_BYTES = 64 * 1024

#: A line whose values are nested deeper than this is no event: who writes it down again, or looks through it, would run
#: out of stack. Ours are 4 deep.
MAX_DEPTH = 64


def report(line: bytes) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """A line that the target wrote as the report that it is; and the type of evidence that it posed as, or None.

    It is a step whatever it claims to be, unless it is of another type that targets may report. Source, _seq and _chain
    are ours. (None, None) is no report.
    """
    if len(line) > MAX_REPORT_BYTES:
        return None, None
    event = parse(line)
    if event is None:
        return None, None
    claimed = event["type"] if event["type"] in EVIDENCE_TYPES else None
    if claimed is not None or event.get("source") in ("agent", "host"):
        return None, claimed or "step"
    for ours in ("_seq", "_chain", "node"):
        event.pop(ours, None)
    event.update(type=event["type"] if event["type"] in REPORT_TYPES else Step.type, source="target")
    return event, None


def read(path: str) -> Tuple[List[Dict[str, Any]], int]:
    """(events of the complete lines, lines that were none). A missing file and a link have none. Raises OSError."""
    return _parsed(Lines(path, _raise))


def tail(path: str, size: int) -> Tuple[List[Dict[str, Any]], int]:
    """The same of the last ``size`` bytes. The line cut in two at the beginning is no loss."""
    lines = Lines(path)
    lines.skip_to_last(size)
    return _parsed(lines, 2 * size)  # what is appended meanwhile included, within reason


def _raise(error: OSError) -> None:
    if error.errno != errno.ELOOP:
        raise error


def _parsed(lines: Lines, most_bytes: int = sys.maxsize) -> Tuple[List[Dict[str, Any]], int]:
    events, none = [], 0
    for line in lines.new(most_bytes):
        event = parse(line)
        if event is not None:
            events.append(event)
        elif line.strip():
            none += 1
    return events, none + lines.too_long


def parse(line: bytes) -> Optional[Dict[str, Any]]:
    """The event on one line, or None when it is no JSON object. A line without a type is a target's step."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deeper(event, MAX_DEPTH):
        return None
    if not isinstance(event.get("type"), str):
        event["type"] = Step.type
    if not isinstance(event.get("t"), (int, float)) or isinstance(event.get("t"), bool):
        event["t"] = None
    event.setdefault("source", "target")
    return event


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    return levels == 0 or any(
        _is_deeper(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value)
    )


def of_type(events: Iterable[Dict[str, Any]], kind: Type[Event]) -> Iterator[Dict[str, Any]]:
    """The events of one kind, in order."""
    return (event for event in events if event["type"] == kind.type)


def mark(kind: Type[Event]) -> bytes:
    """What every line of this kind has in it: who looks for a few among many lines need not parse them all."""
    return b'"type":"%s"' % kind.type.encode()
