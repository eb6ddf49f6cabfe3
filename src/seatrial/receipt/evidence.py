"""Evidence: the events of one run as typed facts, and everything else that a run is judged by.

The training window is the time over which utilisation is judged: from the first to the last step line of a target that
reports steps; of a server, the time it served; else from the first to the last step that the hook measured; else from
the first CUDA context (on the CPU, from the start) to the target's exit, or to the agent's last line if that was lost.
Imports, compilation before the first step and saving after the last do not count against the GPU; waiting for data
between steps does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from seatrial import events
from seatrial.backends.base import ImageFacts, State
from seatrial.common.signals import Anatomy, is_hooks, measured_window, read_anatomy, why_stopped
from seatrial.findings.finding import Finding
from seatrial.job.in_container import CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.plan import Gpu, Plan
from seatrial.receipt.clock import on_one_clock, with_repeated
from seatrial.receipt.logs import Output
from seatrial.receipt.outcome import ExitCause
from seatrial.receipt.reported import Point, ReportedSteps, read_steps
from seatrial.receipt.sections.measured import Measurements
from seatrial.receipt.sections.serving import last_report, ready_s
from seatrial.receipt.values import clean, grouped, items, mapping, number, text, whole

#: Numbers of a sample that describe the container, in the order of events.Sample.
HOST_KEYS = ("cpu_cores", "memory_bytes", "memory_limit_bytes", "shm_used_bytes", "shm_total_bytes", "processes")

_UNKNOWN = ExitCause(id="unknown", words="")


class Witnessed(NamedTuple):
    """Counts of the host's looks at a GPU; see events.HostWitness."""

    looks: int = 0
    ours: int = 0
    others: int = 0
    working: int = 0
    foreign: int = 0
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Moment:
    """One event and its time: seconds since the first event, on the straightened clock."""

    at_s: float
    keys: Mapping[str, Any]

    def number(self, key: str) -> float | None:
        return number(self.keys.get(key))

    def text(self, key: str) -> str | None:
        return text(self.keys.get(key))


class SampleFacts(NamedTuple):
    """One sample: numbers of the container (HOST_KEYS), and of each GPU by UUID. A missing counter is absent."""

    at_s: float
    host: Mapping[str, float]
    gpus: Mapping[str, Mapping[str, float]]
    throttled: Mapping[str, tuple[str, ...]]


