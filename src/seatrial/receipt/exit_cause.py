"""Why a run ended, in words. CAUSES is read from the top; the first that holds is the cause.

The order decides which of several true statements explains the others: a container that the kernel's OOM killer took
down also died of a signal, and a script that ran out of CUDA memory also exited with an exception.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from seatrial.errors import EXIT_GPU_CONTRACT
from seatrial.events import AgentFinished, AgentStarted, HostLaunched, Note, Signal, TargetStarted
from seatrial.job.in_container import EXIT_POD_STOPPED
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.evidence import Moment, RunEvidence
from seatrial.receipt.outcome import ExitCause
from seatrial.receipt.sections.gpu_contract import unused_gpus
from seatrial.receipt.values import clean, count, quote, signal_name

Explain = Callable[[RunEvidence], str | None]
#: Exit codes of a container whose agent never ran: no such program, or none that could be started. Source: the
#: kubelet's ContainerCannotRun and StartError.
_NEVER_RAN = (125, 126, 127, 128)
#: A target without output for this long, and for this share of its time, may hang. Our choice.
SILENT_S, SILENT_SHARE = 10.0, 0.25

_SEARCH_OVER = "the search has ended"
_OF_SHARED_MEMORY = ("shared-memory-too-small", "nccl-shared-memory")

#: Known causes of a signal that killed a target.
_HINTS = {
    "SIGKILL": "killed from outside: kill -9, or the host's OOM killer",
    "SIGSEGV": "a crash in native code: an extension or library, not Python itself",
    "SIGILL": "a package was compiled for a newer processor than this one",
    "SIGBUS": "often a full /dev/shm, or a memory-mapped file that could not grow",
    "SIGABRT": "a library aborted; its last message is on stderr",
}

#: Failures of an engine other than to hand over a GPU.
NOT_OF_GPU = {"disk-full", "engine-down", "engine-permission", "no-network", "too-many-open-files", "user-unknown"}


def exit_cause(run: RunEvidence) -> ExitCause:
    """Return the cause and one sentence; ``unknown`` if no evidence explains the end."""
    explained = ((id, words) for id, explain in CAUSES if (words := explain(run)))
    id, words = next(explained, ("unknown", "The run ended for an unrecorded reason"))
    code, signal = run.evidence.of_end("exit_code"), run.evidence.of_end("signal")
    return ExitCause(id=id, words=words, target_exit_code=code, target_signal=signal)


def _run_s(run: RunEvidence, moment: Moment) -> float:
    """Return the target's wall time, which the receipt shows, too; until this moment if it has none."""
    return moment.at_s if run.measurements.wall_s is None else run.measurements.wall_s


def _shown_by(words: str, *ids: str) -> Explain:
    """Explain the end of a failed target that printed such a finding, or whose agent found it, by the line for it."""

    def explain(run: RunEvidence) -> str | None:
        found = next((f for f in (*run.evidence.findings, *run.output.findings) if f.id in ids), None)
        if found is None or run.evidence.exited is None:
            return None
        return f"{words}: {quote(found.evidence[0] if found.evidence else found.message)}"

    return explain


def _contradicted(run: RunEvidence) -> str | None:
    return next((f"The evidence is inconsistent, so it proves nothing: {why}" for why in run.contradictions), None)


def _gpu_contract(run: RunEvidence) -> str | None:
    exited, finished = run.evidence.exited, run.evidence.last(AgentFinished)
    never_started = run.evidence.target_started is None
    by_agent = exited is not None and exited.keys.get("cause") == "gpu-contract"
    refused = never_started and finished is not None and finished.number("exit_code") == EXIT_GPU_CONTRACT
    refused = refused or _pods_code(run) == EXIT_GPU_CONTRACT
    by_engine = run.gpus_required and never_started and any(f.id not in NOT_OF_GPU for f in run.engine_findings)
    by_host = never_started and any(f.id == "gpu-contract" for f in run.evidence.findings)
    if not (by_agent or refused or by_engine or by_host):
        return None
    found = [f.message for f in (*run.evidence.findings, *run.engine_findings) if f.severity == "error"]
    reason = found[0] if found else "a GPU check failed"
    so = "the target was not started" if never_started else "the target's work does not count"
    return f"The GPU contract was violated, so {so}: {reason}"


