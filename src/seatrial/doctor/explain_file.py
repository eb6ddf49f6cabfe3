"""What ``seatrial explain NAME`` reads: a log, a receipt.json, or the folder of a run."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from seatrial.doctor.explain import explain_stream
from seatrial.errors import DiskError, UsageError
from seatrial.findings.finding import SEVERITIES, Finding

#: A receipt has some kilobytes; a file above this is read as a log, line by line.
_MOST_RECEIPT_BYTES = 4 << 20

#: In the folder of a run, the first that is there.
_IN_A_RUN = ("receipt.json", "stderr.log", "stdout.log")

#: What looks like the name of a file: one word that ends like one, or has a folder in it.
_NAME = re.compile(r"\S*/\S*[^/.\s:,]|\S+\.(?:log|txt|json|jsonl|out|err)")


def named_file(words: list[str]) -> Path | None:
    """The file or folder that a single argument names, if it is there."""
    if len(words) != 1 or len(words[0]) > 4096:
        return None
    with suppress(OSError, ValueError):  # a name that no file can have
        return Path(words[0]) if Path(words[0]).exists() else None
    return None


def looks_like_a_file(words: list[str]) -> bool:
    """Whether a single argument can only be meant as a file's name."""
    return len(words) == 1 and _NAME.fullmatch(words[0]) is not None


def explain_file(path: Path) -> list[Finding]:
    """The findings of a receipt, or the known failures in a log. Raises UsageError for a folder without either."""
    if path.is_dir():
        inside = next((path / name for name in _IN_A_RUN if (path / name).is_file()), None)
        if inside is None:
            raise UsageError(f"{path} is a folder without a receipt or a log of a run", run=f"ls {path}")
        found = explain_file(inside)
        return found or (explain_file(path / "stderr.log") if (path / "stderr.log").is_file() else [])
    if path.is_char_device() or path.is_block_device() or path.is_socket():
        raise UsageError(f"{path} is a device, not a log", run="seatrial explain train.log")
    try:
        if path.is_file() and path.stat().st_size <= _MOST_RECEIPT_BYTES:
            receipt = _receipt(path.read_bytes())
            if receipt is not None:
                return receipt
        with path.open("rb") as log:
            return explain_stream(log)
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}", run=f"ls -l {path}") from error


def _receipt(data: bytes) -> list[Finding] | None:
    """The findings that a receipt holds; None for what is no receipt."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    listed = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        return None
    found = []
    for row in listed:
        if not isinstance(row, dict) or row.get("severity") not in SEVERITIES:
            continue
        texts = {name: str(row[name]) for name in ("message", "cause", "fix") if row.get(name)}
        evidence = row.get("evidence")
        found.append(
            Finding(
                str(row.get("id")),
                row["severity"],
                texts.get("message", ""),
                texts.get("cause"),
                texts.get("fix"),
                [str(line) for line in evidence] if isinstance(evidence, list) else [],
            )
        )
    return found
