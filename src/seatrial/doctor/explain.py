"""An error text, a log, or the ID of a finding → what the catalogue knows of it, whoever printed it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from seatrial.diagnosis.diagnosis import MEANING
from seatrial.findings.catalogue import LAYERS, OF_A_BUILD, by_id, entries, without_consequences
from seatrial.findings.finding import Finding
from seatrial.findings.known import Known, beginning, cut_behind_a_gap, ending, plain
from seatrial.findings.match import Matches, Seams, match_text, one_byte_letters

#: A line longer than this is read in pieces: memory stays bounded whatever comes. Symptoms are below 150 characters.
MAX_LINE_BYTES = 1 << 16

#: Entries that say which part failed and not why.
PARTS = ("cuda-error", "nccl-error", "nccl-system-error", "toolkit-failed")

#: Entries that are taken only where no other fits.
GENERAL = (*PARTS, "k8s-image-pull", "k8s-volume")

#: Lines that may be one that was broken.
BROKEN_LINES = 3

#: Lines at the beginning of a text that are tried three at a time where no line by itself shows a failure.
MOST_LINES = 40

#: A log of this size may be a line that somebody cut off; a larger one is read to its end without being kept.
MAX_PASTED_BYTES = 1 << 14

#: What a build shows beside its consequences.
_OF_BUILDS = ("build", "registry", "disk")

#: Characters of a symptom that a text cut off in its middle must still show.
MIN_CUT = 22

#: The same for a text that begins within a symptom: as many letters end many sentences.
MIN_TAIL = 28

#: Characters of a symptom that are enough if a single entry has them, or its beginning stands before them, and how many
#: entries may be meant by more.
MIN_PART, MOST_MEANT = 12, 3

#: Failures that are listed where a few words stand in the messages of each.
MOST_LISTED = 5

#: What loggers put before each line: a date, a time, both.
_TIMESTAMP = re.compile(r"^\s*[\[(]?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d\S*\s+")


def explain_text(text: str) -> list[Finding]:
    """Known failures in a text as somebody copied it, the entry of an ID, or what a receipt's "bound by" means."""
    try:
        return [by_id(text.strip()).finding()]
    except KeyError:
        pass
    if bound := [_bound(cause, meaning) for cause, meaning in MEANING.items() if cause == text.strip()]:
        return bound
    return explain_stream(io.BytesIO(text.encode("utf-8", "replace")))


def _bound(cause: str, meaning: str) -> Finding:
    """A cause of the diagnosis: no failure, so it has no entry."""
    return Finding(
        cause,
        "warning",
        f"{cause}: {meaning}",
        "A receipt says what was measured and what would help, with the most that it can bring",
        "seatrial runs show last   # under Diagnosis; what a change brings, seatrial tune measures",
    )


def explain_stream(stream: BinaryIO) -> list[Finding]:
    """Known failures in a log of any size and encoding, as a program wrote it or as somebody pasted it."""
    read = _Read()
    for number, line in _bounded_lines(stream):
        read.add(number, line)
    return _causes(read.findings())


class _Read:
    """What the lines of a log show, each by itself and where two meet; in a short one also in parts of a line."""

    def __init__(self) -> None:
        self._whole = Matches(LAYERS)
        self._broken = Matches(LAYERS)
        self._seams = Seams()
        self._begun = False
        self._kept = bytearray()

    def add(self, number: int, line: bytes) -> None:
        begun, self._begun = self._begun, self._whole.add(number, line)
        if seam := self._seams.before(line):
            self._broken.add_broken(number, *seam, begun=begun)
        if len(self._kept) <= MAX_PASTED_BYTES:
            self._kept += line + b"\n"

    def findings(self) -> list[Finding]:
        found = self._whole.findings
        lines = [_TIMESTAMP.sub("", line).strip() for line in self._text.splitlines()]
        is_one_line = len(lines) <= BROKEN_LINES and self._is_short
        general = [finding for finding in found if finding.id in GENERAL]
        if found and found != general and not (general and is_one_line):
            return found
        # A terminal may have broken the line where it pleased: what is one line of an error stands in several.
        broken = match_text(" ".join(lines), LAYERS) if is_one_line else []
        said = [finding for finding in (*self._broken.findings, *broken) if finding.id not in GENERAL]
        said = said or [finding for finding in found if finding.id not in GENERAL]
        if said or not self._is_short:
            return list({finding.id: finding for finding in said}.values()) or found
        lines = lines[:MOST_LINES]
        threes = (" ".join(lines[at : at + BROKEN_LINES]) for at in range(len(lines) - BROKEN_LINES + 1))
        wrapped = [finding for finding in match_text("\n".join(threes), LAYERS) if finding.id not in GENERAL]
        if wrapped:
            return wrapped
        return _cut_off(self._text, besides=found) or _within(self._text, besides=found) or broken or found

    @property
    def _is_short(self) -> bool:
        return len(self._kept) <= MAX_PASTED_BYTES

    @property
    def _text(self) -> str:
        return self._kept.decode("utf-8", "replace")


