"""The run itself: target, machine, GPUs, image and framework; the pages of its trackers; its timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from seatrial import events
from seatrial.common.signals import last_facts
from seatrial.job.units import format_bytes
from seatrial.receipt.section import Block, Links, Record, Row, Rows, Section, Times
from seatrial.receipt.sections.trust import evidence_in_words
from seatrial.receipt.sections.tune import changes_in_receipt
from seatrial.receipt.values import count, gpu_names, items, join, mapping, number, short_uuid, signal_name, text, whole

if TYPE_CHECKING:
    from seatrial.receipt.evidence import Moment, RunEvidence
    from seatrial.receipt.model import Receipt

_INJECTION = {
    "none": "none",
    "nvidia-runtime": "--gpus (NVIDIA container runtime)",
    "cdi": "CDI",
    "device-nodes": "device nodes and the driver's libraries",
    "host": "a process on the host",
    "resource-claim": "a resource claim of each pod",
}
_DEVICE = {"cpu": "the CPU, as requested", "cpu-fallback": "the CPU: no GPU was found"}
#: Starts shown of a container that fails for hours, the last ones.
_MAX_STARTS = 8
#: Timeline entries of one type of event: a script that notes something every second must not bury the rest.
MAX_OF_A_TYPE = 20


class Image(Record):
    """The image that ran: its tag, content digest (or local image ID) and unpacked size."""

    tag: str
    digest: str | None = None
    size_bytes: int | None = None


class ReceiptGpu(Record):
    """A requested GPU. ``index`` is NVML's on the host."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: str | None = None


class Header(Record):
    """The run and its machine.

    Attributes:
        target: as a user types it. git_commit: of the project.
        part: the node of several hosts that this is, and the ID that all their receipts share.
        device: ``gpu``, ``cpu`` (as requested), or ``cpu-fallback`` (``--gpus auto`` found no GPU).
        gpus: those known by name. gpus_asked: the number requested, None in older receipts.
        injection: how the GPUs got into the container (Plan.injection).
        driver, cuda: version of the host's NVIDIA driver, and the newest CUDA that it runs.
        framework: e.g. ``torch 2.13.0``. framework_cuda: the CUDA it was built for.
        earlier_starts: exit code of each start before the last, of a container that its engine started again; None if
            the agent was killed.
        started_at, judged_at: Unix time in seconds.
    """

    run_id: str
    name: str | None = None
    target: str
    git_commit: str | None = None
    backend: str
    host: str | None = None
    part: str | None = None
    device: Literal["gpu", "cpu", "cpu-fallback"]
    gpus: tuple[ReceiptGpu, ...] = ()
    gpus_asked: int | None = None
    injection: str
    image: Image | None = None
    driver: str | None = None
    cuda: str | None = None
    framework: str | None = None
    framework_cuda: str | None = None
    python: str | None = None
    agent: str | None = None
    earlier_starts: tuple[int | None, ...] = ()
    started_at: float | None = None
    judged_at: float


class TrackerPage(Record):
    """The address of the run in a tracker, which requires the tracker's own token."""

    name: str
    url: str = Field(pattern=r"^https?://[^\s\"'<>]+$")


class Entry(Record):
    """One line of the timeline: seconds since the first event, and the event in words."""

    at_s: float
    words: str