class Window(NamedTuple):
    """The training window in seconds since the first event; ``begins`` describes its first event."""

    start_s: float
    end_s: float
    begins: str

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Evidence:
    """All events of a run, in order and by type, and sentences about clock jumps and lines that were no JSON object."""

    moments: tuple[Moment, ...]
    jumps: tuple[str, ...]
    skipped_lines: int

    @cached_property
    def _by_type(self) -> dict[str, list[Moment]]:
        """Return type → its events; a target only reports steps."""
        typed = ((each.keys.get("type"), each.keys.get("source") in ("agent", "host"), each) for each in self.moments)
        evidence = events.EVIDENCE_TYPES
        return grouped((k, each) for k, trusted, each in typed if isinstance(k, str) and (trusted or k not in evidence))

    def all(self, kind: type[events.Event]) -> list[Moment]:
        return self._by_type.get(kind.type, [])

    def first(self, kind: type[events.Event]) -> Moment | None:
        return next(iter(self.all(kind)), None)

    def last(self, kind: type[events.Event]) -> Moment | None:
        return next(reversed(self.all(kind)), None)

    @cached_property
    def target_started(self) -> Moment | None:
        return self.first(events.TargetStarted)

    @cached_property
    def exited(self) -> Moment | None:
        """Return the end of the target; of several nodes, the first that failed, since the others fail because of it.

        A node's last end counts, since a lost pod comes back, unless the target has started again since.
        """
        both = [*self.all(events.TargetStarted), *self.all(events.TargetExited)]
        places = {id(moment): place for place, moment in enumerate(self.moments)}
        latest = {moment.number("node"): moment for moment in sorted(both, key=lambda moment: places[id(moment)])}
        ends = [moment for moment in latest.values() if moment.keys.get("type") == events.TargetExited.type]
        failed = (moment for moment in ends if moment.number("exit_code") != 0)
        return min(failed, key=lambda moment: moment.at_s, default=max(ends, key=lambda end: end.at_s, default=None))

    def of_end(self, key: str) -> int | None:
        """Return a number of the target's end; None before."""
        return whole(self.exited.keys.get(key)) if self.exited else None

    @cached_property
    def contexts(self) -> dict[str, Moment]:
        """Return UUID → the first CUDA context of the target on it."""
        return {uuid: moments[0] for uuid, moments in self._by_uuid(events.GpuContext).items()}

    @cached_property
    def kernels(self) -> dict[str, list[Moment]]:
        """Return UUID → the kernels run on it to test it."""
        return self._by_uuid(events.GpuKernel)

    def _by_uuid(self, kind: type[events.Event]) -> dict[str, list[Moment]]:
        return grouped((uuid, moment) for moment in self.all(kind) if (uuid := moment.text("uuid")))

    @cached_property
    def checks(self) -> dict[float | None, Moment]:
        """Return node → its last gpu.check; None is the key of a run on one node."""
        return {moment.number("node"): moment for moment in self.all(events.GpuCheck)}

    @cached_property
    def visible(self) -> list[dict[str, Any]]:
        """Return the GPUs that CUDA saw in the last gpu.check of each node, each with a ``uuid``."""
        entries = [entry for check in self.checks.values() for entry in items(check.keys.get("visible"))]
        return [entry for entry in entries if isinstance(entry, dict) and text(entry.get("uuid"))]

    @cached_property
    def witness(self) -> dict[str, Witnessed]:
        """Return UUID → what the host's driver saw there."""
        found: dict[str, Witnessed] = {}
        for moment in self.all(events.HostWitness):
            for uuid, seen in mapping(moment.keys.get("gpus")).items():
                before, keys = found.get(str(uuid), Witnessed()), mapping(seen)
                counts = {key: getattr(before, key) + (whole(keys.get(key)) or 0) for key in Witnessed._fields[:-1]}
                names = dict.fromkeys([*before.names, *filter(None, map(text, items(keys.get("names"))))])
                found[str(uuid)] = before._replace(**counts, names=tuple(names))
        return found

    @property
    def seen_by_host(self) -> set[str]:
        """Return the UUIDs of GPUs on which the host's driver saw a process of the run."""
        return {uuid for uuid, seen in self.witness.items() if seen.ours}

    @property
    def contexts_were_watched(self) -> bool:
        """Return True if the agent looked for contexts until the end, so one that it did not see was not there."""
        finished = self.last(events.AgentFinished)
        return finished is not None and isinstance(finished.keys.get("contexts"), list)

    @cached_property
    def missing_lines(self) -> int:
        """Return how many numbered lines of the agents never arrived."""
        last: dict[float | None, int] = {}
        missing = 0
        for moment in self.moments:
            if (seq := whole(moment.keys.get("_seq"))) is None:
                continue
            node = moment.number("node")
            if moment.keys.get("type") == events.AgentStarted.type:
                last[node] = 0
            before = last.get(node, 0)
            missing += max(0, seq - before - 1)
            last[node] = max(seq, before)
        return missing

    @cached_property
    def samples(self) -> tuple[SampleFacts, ...]:
        return tuple(_sample(moment) for moment in self.all(events.Sample))

    @cached_property
    def steps(self) -> ReportedSteps:
        return read_steps((moment.at_s, moment.keys) for moment in self.reported)

    @cached_property
    def hook_lines(self) -> list[Mapping[str, Any]]:
        """Return the keys of every step line, the hook's and the script's."""
        return [moment.keys for moment in self.all(events.Step)]

    @cached_property
    def reported(self) -> list[Moment]:
        """Step lines of the script itself, without those of the hook."""
        return [moment for moment in self.all(events.Step) if not is_hooks(moment.keys)]

    @cached_property
    def written(self) -> list[Moment]:
        """Return those of ``reported`` that the script wrote itself; a framework's whole epochs come by the hook."""
        return [moment for moment in self.reported if "by" not in moment.keys]

    @cached_property
    def anatomy(self) -> tuple[Anatomy, ...]:
        """Return the hook's measurements of each rank's steps; times are seconds since the first event."""
        return read_anatomy({**moment.keys, "t": moment.at_s} for moment in self.all(events.Step))

    @cached_property
    def hook_stopped(self) -> str | None:
        return why_stopped(self.hook_lines)

    @cached_property
    def served(self) -> Moment | None:
        """Return the last report of a server."""
        return last_report(self.all(events.Served))

    def power(self, uuid: str) -> list[Point]:
        """Return (seconds, watts) of a GPU's samples."""
        return [(s.at_s, s.gpus[uuid]["power_w"]) for s in self.samples if "power_w" in s.gpus.get(uuid, {})]

    @cached_property
    def findings(self) -> list[Finding]:
        return [_finding(moment.keys) for moment in self.all(events.Found)]

    @cached_property
    def window(self) -> Window | None:
        """Return the training window (see above), or None if the target never started."""
        if self.target_started is None:
            return None
        if self.served is not None:
            begin_s = ready_s(self, self.served)
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
    def wall_s(self) -> float | None:
        """Return the seconds the target ran: as the agent measured, else from its first start to its last line."""
        if self.target_started is None:
            return None
        nodes = [moment.number("node") for moment in self.all(events.TargetStarted)]
        seconds = self.exited.number("seconds") if self.exited and len(nodes) == len(set(nodes)) else None
        if seconds is not None and seconds >= 0:
            return seconds
        return max(0.0, self.window.end_s - self.target_started.at_s) if self.window else None


