"""Finding: one thing that is wrong, why, and the command that fixes it. Shared by agent, receipts and doctor."""

from typing import Any, Dict, List, Optional

from seatrial.events import Found

SEVERITIES = ("error", "warning", "info")


class Finding:
    """One thing that is wrong.

    Attributes:
        id: stable kebab-case name of the catalogue entry, e.g. ``uvm-node-missing``.
        severity: ``error`` (the contract is broken), ``warning`` or ``info``.
        message: what was seen, in one sentence.
        cause: the likely cause, in one sentence.
        fix: the command (or change) that fixes it, as typed.
        evidence: the lines it rests on: what was read, and where.
    """

    __slots__ = ("cause", "evidence", "fix", "id", "message", "severity")

    def __init__(
        self,
        id: str,
        severity: str,
        message: str,
        cause: Optional[str] = None,
        fix: Optional[str] = None,
        evidence: Optional[List[str]] = None,
    ) -> None:
        if severity not in SEVERITIES:
            raise ValueError("severity must be one of %s, not %r" % (", ".join(SEVERITIES), severity))
        self.id = id
        self.severity = severity
        self.message = message
        self.cause = cause
        self.fix = fix
        self.evidence = list(evidence or [])

    def to_dict(self) -> Dict[str, Any]:
        """The finding as it is written to receipt.json."""
        return {name: getattr(self, name) for name in ("id", "severity", "message", "cause", "fix", "evidence")}

    def event(self) -> Found:
        """The finding as it is written to events.jsonl."""
        return Found(**self.to_dict())

    def __repr__(self) -> str:
        return "Finding(%r, %r, %r)" % (self.id, self.severity, self.message)
