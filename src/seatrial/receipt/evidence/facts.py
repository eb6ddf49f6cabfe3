"""Evidence: the events of one run as tidy facts. Everything after this file is typed; everything before it is not.

The training window is the time over which utilisation is judged. A target that reports steps says itself when it
trains: from its first step line to its last; a server when it served. Of one that says nothing, the hook beside its
Python may have measured the steps: from the first to the last. Else: from its first CUDA context (without one, a CPU
run, from its start) until it exited, or until the last line of the agent when that was lost. Imports, compilation
before the first step and saving after the last thus do not count against the GPU; waiting for data between steps does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seatrial.diagnosis.anatomy import Anatomy, is_hooks, measured_window, read_anatomy, why_stopped
from seatrial.events import (
    EVIDENCE_TYPES,
    Event,
    Found,
    GpuCheck,
    GpuContext,
    GpuKernel,
    Step,
    TargetExited,
    TargetStarted,
)
from seatrial.events import Sample as SampleEvent
from seatrial.events import Served as ServedEvent
from seatrial.findings.finding import Finding
from seatrial.receipt.evidence.clock import on_one_clock
from seatrial.receipt.evidence.fields import clean, items, mapping, number, text
from seatrial.receipt.evidence.repeated import with_repeated
from seatrial.receipt.evidence.served import Served, read_served
from seatrial.receipt.evidence.steps import Steps, read_steps
from seatrial.receipt.evidence.tuned import read_tune, read_tuned
from seatrial.receipt.model import ChangesRecord, TuneRecord

#: Numbers of a sample that describe the container, in the order of events.Sample.
HOST_KEYS = ("cpu_cores", "memory_bytes", "memory_limit_bytes", "shm_used_bytes", "shm_total_bytes", "processes")


@dataclass(frozen=True)
class Moment:
    """One event and when it was: seconds since the first event, on the straightened clock."""

    at_s: float
    keys: Mapping[str, Any]

    def number(self, key: str) -> float | None:
        return number(self.keys.get(key))

    def text(self, key: str) -> str | None:
        return text(self.keys.get(key))


@dataclass(frozen=True)
class Sample:
    """One sample: numbers of the container (HOST_KEYS), and of each GPU by UUID. A counter not there is absent."""

    at_s: float
    host: Mapping[str, float]
    gpus: Mapping[str, Mapping[str, float]]
    throttled: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Window:
    """The training window in seconds since the first event; ``begins`` says in words what it begins with."""

    start_s: float
    end_s: float
    begins: str

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Evidence:
    """All events of a run, by type.

    Attributes:
        moments: every event in order; the attributes below are views of it.
        jumps: sentences about the clock. skipped_lines: lines of events.jsonl that were no JSON object.
    """

    moments: tuple[Moment, ...]
    jumps: tuple[str, ...]
    skipped_lines: int

    @cached_property
    def _by_type(self) -> dict[str, list[Moment]]:
        found: dict[str, list[Moment]] = {}
        for moment in self.moments:
            if isinstance(type := moment.keys.get("type"), str) and _may_say(moment.keys.get("source"), type):
                found.setdefault(type, []).append(moment)
        return found

    def all(self, kind: type[Event]) -> list[Moment]:
        return self._by_type.get(kind.type, [])

    def all_of(self, *kinds: type[Event]) -> list[Moment]:
        """Events of any of these kinds, in order."""
        wanted = [kind.type for kind in kinds]
        return [
            moment
            for moment in self.moments
            if moment.keys.get("type") in wanted and _may_say(moment.keys.get("source"), moment.keys["type"])
        ]

    def first(self, kind: type[Event]) -> Moment | None:
        return next(iter(self.all(kind)), None)

    def last(self, kind: type[Event]) -> Moment | None:
        return next(reversed(self.all(kind)), None)

    @cached_property
    def target_started(self) -> Moment | None:
        return self.first(TargetStarted)

    @cached_property
    def exited(self) -> Moment | None:
        """The end of the target. Of several nodes, the first that failed: the others fail because of it.

        A node's last end counts, since a pod that was lost comes back; and none where the target has started again
        since.
        """
        latest: dict[float | None, Moment] = {}
        for moment in self.all_of(TargetStarted, TargetExited):
            latest[moment.number("node")] = moment
        ends = [moment for moment in latest.values() if moment.keys.get("type") == TargetExited.type]
        failed = (moment for moment in ends if moment.number("exit_code") != 0)
        return min(failed, key=lambda moment: moment.at_s, default=max(ends, key=lambda end: end.at_s, default=None))

    @cached_property
    def contexts(self) -> dict[str, Moment]:
        """UUID → the first CUDA context of the target seen on it."""
        found: dict[str, Moment] = {}
        for moment in self.all(GpuContext):
            if uuid := moment.text("uuid"):
                found.setdefault(uuid, moment)
        return found

    @cached_property
    def kernels(self) -> dict[str, list[Moment]]:
        """UUID → the kernels run on it to try it."""
        found: dict[str, list[Moment]] = {}
        for moment in self.all(GpuKernel):
            if uuid := moment.text("uuid"):
                found.setdefault(uuid, []).append(moment)
        return found

    @cached_property
    def checks(self) -> dict[float | None, Moment]:
        """Node → its last gpu.check; None is the key of a run that has one."""
        return {moment.number("node"): moment for moment in self.all(GpuCheck)}

    @cached_property
    def visible(self) -> list[dict[str, Any]]:
        """GPUs that CUDA saw in the last gpu.check of each node, each with a ``uuid``."""
        entries = [entry for check in self.checks.values() for entry in items(check.keys.get("visible"))]
        return [entry for entry in entries if isinstance(entry, dict) and text(entry.get("uuid"))]

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(_sample(moment) for moment in self.all(SampleEvent))

    @cached_property
    def steps(self) -> Steps:
        return read_steps((moment.at_s, moment.keys) for moment in self.reported)

    @cached_property
    def reported(self) -> list[Moment]:
        """Step lines of the script itself, without those of the hook beside its Python."""
        return [moment for moment in self.all(Step) if not is_hooks(moment.keys)]

    @cached_property
    def written(self) -> list[Moment]:
        """Those of ``reported`` that the script wrote itself: a framework tells the hook of whole epochs alone."""
        return [moment for moment in self.reported if "by" not in moment.keys]

    @cached_property
    def anatomy(self) -> tuple[Anatomy, ...]:
        """What the hook measured of each rank's steps; its times are seconds since the first event."""
        return read_anatomy({**moment.keys, "t": moment.at_s} for moment in self.all(Step))

    @cached_property
    def tune(self) -> TuneRecord | None:
        """What a tune has told."""
        return read_tune(moment.keys for moment in self.all(Step))

    def changed(self, asked: Mapping[str, Any]) -> ChangesRecord | None:
        """What became of changes that the run was to make."""
        return read_tuned((moment.keys for moment in self.all(Step)), asked)

    @cached_property
    def hook_stopped(self) -> str | None:
        return why_stopped(moment.keys for moment in self.all(Step))

    @cached_property
    def served(self) -> Served | None:
        """What a server says that it has done."""
        return read_served((moment.at_s, moment.keys) for moment in self.all(ServedEvent))

    @cached_property
    def findings(self) -> list[Finding]:
        return [finding_of(moment.keys) for moment in self.all(Found)]

    @cached_property
    def window(self) -> Window | None:
        """The training window (see above), or None when the target never started."""
        if self.target_started is None:
            return None
        if self.served is not None:
            begin_s = max(self.target_started.at_s, self.served.at_s - self.served.seconds)
            return Window(begin_s, max(begin_s, self.served.at_s), "when the server was ready")
        steps = self.written
        if len(steps) > 1 and steps[-1].at_s > steps[0].at_s:
            return Window(steps[0].at_s, steps[-1].at_s, "the first to the last step line")
        if self.anatomy and (steps_span := measured_window(self.anatomy)) is not None:
            return Window(*steps_span, "the first to the last measured step")
        begin, begins = self.target_started, "the start of the target"
        if self.contexts:
            begin, begins = min(self.contexts.values(), key=lambda m: m.at_s), "the first CUDA context"
        measured = [m.at_s for m in self.moments if m.keys.get("source") == "agent"]
        end_s = self.exited.at_s if self.exited else max(measured, default=begin.at_s)
        return Window(begin.at_s, max(begin.at_s, end_s), begins)

    @property
    def window_samples(self) -> list[Sample]:
        """The samples inside the training window."""
        window = self.window
        return [s for s in self.samples if window and window.start_s <= s.at_s <= window.end_s]

    @property
    def wall_s(self) -> float | None:
        """Seconds the target ran: as the agent measured, else from its start to the last line about it.

        A target that was started again, in another pod or beside lost peers, ran since its first start.
        """
        if self.target_started is None:
            return None
        nodes = [moment.number("node") for moment in self.all(TargetStarted)]
        told = self.exited.number("seconds") if self.exited and len(nodes) == len(set(nodes)) else None
        if told is not None and told >= 0:
            return told
        return max(0.0, self.window.end_s - self.target_started.at_s) if self.window else None