class WhatRan(Section):
    title = "What ran"

    def read(self, run: RunEvidence) -> dict[str, Any]:
        """Return the header; facts that were not recorded are None."""
        return {"header": _header(run)}

    def blocks(self, receipt: Receipt) -> list[Block]:
        header, names = receipt.header, gpu_names(receipt.header.gpus)
        unnamed = header.device == "gpu" and len(header.gpus) < (header.gpus_asked or 0)
        image = header.image
        rows = [
            ("target", header.target),
            ("run", header.run_id + (f" ({header.name})" if header.name else "")),
            ("commit", header.git_commit),
            ("where", header.backend + (f" on {header.host}" if header.host else "")),
            ("node", header.part),
            ("device", _DEVICE.get(header.device)),
            ("GPUs", device_in_words(header) if unnamed else None),
            *[(names[gpu.uuid], f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, {gpu.uuid}") for gpu in header.gpus],
            ("GPU access", _INJECTION.get(header.injection, header.injection) if header.gpus else None),
            ("driver", join(header.driver, header.cuda and f"CUDA up to {header.cuda}")),
            ("framework", join(header.framework, header.framework_cuda and f"built for CUDA {header.framework_cuda}")),
            ("Python", header.python),
            ("starts", _starts(header.earlier_starts)),
            ("evidence", evidence_in_words(receipt.seal) if receipt.seal else None),
            ("changes", changes_in_receipt(receipt.changes)),
            ("image", image and join(image.tag, format_bytes(image.size_bytes) if image.size_bytes else None)),
        ]
        shown = [Row(label, value) for label, value in rows if value]
        if image and image.digest:  # its first twelve digits in a terminal, as the engines list it
            shown.append(Row("digest", image.digest, image.digest[:19]))
        return [Rows(shown)]


class TrackersSection(Section):
    title = "Trackers"

    def blocks(self, receipt: Receipt) -> list[Block]:
        return [Links([(page.name, page.url) for page in receipt.pages])] if receipt.pages else []


class TimelineSection(Section):
    title = "Timeline"

    def read(self, run: RunEvidence) -> dict[str, Any]:
        """Return entries in the order they happened."""
        evidence = run.evidence
        entries: list[Entry] = []
        for kind, words in _WORDS.items():
            moments = list(evidence.contexts.values()) if kind is events.GpuContext else evidence.all(kind)
            entries += [Entry(at_s=moment.at_s, words=words(moment)) for moment in moments[:MAX_OF_A_TYPE]]
            if (more := len(moments) - MAX_OF_A_TYPE) > 0:
                entries.append(Entry(at_s=moments[-1].at_s, words=f"… {more} more of: {kind.type}"))
        if written := evidence.written:
            entries.append(Entry(at_s=written[0].at_s, words="First line of numbers from the script"))
        if len(written) > 1:
            last = f"Last of {count(len(written), 'line')} of numbers from the script"
            entries.append(Entry(at_s=written[-1].at_s, words=last))
        return {"timeline": tuple(sorted(entries, key=lambda entry: entry.at_s))}

    def blocks(self, receipt: Receipt) -> list[Block]:
        return [Times([(entry.at_s, entry.words) for entry in receipt.timeline])]


def device_in_words(header: Header) -> str:
    """Return ``2 × NVIDIA H200``; if no pod named its GPUs, the number requested."""
    gpus, requested = header.gpus, header.gpus_asked
    if header.device != "gpu":
        return "CPU"
    if not gpus:
        return f"{count(requested, 'GPU')} requested, none reported" if requested else "GPU"
    names = dict.fromkeys(gpu.name for gpu in gpus)
    known = ", ".join(f"{sum(gpu.name == name for gpu in gpus)} × {name}" for name in names)
    return known if not requested or requested <= len(gpus) else f"{known} ({requested} requested)"


def _starts(earlier: Sequence[int | None]) -> str | None:
    """Return ``3: started again by the engine after exit codes 5, 5``; None for a single start."""
    if not earlier:
        return None
    shown = ["…"] if len(earlier) > _MAX_STARTS else []
    shown += ["a kill" if code is None else f"exit code {code}" for code in earlier[-_MAX_STARTS:]]
    return f"{len(earlier) + 1}: started again by the engine after {', '.join(shown)}"


def _header(run: RunEvidence) -> Header:
    plan, evidence = run.plan, run.evidence
    check, agent = evidence.last(events.GpuCheck), evidence.first(events.AgentStarted)
    launched = evidence.first(events.HostLaunched)
    framework, framework_cuda = _framework(run)
    return Header(
        run_id=plan.run_id,
        name=plan.job.name,
        target=plan.shown_target,
        git_commit=plan.git_commit,
        backend=plan.backend,
        host=_host(run, launched, agent),
        part=_part(run),
        device="gpu" if run.gpus_required else "cpu-fallback" if plan.agent.gpu_mode == "auto-cpu" else "cpu",
        gpus=tuple(ReceiptGpu.model_validate(gpu.model_dump()) for gpu in run.expected),
        gpus_asked=plan.gpus_asked if run.gpus_required else 0,
        injection=plan.injection,
        image=_image(run, launched),
        driver=_text(check, "driver") or plan.driver_version,
        cuda=_cuda_version(check),
        framework=framework,
        framework_cuda=framework_cuda,
        python=_text(agent, "python"),
        agent=_text(agent, "agent_version"),
        earlier_starts=_earlier_starts(run),
        started_at=next((t for m in evidence.moments if (t := number(m.keys.get("t"))) is not None), None),
        judged_at=run.now,
    )


def _text(moment: Moment | None, key: str) -> str | None:
    return moment.text(key) if moment else None


def _earlier_starts(run: RunEvidence) -> tuple[int | None, ...]:
    """Return the ends of one container's earlier starts: a Compose file may let its engine start it again."""
    if not run.plan.on_this_host or run.plan.agent.nodes > 1:
        return ()
    ends: list[int | None] = []
    for moment in run.evidence.moments:
        if moment.keys.get("type") == events.AgentStarted.type:
            ends.append(None)
        elif moment.keys.get("type") == events.AgentFinished.type and ends:
            ends[-1] = whole(moment.keys.get("exit_code"))
    return tuple(ends[:-1])


def _host(run: RunEvidence, launched: Moment | None, agent: Moment | None) -> str | None:
    """Return the machine; on a cluster the nodes that ran the pods, in the order of their ranks."""
    if not run.plan.on_this_host:
        pods = {pod.number("node"): pod.text("host") for pod in run.evidence.all(events.HostPod)}
        hosts = [host for _, host in sorted(pods.items(), key=lambda item: item[0] or 0) if host]
        return ", ".join(dict.fromkeys(hosts)) or None
    return _text(launched, "host") or (_text(agent, "hostname") if run.plan.on_the_host else None)


def _part(run: RunEvidence) -> str | None:
    """Return this host's place among several, each of which writes a receipt of its own; a cluster writes one."""
    agent, hosts = run.plan.agent, run.plan.job.hosts
    if agent.node_rank is None:
        return None
    named = ", ".join(hosts) if run.plan.job.with_names else str(len(hosts))
    return f"node {agent.node_rank} of {named}; together: {agent.rendezvous_id}"


def _image(run: RunEvidence, launched: Moment | None) -> Image | None:
    if run.plan.image is None:
        return None
    digest = _text(launched, "image_digest")
    if digest is None and run.image is not None:
        digest = run.image.digest or run.image.id
    if digest is None and (pod := run.evidence.last(events.HostPod)) is not None:
        digest = _text(pod, "image")
    return Image(tag=run.plan.image.tag, digest=digest, size_bytes=run.image_bytes)


def _framework(run: RunEvidence) -> tuple[str | None, str | None]:
    """Return ``("torch 2.13.0", "13.0")`` from its kernel, else from the agent's start, the image, the hook."""
    from seatrial.job.reading.modules import FRAMEWORKS  # a receipt that is only shown does not need it

    for kernel in (kernel for kernels in run.evidence.kernels.values() for kernel in kernels):
        found = mapping(kernel.keys.get("torch")) or mapping(kernel.keys.get("framework"))
        if version := text(found.get("version")):
            return f"{text(found.get('name')) or 'torch'} {version}", text(found.get("cuda"))
    started = run.evidence.target_started
    found = mapping(started.keys.get("framework")) if started else {}
    words = [word for key in ("name", "version") if (word := text(found.get(key)))]
    facts = last_facts(run.evidence.hook_lines, "version")
    hooked = [word.partition("+")[0] for key in ("framework", "version") if (word := text(facts.get(key)))]
    stack = run.plan.image.stack if run.plan.image else {}
    built = [f"{name} {stack[name]}" for name in FRAMEWORKS if name in stack]
    return " ".join(words) or next(iter(built), None) or " ".join(hooked) or None, None


def _cuda_version(check: Moment | None) -> str | None:
    """Return cuDriverGetVersion's 13000 as ``13.0``; text as it is."""
    if check is None:
        return None
    value = check.number("cuda_driver")
    if value is None or value < 1000:
        return check.text("cuda_driver") or (None if value is None else f"{value:g}")
    return f"{int(value) // 1000}.{int(value) % 1000 // 10}"


def _launched(moment: Moment) -> str:
    size = moment.number("image_bytes")
    image = f", image of {format_bytes(size)}" if size and size > 0 else ""
    return f"Launched on {moment.text('backend') or 'the backend'}{image}"


def _agent_started(moment: Moment) -> str:
    limit = mapping(moment.keys.get("cgroup")).get("memory_limit_bytes")
    limited = f", {format_bytes(limit)} of memory allowed" if isinstance(limit, int) and 0 < limit < 1 << 60 else ""
    return f"Agent started, Python {moment.text('python') or '?'}{limited}"


def _checked(moment: Moment) -> str:
    visible, expected = len(items(moment.keys.get("visible"))), len(items(moment.keys.get("expected")))
    trouble = "" if moment.keys.get("ok") is True else f": {moment.text('error') or 'not as requested'}"
    return f"CUDA sees {count(visible, 'GPU')} of {expected} requested{trouble}"


def _kernel(moment: Moment) -> str:
    ms, name = moment.number("ms"), moment.text("kind") or "driver"
    kind = {"jax": "JAX", "tensorflow": "TensorFlow"}.get(name, name.capitalize())
    uuid = short_uuid(moment.text("uuid") or "?")
    if moment.keys.get("ok") is not True:
        return f"{kind} kernel failed on {uuid}: {moment.text('error') or 'no reason given'}"
    return f"{kind} kernel ran on {uuid}" + (f" in {ms:.3g} ms" if ms is not None else "")


def _context(moment: Moment) -> str:
    memory = moment.number("memory_bytes")
    held = f", {format_bytes(memory)} of its memory" if memory and memory > 0 else ""
    return f"Target has a CUDA context on {short_uuid(moment.text('uuid') or '?')}{held}"


def _signal(moment: Moment) -> str:
    origin = moment.text("origin") or "outside"
    if origin == "end":
        left = count(len(items(moment.keys.get("forwarded_to"))), "process")
        return f"{moment.text('name')} to {left} that the target had started and left behind"
    sender = "engine or the run itself" if origin == "engine" else origin  # the agent cannot distinguish these
    return f"{moment.text('name') or 'A signal'} from the {sender}, forwarded to the target"


def _exited(moment: Moment) -> str:
    code, signal = moment.number("exit_code"), moment.number("signal")
    if moment.keys.get("cause") == "gpu-contract":
        never = not moment.number("seconds")
        return f"Target {'not started' if never else 'ended'}: the GPU contract was violated"
    if signal:
        return f"Target killed by {signal_name(signal)}"
    return "Target ended" + (f" with exit code {code:g}" if code is not None else "")


def _state(moment: Moment) -> str:
    code = moment.number("exit_code")
    ended = f", exit code {code:g}" if code is not None else ""
    out_of_memory = ", killed for memory" if moment.keys.get("oom_killed") is True else ""
    return f"Engine: {moment.text('status') or '?'}{ended}{out_of_memory}"


#: events.Event → words. Other events are not in the timeline: samples and steps are in the plots.
_WORDS: dict[type[events.Event], Callable[[Moment], str]] = {
    events.HostLaunched: _launched,
    events.AgentStarted: _agent_started,
    events.GpuCheck: _checked,
    events.GpuKernel: _kernel,
    events.TargetStarted: lambda moment: (
        "Target started" + (f" by {launcher}" if (launcher := moment.text("launcher")) not in (None, "none") else "")
    ),
    events.GpuContext: _context,
    events.Note: lambda moment: moment.text("message") or "(an empty note)",
    events.Found: lambda moment: f"Finding: {moment.text('message') or moment.text('id') or '?'}",
    events.Signal: _signal,
    events.ReportRefused: lambda moment: (
        f"The target forged evidence: {', '.join(mapping(moment.keys.get('claims')))[:200]}"
    ),
    events.TargetExited: _exited,
    events.HostState: _state,
}
