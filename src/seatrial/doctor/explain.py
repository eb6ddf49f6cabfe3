"""Find the catalogue's entries for an error text, a log, a receipt, or the ID of a finding."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from seatrial.diagnosis import MEANING
from seatrial.errors import DiskError, UsageError, fallback, os_errors
from seatrial.findings.catalogue import LAYERS, OF_A_BUILD, Known, by_id, entries, plain, without_consequences
from seatrial.findings.finding import SEVERITIES, Finding
from seatrial.findings.match import Matches, match_text, one_byte_letters
from seatrial.system.command import json_object

#: A longer line is read in pieces, so that memory stays bounded. Symptoms are below 150 characters.
MAX_LINE_BYTES = 1 << 16
#: Entries that name the part that failed, and no cause.
PARTS = ("cuda-error", "nccl-error", "nccl-system-error", "toolkit-failed")
#: Entries used only where no other fits.
GENERAL = (*PARTS, "k8s-image-pull", "k8s-volume")
#: Lines that may be one that was broken.
BROKEN_LINES = 3
#: Lines at the beginning of a text that are tried three at a time where no line by itself shows a failure.
MOST_LINES = 40
#: A log of this size may be a line that somebody cut off; a larger one is read to its end without being kept.
MAX_PASTED_BYTES = 1 << 14
#: Layers of causes in a build's log; its other entries are consequences.
_OF_BUILDS = ("build", "registry", "disk")
#: Characters of a symptom that are enough if a single entry has them; as many that may fit several, and how many.
MIN_PART, MIN_LONG_PART, MOST_FITTING = 12, 22, 3
#: Failures that are listed where a few words stand in the messages of each.
MOST_LISTED = 5
#: Prefix of loggers: a date, a time, or both.
_TIMESTAMP = re.compile(r"^\s*[\[(]?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d\S*\s+")
#: A receipt has some kilobytes; a file above this is read as a log, line by line.
_MOST_RECEIPT_BYTES = 4 << 20
#: Files to explain in the folder of a run; the first that is there counts.
_IN_A_RUN = ("receipt.json", "stderr.log", "stdout.log")


def explain_text(text: str) -> list[Finding]:
    """Return known failures in a copied text, the entry of an ID, or the meaning of a receipt's "bound by"."""
    with suppress(KeyError):
        return [by_id(text.strip()).finding()]
    if (meaning := {**MEANING}.get(cause := text.strip())) is not None:  # not a failure, so it has no entry
        why = "A receipt lists the measurements and what would help, with the largest possible gain"
        fix = "seatrial runs show last   # under Diagnosis; seatrial tune measures the gain of a change"
        return [Finding(cause, "warning", f"{cause}: {meaning}", why, fix)]
    return explain_stream(io.BytesIO(text.encode("utf-8", "replace")))


def explain_stream(stream: BinaryIO) -> list[Finding]:
    """Return known failures in a log of any size and encoding, whole or pasted."""
    matches, kept = Matches(LAYERS), bytearray()
    for number, line in _bounded_lines(stream):
        matches.add(number, line)
        if len(kept) <= MAX_PASTED_BYTES:
            kept += line + b"\n"
    pasted = len(kept) <= MAX_PASTED_BYTES
    return _causes(_as_pasted(matches.findings, kept.decode("utf-8", "replace")) if pasted else matches.findings)


def _as_pasted(found: list[Finding], text: str) -> list[Finding]:
    """Return the failures of a short text, whose lines may have been one: a terminal breaks a line of an error."""
    lines = [_TIMESTAMP.sub("", line).strip() for line in text.splitlines()]
    general = [finding for finding in found if finding.id in GENERAL]
    if found != general and not (general and len(lines) <= BROKEN_LINES):
        return found
    starts = range(max(1, min(len(lines), MOST_LINES) - BROKEN_LINES + 1))
    broken = match_text("\n".join(" ".join(lines[at : at + BROKEN_LINES]) for at in starts), LAYERS)
    specific = [finding for finding in broken or found if finding.id not in GENERAL]
    alone = match_text(f"⟨{(words := ' '.join(text.split()).strip('.,:;! '))}⟩", LAYERS)
    for finding in alone:
        finding.evidence[:] = [f"line 1: {words}"]
    return specific or found or alone or _within(text) or broken