def gather(lines: Sequence[Any], skipped_lines: int = 0) -> Evidence:
    """Return the evidence of a run's events, in the order of the file; entries other than objects are skipped."""
    objects = [line for line in lines if isinstance(line, dict)]
    ordered, elapsed, jumps = on_one_clock(with_repeated(objects))
    moments = tuple(Moment(at_s, line) for at_s, line in zip(elapsed, ordered, strict=True))
    return Evidence(moments, tuple(jumps), skipped_lines + len(lines) - len(objects))


@dataclass(frozen=True)
class RunEvidence:
    """Everything that a receipt is judged by, read once and passed to each section.

    Attributes:
        state: the engine's last word about the run, None if it was not queried or does not answer.
        engine_findings: known failures in the engine's error.
        image: the engine's facts about the image, None if it was not queried, or on the local backend.
        now: Unix time of the judgement. chain: of events.jsonl, followed to its end; None while the run goes on.
        contradictions: sentences about evidence that cannot be what happened.
        cause: why the run ended, once that is known.
    """

    plan: Plan
    evidence: Evidence
    output: Output
    measurements: Measurements
    state: State | None
    engine_findings: tuple[Finding, ...]
    run_dir: Path
    image: ImageFacts | None
    now: float = 0.0
    chain: events.Chain | None = None
    contradictions: tuple[str, ...] = ()
    cause: ExitCause = _UNKNOWN

    @property
    def gpus_required(self) -> bool:
        return self.plan.agent.gpu_mode == "required"

    @property
    def expected(self) -> tuple[Gpu, ...]:
        """Return the requested GPUs in CUDA order; () on a CPU run."""
        return self.plan.agent.gpus if self.gpus_required else ()

    @property
    def project(self) -> str:
        """Return the project's folder as the target sees it; a Compose service mounts it where its file has it."""
        project, mounts = self.plan.job.project, self.plan.container.mounts if self.plan.container else ()
        outside = str(project) if self.plan.on_the_host else CONTAINER_PROJECT
        return next((mount.target for mount in mounts if mount.source == project), outside)

    @property
    def models_folder(self) -> Path | None:
        """Return the host's folder behind /models, or None."""
        models = self.plan.job.models
        return self.host_folder(CONTAINER_MODELS) if models is None else models.source

    def host_folder(self, target: str) -> Path | None:
        """Return the host's folder behind one of the container's (its HOME, its outputs), or None."""
        mounts = self.plan.container.mounts if self.plan.container else ()
        return next((mount.source for mount in mounts if mount.target == target), None)

    @property
    def promises_a_model(self) -> bool:
        """Return True if the job names a folder for saved models, other than one mounted as the script may write there.

        A prediction opens its model, and --help trains nothing.
        """
        job = self.plan.job
        saves = job.models is not None and not job.models.read_only
        saves = saves or any(mount.target == CONTAINER_MODELS for mount in job.mounts)
        return saves and not {"-h", "--help"} & {*job.target.args}

    @property
    def image_bytes(self) -> int | None:
        """Return the bytes of the image's files as counted before the run, or None."""
        launched = self.evidence.first(events.HostLaunched)
        return int(launched.number("image_bytes") or 0) or None if launched else None

    @property
    def files_since(self) -> float | None:
        """Return the Unix time from which a file is this run's: the agent's start, as a target can outrun its event."""
        if self.evidence.target_started is None:
            return None
        begin = self.evidence.first(events.AgentStarted) or self.evidence.target_started
        return number(begin.keys.get("t"))


def _finding(keys: Mapping[str, Any]) -> Finding:
    """Return the finding of an event; what is missing or of another type is left empty."""
    return Finding(
        text(keys.get("id")) or "unknown",
        severity if (severity := keys.get("severity")) in ("error", "warning", "info") else "warning",
        text(keys.get("message")) or "",
        text(keys.get("cause")),
        text(keys.get("fix")),
        [clean(str(line)) for line in items(keys.get("evidence"))],
    )


def _sample(moment: Moment) -> SampleFacts:
    host = {key: value for key in HOST_KEYS if (value := moment.number(key)) is not None}
    gpus, throttled = {}, {}
    for entry in map(mapping, items(moment.keys.get("gpus"))):
        if uuid := text(entry.get("uuid")):
            gpus[uuid] = {key: n for key, value in entry.items() if (n := number(value)) is not None}
            throttled[uuid] = tuple(name for reason in items(entry.get("throttle_reasons")) if (name := text(reason)))
    return SampleFacts(moment.at_s, host, gpus, throttled)