def _running(run: RunEvidence) -> str | None:
    live = run.state is not None and run.state.is_live
    return "Still running: this receipt is provisional" if live and run.evidence.exited is None else None


def _stopped_before_start(run: RunEvidence) -> str | None:
    if _has_begun(run):
        return None
    if any(finding.id == "stopped" for finding in run.evidence.findings):
        return "Stopped by the user before it started"
    if _pods_code(run) is not None:
        return None
    if requests := _requests(run, "search"):
        return f"Stopped by the search before it started: {requests[0].text('why') or _SEARCH_OVER}"
    if not users_signals(run):
        return None
    waited_for = next((f.message for f in run.evidence.findings if f.severity == "error"), None)
    return "Stopped by the user before it started" + (f", while it waited: {waited_for}" if waited_for else "")


def _has_begun(run: RunEvidence) -> bool:
    return bool(run.evidence.first(AgentStarted) or run.evidence.target_started or run.evidence.exited)


def _pods_code(run: RunEvidence) -> int | None:
    """Return the exit code of a pod that ran and whose evidence is lost, by the kubelet; else None."""
    code = run.state.exit_code if run.state is not None and run.plan.agent.pod_restarts is not None else None
    return None if code is None or _has_begun(run) or code in _NEVER_RAN else code


def _evidence_lost(run: RunEvidence) -> str | None:
    """Explain a run whose pods are gone or whose logs were cut: its end is known, its work is not."""
    if (code := _pods_code(run)) is not None:
        request = ", after SIGTERM" if code == EXIT_POD_STOPPED else ""
        return f"The pod ended with exit code {code}{request}, but its evidence is lost: the pod or its log was deleted"
    if run.evidence.exited is None or run.evidence.first(AgentStarted) is not None:
        return None
    if not (missing := run.evidence.missing_lines):
        return None
    return f"The target ended, but {count(missing, 'line')} of the evidence for it, its beginning too, never arrived"


def _engine(run: RunEvidence) -> str | None:
    if _has_begun(run) or _pods_code(run) is not None:
        return None
    if refusal := next((f.message for f in run.evidence.findings if f.severity == "error"), None):
        return f"The run could not be started: {refusal}"
    if run.state is None and run.evidence.first(HostLaunched) is None:
        doing = "its image was built" if run.plan.image and run.plan.image.build else "it was prepared"
        return f"The run never started: seatrial was interrupted while {doing}"
    if run.state is None or run.state.status == "gone":
        if run.evidence.first(HostLaunched) is None:
            return f"The run never started, and {run.plan.backend} no longer knows it"
        if run.plan.image is None:
            return None  # a process of this machine, whose agent was lost before its first line
        return f"{run.plan.backend} no longer knows the run: it was deleted there before its evidence was read"
    if not run.state.error and (run.state.exit_code or 0) > 128:
        return None  # a signal ended it: it had been started, and the agent was lost before its first line
    reported = f": {clean(run.state.error)}" if run.state.error else ""
    code = "" if run.state.exit_code is None else f" (exit code {run.state.exit_code})"
    return f"{run.plan.backend} could not start the run{code}{reported}"


def _host_oom(run: RunEvidence) -> str | None:
    killed = run.evidence.of_end("oom_kills") or (run.state is not None and run.state.oom_killed)
    if run.evidence.of_end("exit_code") == 0 or not killed:
        return None
    peak, limit = run.measurements.memory_peak_bytes, run.measurements.memory_limit_bytes
    if limit and peak and peak > 0.95 * limit:  # the last requested pages were never given
        used = f" at the limit of {format_bytes(limit)}"
    else:
        used = (f" at {format_bytes(peak)}" if peak else "") + (f" of {format_bytes(limit)} allowed" if limit else "")
    return f"Out of host memory: the kernel's OOM killer ended the target{used}"


def _timeout(run: RunEvidence) -> str | None:
    if run.evidence.exited is None or run.evidence.exited.keys.get("cause") != "timeout":
        return None
    limit = run.plan.agent.timeout_s
    words = f"Stopped at the time limit of {format_seconds(limit)}" if limit else "Stopped at the time limit"
    return words + _silence(run)