def _causes(found: list[Finding]) -> list[Finding]:
    """Without what follows from another of them, and what does no harm behind the rest."""
    if any(finding.id == "package-metadata-failed" for finding in found):
        found = [_hidden_from_build(finding) for finding in found]
    ids = {finding.id for finding in found}
    roots = {entry.id for entry in entries(_OF_BUILDS) if not entry.follows}.difference(OF_A_BUILD)
    if ids & roots:  # pip that reaches no index then finds no package there
        found = [finding for finding in found if finding.id not in OF_A_BUILD]
    found = without_consequences(found)
    if any(finding.severity != "info" for finding in found):
        found = [finding for finding in found if finding.id != "harmless-note"]
    return sorted(found, key=lambda finding: finding.severity == "info")


def _hidden_from_build(finding: Finding) -> Finding:
    """A module that is missing while pip builds a package: installing it does not help, as pip builds apart from it."""
    if finding.id != "python-module-missing":
        return finding
    module = re.search(r"No module named '([^']+)'", " ".join(finding.evidence))
    return by_id("build-module-missing").finding(finding.evidence, values={"module": module[1] if module else ""})


def _cut_off(text: str, besides: list[Finding]) -> list[Finding]:
    """The failure whose symptom the text ends in the middle of, or begins in; the one of which it shows most."""
    if any(finding.id not in PARTS for finding in besides):
        return []
    line = plain(" ".join(text.split()))
    shown = [(length, entry) for entry in entries() if (length := _shown_of(entry, line)) >= MIN_CUT]
    if not shown:
        return []
    most = max(length for length, _ in shown)
    meant = [entry for length, entry in shown if length == most]
    if len(meant) > MOST_MEANT:  # "No such file or directory", with which many begin
        return []
    return [meant[0].finding([f"part of a line: {line[-200:]}"])]


def _within(text: str, besides: list[Finding]) -> list[Finding]:
    """Failures of which somebody copied a few words: out of the middle of a symptom, of one or of few entries."""
    part, shown = _with_words("" if besides else text)
    most = 1 if len(part) < MIN_CUT else MOST_MEANT
    return [entry.finding([f"part of a line: {part[:200]}"]) for entry in shown] if len(shown) <= most else []


def candidates(text: str) -> list[Known]:
    """Return the few failures whose messages have these words, where they are too few to choose one."""
    _, shown = _with_words(text)
    return shown if len(shown) <= MOST_LISTED else []


def _with_words(text: str) -> tuple[str, list[Known]]:
    """Return the words, and the entries that have them in a symptom; none for a single short word."""
    part = plain(" ".join(text.split())).strip(" .,:;!'")
    if len(part) < MIN_PART or (" " not in part and "-" not in part):
        return part, []
    return part, [entry for entry in entries() if any(_has_words(plain(symptom), part) for symptom in entry.symptoms)]


def _has_words(symptom: str, part: str) -> bool:
    """Whether a symptom has these words side by side, the first and the last one whole."""
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", symptom) is not None


def _ends_with(line: str, part: str) -> bool:
    """Its first word whole: a "FileNotFoundError: " is no "error: "."""
    return line.endswith(part) and not line[: -len(part)][-1:].isalnum()


def _shown_of(entry: Known, line: str) -> int:
    """How many characters of a symptom the line ends within, or of its end the line begins with.

    A number is not cut: "exit code: 1" is another one than "exit code: 137".
    """
    most, line = 0, entry.without_healthy(line)
    for symptom in entry.symptoms:
        first, last = beginning(symptom), ending(symptom)
        cuts = (n for n in range(MIN_CUT, len(first) + 1) if not first[n - 1 : n + 1].isdigit() or n == len(first))
        most = max([most, *(n for n in cuts if _ends_with(line, first[:n]))])
        most = max([most, *(n for n in range(MIN_TAIL, len(last) + 1) if line.startswith(last[-n:]))])
        most = max(most, cut_behind_a_gap(symptom, line, MIN_PART))
    return most


def _bounded_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers. What a progress bar has drawn over is a line, too."""
    number, beginning = 1, b""
    while piece := stream.readline(MAX_LINE_BYTES):
        beginning = beginning or piece[:2]
        for line in one_byte_letters(piece, beginning).splitlines():
            yield number, line
        number += piece.endswith(b"\n")


def sources(id: str) -> tuple[str, ...]:
    """Of an entry; () for an ID of another release, which a receipt may have."""
    try:
        return by_id(id).sources
    except KeyError:
        return ()
