"""The record of a tune: what is told after each trial, whole, so that the last line has everything."""

import json
import os
import time
from typing import Any, Dict, List, NamedTuple, Optional

from seatrial.agent.tune.judging import Rates
from seatrial.agent.tune.refusal import Refusal
from seatrial.agent.tune.trial import Trial
from seatrial.common.contract.tunables import in_words
from seatrial.events import EVENTS_VARIABLE

#: The key of the driver's lines in $SEATRIAL_EVENTS.
KEY = "tune"


def tell(key: str, value: Dict[str, Any]) -> None:
    """A report of this process. Nothing is raised: what is lost is told again with the next."""
    line = {"t": round(time.time(), 4), key: value}
    try:
        descriptor = os.open(os.environ[EVENTS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        finally:
            os.close(descriptor)
    except (KeyError, OSError, ValueError):
        pass


class Row(NamedTuple):
    """One change that was tried, or the baseline, or the combination.

    Attributes:
        against: steps a second of what it was compared with. verdict: kept, no-faster, slower, different, failed,
            refused, removed; or "" of what is no change. why: the verdict in words.
    """

    name: str
    changes: Dict[str, Any]
    rates: Optional[Rates]
    against: Optional[float]
    verdict: str
    why: str
    examples_per_s: Optional[float] = None
    peak_bytes: Optional[int] = None
    loss_difference: Optional[float] = None
    places: Dict[str, Any] = {}  # noqa: RUF012

    def as_dict(self) -> Dict[str, Any]:
        told: Dict[str, Any] = dict(self._asdict(), rates=None, words=in_words(self.changes) or "as it is")
        del told["rates"]
        if self.rates is not None:
            told.update(
                steps_per_s=round(self.rates.median, 4), spread=round(self.rates.spread, 4), trials=self.rates.trials
            )
        return {key: value for key, value in told.items() if value not in (None, {}, "")}


class Record:
    """All so far."""

    def __init__(self) -> None:
        self.baseline: Optional[Row] = None
        self.rows: List[Row] = []
        self.combination: Optional[Row] = None
        self.kept: Dict[str, Any] = {}
        self.places: Dict[str, Any] = {}
        self.band: Optional[float] = None
        self.level: Optional[float] = None
        self.not_tried: Dict[str, str] = {}
        self.refusal: Optional[Refusal] = None
        self.trials = 0
        self.seconds = 0.0
        self.files: Dict[str, Any] = {"skipped": 0, "restored": 0, "removed": 0, "new": [], "left": []}
        self.done = False

    def add_files(self, trial: Trial) -> None:
        """What became of files that the trial wrote."""
        told = (trial.report or {}).get("kept_files") or {}
        self.files["skipped"] += int(told.get("skipped") or 0)
        for key in ("restored", "removed"):
            self.files[key] += trial.restored.get(key, 0)
        for key, paths in (("new", trial.restored.get("new", [])), ("left", told.get("left", []))):
            self.files[key] = list(dict.fromkeys([*self.files[key], *paths]))[:20]

    def tell(self) -> None:
        tell(
            KEY,
            {
                "done": self.done,
                "trials": self.trials,
                "seconds": round(self.seconds, 1),
                "baseline": self.baseline.as_dict() if self.baseline else None,
                "rows": [row.as_dict() for row in self.rows],
                "combination": self.combination.as_dict() if self.combination else None,
                "kept": self.kept,
                "places": self.places,
                "band": self.band,
                "level": self.level,
                "not_tried": self.not_tried,
                "refusal": self.refusal._asdict() if self.refusal else None,
                "files": self.files,
            },
        )
