"""Is a run's evidence as it was written? The chain of its lines, and the digests that closed it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from seatrial.errors import UsageError
from seatrial.events import follow_chain
from seatrial.receipt.write import JSON_NAME, load
from seatrial.runs.store import Run


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
            f"Run {run.id} was made before seatrial kept records of its own: nothing vouches for it",
            run=f"seatrial runs show {run.id}",
        )
    try:
        chain = follow_chain(str(run.events_path))
    except FileNotFoundError:
        raise UsageError(
            f"Run {run.id} has no evidence: it never started", run=f"seatrial runs show {run.id}"
        ) from None
    if chain.broken_at is not None:
        return Verdict(False, (f"broken: line {chain.broken_at} of {run.events_path} is not as it was written",))
    summary = run.summary()
    if summary is None:
        return Verdict(True, (f"intact so far: {chain.lines} lines, digest {chain.digest}; the run has not ended",))
    if hashlib.sha256((run.folder / JSON_NAME).read_bytes()).hexdigest() != summary.get("receipt"):
        return Verdict(False, (f"broken: {run.folder / JSON_NAME} is not as it was written",))
    seal = load(run.folder).seal
    if seal is None or seal.digest != chain.digest:
        closed = f"{seal.lines} lines, digest {seal.digest}" if seal else "nothing"
        there = f"{chain.lines} lines, digest {chain.digest}"
        return Verdict(False, (f"broken: the receipt was made on {closed}, and there are {there}",))
    return Verdict(True, (f"intact: {chain.lines} lines, digest {chain.digest}",))