def gather(events: Sequence[Any], skipped_lines: int = 0) -> Evidence:
    """Evidence of the events of a run, in the order of the file; entries that are no object are counted as skipped."""
    whole = [event for event in events if isinstance(event, dict)]
    objects, elapsed, jumps = on_one_clock(with_repeated(whole))
    moments = tuple(Moment(at_s, event) for at_s, event in zip(elapsed, objects, strict=True))
    return Evidence(moments, tuple(jumps), skipped_lines + len(events) - len(whole))


def _may_say(source: Any, type: str) -> bool:
    """Whether evidence of this type can come from this writer: a target reports steps, whatever it writes."""
    return type not in EVIDENCE_TYPES or source in ("agent", "host")


def finding_of(keys: Mapping[str, Any]) -> Finding:
    """The finding an event carries; what is missing or of another type is left empty."""
    return Finding(
        text(keys.get("id")) or "unknown",
        severity if (severity := keys.get("severity")) in ("error", "warning", "info") else "warning",
        text(keys.get("message")) or "",
        text(keys.get("cause")),
        text(keys.get("fix")),
        [clean(str(line)) for line in items(keys.get("evidence"))],
    )


def _sample(moment: Moment) -> Sample:
    host = {key: value for key in HOST_KEYS if (value := moment.number(key)) is not None}
    gpus, throttled = {}, {}
    for entry in map(mapping, items(moment.keys.get("gpus"))):
        if uuid := text(entry.get("uuid")):
            gpus[uuid] = {key: n for key, value in entry.items() if (n := number(value)) is not None}
            throttled[uuid] = tuple(name for reason in items(entry.get("throttle_reasons")) if (name := text(reason)))
    return Sample(moment.at_s, host, gpus, throttled)
