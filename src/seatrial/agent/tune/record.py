"""Report the whole tune after each trial, and why a script cannot be tuned."""

import os
from contextlib import closing, suppress
from typing import Any, Dict, List, NamedTuple, Optional

from seatrial.agent.tune import Spec
from seatrial.agent.tune.statistics import Rates
from seatrial.agent.tune.trial import TuneTrial
from seatrial.common.paired import Interval
from seatrial.common.tunables import in_words
from seatrial.events import EVENTS_VARIABLE, StepLog

#: The key of the driver's lines in $SEATRIAL_EVENTS.
KEY = "tune"


class TuneRefusal(NamedTuple):
    """``id`` for programs; the sentence; what to do, where something can be done."""

    id: str
    words: str
    fix: Optional[str] = None


def refusal(trial: TuneTrial, spec: Spec, limit_s: float) -> Optional[TuneRefusal]:
    """Return why no other trial can be made; None if the first one was measured."""
    steps = int((trial.report or {}).get("all_steps") or 0)
    if trial.exit_code is None:
        what = "made no step" if not steps and not trial.anatomy else "did not get through a trial's steps"
        return TuneRefusal("slow", "it %s within %.0f s" % (what, limit_s), "seatrial tune … --budget 600 --seconds 60")
    if trial.exit_code != 0 and not trial.measured:
        when = "before its first step" if not steps else "after %d steps" % steps
        return TuneRefusal("crashed", "it failed %s: %s" % (when, last_line(trial.output)), "seatrial run …")
    if trial.hook_failed is not None and not trial.measured:
        return TuneRefusal("hook", "the hook that measures it gave up: %s" % trial.hook_failed, None)
    if trial.report is None:
        return TuneRefusal("no-torch", "it imported no torch, the one framework that tune knows, or left by os._exit")
    if not steps:
        return TuneRefusal("no-step", "no optimizer made a step in it", None)
    if not trial.measured:
        if trial.ended == "seconds":
            return TuneRefusal(
                "slow", "its steps are too slow: a trial saw %d" % trial.steps, "seatrial tune … --seconds 60"
            )
        ended = "it ended after %d steps, and a trial takes about %d" % (steps, 20 + spec.steps)
        longer = "seatrial tune … -- --epochs 10   # or another option that makes it longer"
        return TuneRefusal("too-short", ended, longer)
    if spec.gpus and trial.facts.get("device") == "cpu":
        return TuneRefusal(
            "on-cpu", "it trains on the CPU and leaves the GPU alone", 'model.to("cuda")   # in the script'
        )
    return None


def last_line(output: str) -> str:
    """Return the end of a failed trial's output: its exception, if it has one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.partition(":")[0] and " " not in line.partition(":")[0]]
    last = (errors or lines or ["it printed nothing"])[-1]
    return last if len(last) <= 300 else last[:299] + "…"


def append_report(key: str, value: Dict[str, Any]) -> None:
    """Append a report of this process. Never raises; the next report repeats everything."""
    with suppress(KeyError, OSError), closing(StepLog(os.environ[EVENTS_VARIABLE])) as log:
        log.write({key: value})


class TuneRow(NamedTuple):
    """One change that was tried, or the baseline, or the combination.

    ``faster``: its speed relative to its reference, from pairs of trials. ``verdict``: kept, no-faster, unclear,
    slower, different, failed, refused, removed; "" without a change. ``loss_off``: how much higher its losses are
    under the same seeds.
    """

    name: str
    changes: Dict[str, Any]
    rates: Optional[Rates] = None
    faster: Optional[Interval] = None
    verdict: str = ""
    why: str = ""
    examples_per_s: Optional[float] = None
    peak_bytes: Optional[int] = None
    loss_difference: Optional[float] = None
    loss_off: Optional[Interval] = None
    places: Dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def of(cls, made: TuneTrial, name: str, changes: Dict[str, Any], rates: Optional[Rates]) -> "TuneRow":
        """Return a row without a verdict, with speed, memory and places of this trial."""
        speed, peak_bytes = made.examples_per_s, made.peak_bytes
        return cls(name, changes, rates, examples_per_s=speed, peak_bytes=peak_bytes, places=made.places)

    def as_dict(self) -> Dict[str, Any]:
        row: Dict[str, Any] = dict(self._asdict(), words=in_words(self.changes) or "as it is")
        rates, faster, off = row.pop("rates"), row.pop("faster"), row.pop("loss_off")
        if rates is not None:
            row.update(steps_per_s=round(rates.median, 4), spread=round(rates.spread, 4), trials=rates.trials)
        if rates is not None and faster is not None:
            low, middle, high = (float("%.5g" % times) for times in faster)
            row.update(against=round(rates.median / faster.middle, 4), faster=middle)
            row.update(faster_low=low, faster_high=high)
        if off is not None:
            row.update(loss_off_low=float("%.5g" % off.low), loss_off_high=float("%.5g" % off.high))
        return {key: value for key, value in row.items() if value not in (None, {}, "")}


class TuneLog:
    """The results of the tune so far; its attributes are the keys of its report."""

    def __init__(self) -> None:
        self.baseline: Optional[TuneRow] = None
        self.rows: List[TuneRow] = []
        self.combination: Optional[TuneRow] = None
        self.kept: Dict[str, Any] = {}
        self.places: Dict[str, Any] = {}
        self.band: Optional[float] = None
        self.margin: Optional[float] = None
        self.level: Optional[float] = None
        self.not_tried: Dict[str, str] = {}
        self.refusal: Optional[TuneRefusal] = None
        self.trials = 0
        self.seconds = 0.0
        self.files: Dict[str, Any] = {"skipped": 0, "restored": 0, "removed": 0, "new": [], "left": []}
        self.done = False

    def add_files(self, trial: TuneTrial) -> None:
        """Add the outcome of the files that the trial wrote."""
        kept = (trial.report or {}).get("kept_files") or {}
        self.files["skipped"] += int(kept.get("skipped") or 0)
        for key in ("restored", "removed"):
            self.files[key] += trial.restored.get(key, 0)
        for key, paths in (("new", trial.restored.get("new", [])), ("left", kept.get("left", []))):
            self.files[key] = list(dict.fromkeys([*self.files[key], *paths]))[:20]

    def report(self) -> None:
        written = dict(vars(self), seconds=round(self.seconds, 1), rows=[row.as_dict() for row in self.rows])
        written["baseline"] = self.baseline and self.baseline.as_dict()
        written["combination"] = self.combination and self.combination.as_dict()
        written["refusal"] = self.refusal and self.refusal._asdict()
        append_report(KEY, written)
