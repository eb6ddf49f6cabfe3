"""Timeline: what happened when, a line each."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.events import (
    AgentStarted,
    Event,
    Found,
    GpuCheck,
    GpuContext,
    GpuKernel,
    HostLaunched,
    HostState,
    Note,
    ReportRefused,
    Signal,
    TargetExited,
    TargetStarted,
)
from seatrial.job.units import format_bytes
from seatrial.receipt.evidence.facts import Evidence, Moment
from seatrial.receipt.evidence.fields import items, mapping
from seatrial.receipt.formatting import count, short_uuid, signal_name
from seatrial.receipt.model import Entry

#: Lines kept of one type of event: a script that notes something every second must not bury the rest.
MAX_OF_A_TYPE = 20


def make_timeline(evidence: Evidence) -> tuple[Entry, ...]:
    """Entries in the order they happened."""
    entries: list[Entry] = []
    for kind, words in _WORDS.items():
        moments = evidence.all(kind)
        if kind is GpuContext:
            moments = list(evidence.contexts.values())
        kept = moments[:MAX_OF_A_TYPE]
        entries += [Entry(at_s=moment.at_s, words=words(moment)) for moment in kept]
        if len(moments) > len(kept):
            entries.append(Entry(at_s=moments[-1].at_s, words=f"… {len(moments) - len(kept)} more of: {kind.type}"))
    entries += _steps(evidence)
    return tuple(sorted(entries, key=lambda entry: entry.at_s))


def _steps(evidence: Evidence) -> list[Entry]:
    moments = evidence.written
    if not moments:
        return []
    first = Entry(at_s=moments[0].at_s, words="First line of numbers from the script")
    last = Entry(at_s=moments[-1].at_s, words=f"Last of {count(len(moments), 'line')} of numbers from the script")
    return [first] if len(moments) == 1 else [first, last]


def _launched(moment: Moment) -> str:
    size = moment.number("image_bytes")
    return f"Launched on {moment.text('backend') or 'the backend'}" + (
        f", image of {format_bytes(int(size))}" if size and size > 0 else ""
    )


def _agent_started(moment: Moment) -> str:
    limit = mapping(moment.keys.get("cgroup")).get("memory_limit_bytes")
    limited = f", {format_bytes(limit)} of memory allowed" if isinstance(limit, int) and 0 < limit < 1 << 60 else ""
    return f"Agent started, Python {moment.text('python') or '?'}{limited}"


def _checked(moment: Moment) -> str:
    visible, expected = len(items(moment.keys.get("visible"))), len(items(moment.keys.get("expected")))
    ok = "as asked" if moment.keys.get("ok") is True else moment.text("error") or "not as requested"
    return f"CUDA sees {count(visible, 'GPU')} of {expected} requested: {ok}"


def _kernel(moment: Moment) -> str:
    ms, told = moment.number("ms"), moment.text("kind") or "driver"
    kind = {"jax": "JAX", "tensorflow": "TensorFlow"}.get(told, told.capitalize())
    uuid = short_uuid(moment.text("uuid") or "?")
    if moment.keys.get("ok") is not True:
        return f"{kind} kernel failed on {uuid}: {moment.text('error') or 'no reason given'}"
    return f"{kind} kernel ran on {uuid}" + (f" in {ms:.3g} ms" if ms is not None else "")


def _target_started(moment: Moment) -> str:
    launcher = moment.text("launcher")
    return "Target started" + (f" by {launcher}" if launcher not in (None, "none") else "")


def _context(moment: Moment) -> str:
    memory = moment.number("memory_bytes")
    held = f", {format_bytes(int(memory))} of its memory" if memory and memory > 0 else ""
    return f"Target has a CUDA context on {short_uuid(moment.text('uuid') or '?')}{held}"


def _signal(moment: Moment) -> str:
    origin = moment.text("origin") or "outside"
    if origin == "end":
        left = count(len(items(moment.keys.get("forwarded_to"))), "process")
        return f"{moment.text('name')} to {left} that the target had started and left behind"
    who = "engine or the run itself" if origin == "engine" else origin  # the agent cannot tell these apart
    return f"{moment.text('name') or 'A signal'} from the {who}, forwarded to the target"


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
    out_of_memory = ", killed for memory" if moment.keys.get("oom_killed") is True else ""
    return (
        f"Engine: {moment.text('status') or '?'}"
        + (f", exit code {code:g}" if code is not None else "")
        + out_of_memory
    )


#: Kind → words. A kind that is not here is not in the timeline (samples and steps are in the plots).
_WORDS: dict[type[Event], Callable[[Moment], str]] = {
    HostLaunched: _launched,
    AgentStarted: _agent_started,
    GpuCheck: _checked,
    GpuKernel: _kernel,
    TargetStarted: _target_started,
    GpuContext: _context,
    Note: lambda moment: moment.text("message") or "(an empty note)",
    Found: lambda moment: f"Finding: {moment.text('message') or moment.text('id') or '?'}",
    Signal: _signal,
    ReportRefused: lambda moment: f"The target forged evidence: {', '.join(mapping(moment.keys.get('claims')))[:200]}",
    TargetExited: _exited,
    HostState: _state,
}