def _silence(run: RunEvidence) -> str:
    """Return how long a target that ran out of time had printed nothing, unless it serves, and the use of its GPUs."""
    started = run.evidence.target_started
    stop = next((each for each in run.evidence.all(Signal) if each.text("origin") == "timeout"), None)
    if run.plan.job.serve is not None or started is None or stop is None or run.output.chunk_times is None:
        return ""
    began, ended = started.number("t") or 0.0, stop.number("t") or 0.0
    if abs(ended - began - (stop.at_s - started.at_s)) > SILENT_S:  # the clock was set meanwhile
        return ""
    last = max((at for at in run.output.chunk_times if at < ended), default=began)
    if (silent_s := ended - max(last, began)) < max(SILENT_S, SILENT_SHARE * (ended - began)):
        return ""
    printed = f"; it had printed nothing for the last {format_seconds(silent_s)}"
    inside = [each for each in run.evidence.samples if stop.at_s - silent_s <= each.at_s <= stop.at_s]
    each_gpu = (sample.gpus.get(gpu.uuid, {}) for sample in inside for gpu in run.expected)
    busy = [reading["utilization_pct"] for reading in each_gpu if "utilization_pct" in reading]
    if not busy:
        return printed
    whose = "its GPU was" if len(run.expected) == 1 else "its GPUs were"
    return f"{printed}, and {whose} {sum(busy) / len(busy):.0f} % busy"