def _causes(found: list[Finding]) -> list[Finding]:
    """Return the findings without consequences of others; harmless ones last."""
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
    """Replace a module missing while pip builds: installing it does not help, as pip builds in isolation."""
    if finding.id != "python-module-missing":
        return finding
    module = re.search(r"No module named '([^']+)'", " ".join(finding.evidence))
    return by_id("build-module-missing").finding(finding.evidence, values={"module": module[1] if module else ""})


def _within(text: str) -> list[Finding]:
    """Return the failures that have these copied words in a symptom, if one or a few do."""
    part, shown = _with_words(text)
    most = 1 if len(part) < MIN_LONG_PART else MOST_FITTING
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
    return part, [entry for entry in entries() if any(part in plain(symptom) for symptom in entry.symptoms)]


def _bounded_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers. Text that a progress bar has overwritten is a line, too."""
    number, beginning = 1, b""
    while piece := stream.readline(MAX_LINE_BYTES):
        beginning = beginning or piece[:2]
        yield from ((number, line) for line in one_byte_letters(piece, beginning).splitlines())
        number += piece.endswith(b"\n")


@fallback((), on=KeyError)
def sources(id: str) -> tuple[str, ...]:
    """Return an entry's sources; () for an ID of another release, which a receipt may have."""
    return by_id(id).sources


def named_file(words: list[str]) -> Path | None:
    """Return the file or folder that a single argument names; None if it is not there."""
    if len(words) != 1 or len(words[0]) > 4096:
        return None
    with suppress(OSError, ValueError):  # a name that no file can have
        return Path(words[0]) if Path(words[0]).exists() else None
    return None


def explain_file(path: Path) -> tuple[list[Finding], bool]:
    """Return the findings of a receipt or log, and True if its run ended well. Raises UsageError without either."""
    if path.is_dir():
        files = (path / name for name in _IN_A_RUN if (path / name).is_file() and not (path / name).is_symlink())
        inside = next((each for each in files if each.suffix != ".json" or _is_small(each)), None)
        if inside is None:
            raise UsageError(f"{path} is a folder without a receipt or a log of a run", run=f"ls {path}")
        found, ended_well = explain_file(inside)
        return found or (explain_file(path / "stderr.log")[0] if (path / "stderr.log").is_file() else []), ended_well
    if path.is_char_device() or path.is_block_device() or path.is_socket():
        raise UsageError(f"{path} is a device, not a log", run="seatrial explain train.log")
    with os_errors(DiskError, f"{path} cannot be read", f"ls -l {path}"):
        if path.is_file() and _is_small(path) and (receipt := _receipt(path.read_bytes())) is not None:
            return receipt
        with path.open("rb") as log:
            return explain_stream(log), False


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= _MOST_RECEIPT_BYTES


def _receipt(data: bytes) -> tuple[list[Finding], bool] | None:
    """Return the findings in a receipt, and True if it has the exit code 0; None for other data."""
    content = json_object(data)
    if not isinstance(listed := content.get("findings"), list):
        return None
    found = []
    for row in listed:
        if not isinstance(row, dict) or row.get("severity") not in SEVERITIES:
            continue
        message, cause, fix = (str(row[name]) if row.get(name) else None for name in ("message", "cause", "fix"))
        evidence = [str(line) for line in row["evidence"]] if isinstance(row.get("evidence"), list) else []
        found.append(Finding(str(row.get("id")), row["severity"], message or "", cause, fix, evidence))
    return found, content.get("exit_code") == 0
