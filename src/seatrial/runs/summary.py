"""summary.json: the keys of listings, so that thousands of receipts need not be parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The end of a run. Its file is written last: a run that has one has ended.

    Attributes:
        outcome: the exit cause in words. headline: of its receipt, in a few words; None in older ones, as ``level``.
        engine: its address, as its client reaches it.
        metrics: last value of each metric by name. percent: names of those in percent.
        receipt: digest of receipt.json. sealed: seal.json has one of every file.
    """

    exit_code: int
    target: str = "?"
    backend: str = "?"
    gpus: int | None = None
    outcome: str = ""
    id: str | None = None
    name: str | None = None
    engine: str | None = None
    cause: str | None = None
    headline: str | None = None
    level: str | None = None
    seconds: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    percent: tuple[str, ...] = ()
    receipt: str | None = None
    sealed: bool = False

    @property
    def last(self) -> Mapping[str, Any]:
        """Return the last value of each metric; an older summary has only loss and accuracy."""
        return self.metrics or {"loss": self.loss, "accuracy": self.accuracy}