def _stopped(run: RunEvidence) -> str | None:
    signals = [moment for moment in run.evidence.all(Signal) if _requests_stop(run, moment)]
    stops = [moment for moment in signals if moment.number("signal") in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    if not stops or run.evidence.exited is None:
        return None
    by_user = any(moment.keys.get("origin") == "user" for moment in signals)
    if not by_user and unused_gpus(run):  # a target can send a signal to its own PID 1
        return None
    reported = _last_words(run)
    if not by_user and run.plan.agent.pod_restarts is not None and reported and EXIT_POD_STOPPED not in reported:
        return None  # it had ended by itself when the pod was to end
    name = signal_name(stops[0].number("signal") or 0)
    clean_end = "; the target ended cleanly" if run.evidence.of_end("exit_code") == 0 else ""
    if clean_end and not by_user and ended_unfinished(run):
        clean_end = "; the target exited with 0, but had not finished"
    after = format_seconds(_run_s(run, stops[0]))
    if by_user:
        return f"Stopped by the user after {after}{clean_end}"
    return f"Stopped by {name}, sent to the agent by the engine or the run itself, after {after}{clean_end}"


def ended_unfinished(run: RunEvidence) -> bool:
    """Return whether a node's agent last reported that its pod had to end while the target was still running."""
    return run.plan.agent.pod_restarts is not None and EXIT_POD_STOPPED in _last_words(run)


def _last_words(run: RunEvidence) -> set[float | None]:
    """Return the last exit code of each node's agent."""
    return {*{each.number("node"): each.number("exit_code") for each in run.evidence.all(AgentFinished)}.values()}


def users_signals(run: RunEvidence) -> set[float | None]:
    """Return the signals by which the user requested the end; SIGINT is Ctrl-C. Only the host reports that."""
    return {moment.number("signal") for moment in _requests(run, "user")}


def _requests(run: RunEvidence, origin: str) -> list[Moment]:
    """Return the user's or the search's requests to end the run, which only the host reports."""
    signals = run.evidence.all(Signal)
    return [each for each in signals if (each.keys.get("source"), each.keys.get("origin")) == ("host", origin)]


def _requests_stop(run: RunEvidence, moment: Moment) -> bool:
    """Return whether a signal, a user's by the host's report alone, requests the end, and no pod has begun since."""
    source, origin, node = moment.keys.get("source"), moment.keys.get("origin"), moment.number("node")
    if origin != "engine" and (origin, source) != ("user", "host"):
        return False
    later = (start for start in run.evidence.all(TargetStarted) if start.at_s > moment.at_s)
    return source != "agent" or all(start.number("node") != node for start in later)


def _ended_by_search(origin: str, words: str, otherwise: str) -> Explain:
    """Explain the end of a trial that its search requested, for its reason or ``otherwise``."""

    def explain(run: RunEvidence) -> str | None:
        requests = _requests(run, origin)
        if not requests or run.evidence.exited is None:
            return None
        why = requests[0].text("why") or otherwise
        return f"{words} after {format_seconds(_run_s(run, requests[0]))}" + (f": {why}" if why else "")

    return explain


def _signal(run: RunEvidence) -> str | None:
    if not (number := run.evidence.of_end("signal")):
        return None
    name = signal_name(number)
    hint = _HINTS.get(name, "")
    if name == "SIGABRT" and not run.output.last_line:
        hint = "a library aborted, and printed no reason"
    return f"The target was killed by {name}" + (f" ({hint})" if hint else "")


def _script_error(run: RunEvidence) -> str | None:
    if not (code := run.evidence.of_end("exit_code")):
        return None
    if run.evidence.target_started is None:  # the agent notes why it could not run it
        note = run.evidence.last(Note)
        return f"The target could not be run: {(note and note.text('message')) or f'exit code {code}'}"
    printed = run.output.exception or run.output.last_line
    return f"The target exited with {code}" + (f": {printed}" if printed else " and printed no reason")


def _gpu_not_used(run: RunEvidence) -> str | None:
    if not (unused := unused_gpus(run)):
        return None
    which = "the GPU" if len(run.expected) == 1 else f"{len(unused)} of {len(run.expected)} GPUs"
    return f"The target finished, but never used {which} assigned to it"


def _finished(run: RunEvidence) -> str | None:
    wall_s = run.measurements.wall_s
    if run.evidence.of_end("exit_code") != 0:
        return None
    return "Finished" if wall_s is None else f"Finished in {format_seconds(wall_s)}"


def _killed_by_user(run: RunEvidence) -> str | None:
    """Explain a target that was killed with its agent."""
    if run.evidence.exited is not None or signal.SIGKILL not in users_signals(run):
        return None
    request = next(m for m in run.evidence.all(Signal) if m.number("signal") == signal.SIGKILL)
    return f"Killed by the user after {format_seconds(_run_s(run, request))}"


def _agent_lost(run: RunEvidence) -> str | None:
    if run.evidence.exited is not None:
        return None
    code = run.state.exit_code if run.state else None
    note = run.evidence.last(Note)
    if note is not None and run.evidence.target_started is None:  # its last word
        return f"The agent ended before the target was started: {note.text('message')}"
    reported = f" ({run.plan.backend} reports exit code {code})" if code is not None else ""
    after = f" after {count(len(run.evidence.samples), 'sample')}" if run.evidence.target_started else ""
    unknown = "so the target's exit is unknown"
    if run.plan.image is not None and run.state is not None and run.state.status == "gone":
        what = "container was" if run.plan.agent.pod_restarts is None else "pods were"
        return f"The {what} removed from {run.plan.backend} while it ran{after}, {unknown}"
    return f"The agent was lost{after}{reported}: it was killed or the machine went down, {unknown}"


#: ID → the sentence if it holds. A cause stands above those that its evidence outranks.
CAUSES: tuple[tuple[str, Explain], ...] = (
    ("evidence-contradicted", _contradicted),
    ("gpu-contract", _gpu_contract),
    ("running", _running),
    ("stopped", _stopped_before_start),
    ("engine-error", _engine),
    ("host-oom", _host_oom),
    ("timeout", _timeout),
    ("pruned", _ended_by_search("pruner", "Pruned", "")),
    ("stopped", _ended_by_search("search", "Stopped by the search", _SEARCH_OVER)),
    ("stopped", _stopped),
    ("evidence-lost", _evidence_lost),
    ("gpu-not-used", _gpu_not_used),
    ("finished", _finished),
    ("gpu-lost", _shown_by("A GPU was lost during the run", "gpu-lost", "device-access-lost")),
    ("cuda-oom", _shown_by("Out of GPU memory", "cuda-out-of-memory")),
    ("shared-memory", _shown_by("Shared memory (/dev/shm) was exhausted", *_OF_SHARED_MEMORY)),
    ("signal", _signal),
    ("script-error", _script_error),
    ("stopped", _killed_by_user),
    ("agent-lost", _agent_lost),
)
