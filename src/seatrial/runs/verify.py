"""Is a run's evidence as it was written? The chain of its lines, and the digests that closed it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.events import follow_chain
from seatrial.receipt.store import JSON_NAME, load
from seatrial.runs.run import Run


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        intact: everything is as it was written.
        sentences: what holds, or where it breaks.
    """

    intact: bool
    sentences: tuple[str, ...]


def verify(run: Run) -> Verdict:
    """Follow the chain, compare it with what the receipt was made on, and the receipt with what was closed.

    Raises UsageError: the run has no record, or its evidence is not chained.
    """
    if not run.recorded:
        raise UsageError(
            f"Run {run.id} predates seatrial's own records: it cannot be verified",
            run=f"seatrial runs show {run.id}",
        )
    summary = run.summary()
    receipt = run.folder / JSON_NAME
    if summary is not None and _digest(receipt) != summary.get("receipt"):
        return _broken(f"{receipt} {'was changed after it was written' if receipt.exists() else 'is missing'}")
    seal = load(run.folder).seal if summary is not None else None
    try:
        chain = follow_chain(str(run.events_path))
    except FileNotFoundError:
        if seal is not None and seal.lines:
            return _broken(f"{run.events_path} is missing; it had {seal.lines} lines")
        raise UsageError(
            f"Run {run.id} has no evidence: it never started", run=f"seatrial runs show {run.id}"
        ) from None
    if chain.broken_at is not None:
        return _broken(f"line {chain.broken_at} of {run.events_path} was changed after it was written")
    if summary is None:
        return Verdict(True, (f"intact so far: {chain.lines} lines, digest {chain.digest}; the run has not ended",))
    if seal is None or seal.digest != chain.digest:
        closed = f"{seal.lines} lines, digest {seal.digest}" if seal else "nothing"
        return _broken(f"the receipt covers {closed}, but there are {chain.lines} lines, digest {chain.digest}")
    return Verdict(True, (f"intact: {chain.lines} lines, digest {chain.digest}",))


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _broken(sentence: str) -> Verdict:
    return Verdict(False, (f"broken: {sentence}",))
