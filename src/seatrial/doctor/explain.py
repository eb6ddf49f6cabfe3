"""An error text, a log, or the ID of a finding → what the catalogue knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.findings.match import match_lines, match_text

#: A line longer than this is read in pieces: memory stays bounded whatever comes. Symptoms are below 150 characters.
MAX_LINE_BYTES = 1 << 16

#: Entries that say which part failed and not why.
GENERAL = ("cuda-error", "nccl-error")


def explain_text(text: str) -> list[Finding]:
    """Known failures in a text as somebody copied it, or the entry of an ID."""
    word = text.strip()
    try:
        entry = by_id(word)
    except KeyError:
        found = match_text(text)
        if any(finding.id not in GENERAL for finding in found):
            return found
        # A terminal may have broken the line where it pleased: what is one line of an error stands in two.
        return match_text(" ".join(text.split())) or found
    return [Finding(entry.id, entry.severity, entry.title, entry.cause, entry.fix)]


def explain_stream(stream: BinaryIO) -> list[Finding]:
    """Known failures in a log of any size and encoding."""
    return match_lines(_bounded_lines(stream))


def _bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES):
        yield line


def sources(id: str) -> tuple[str, ...]:
    return by_id(id).sources
