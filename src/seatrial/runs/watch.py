"""Follow a run to its end: its output, alerts, Ctrl-C, the recorder in the background and the host's witness."""

from __future__ import annotations

import importlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from types import FrameType
from typing import Any

from seatrial import events
from seatrial.backends import table
from seatrial.backends.base import Backend, Echo, Handle, State
from seatrial.backends.log_sink import Turn
from seatrial.errors import SeatrialError, UsageError
from seatrial.events import AgentFinished, HostWitness, Signal, of_type, tail
from seatrial.job.in_container import AGENT_GRACE_S
from seatrial.job.plan import Plan
from seatrial.probe import processes
from seatrial.probe.nvml import ComputeProcess
from seatrial.probe.processes import Attribution
from seatrial.probe.sampler import Sampler
from seatrial.receipt.values import clean
from seatrial.runs.leases import backend_of, handle_of
from seatrial.runs.run import Run
from seatrial.runs.status import finalise
from seatrial.runs.streams import OfRank, OutputReader, Stream
from seatrial.system.command import own_program, spawn_detached
from seatrial.system.host import Host

Write = Callable[[Stream, bytes], None]
#: Intervals of looks at the logs, which cost two stat calls, and at the engine, which cost 20 ms of CPU.
LOG_INTERVAL_S = 0.1
FIRST_INTERVAL_S = 0.02
STATE_INTERVAL_S = 1.0
#: Judges a run (status.py imports it); loaded once the run lives, since an upgrade must not mix two versions here.
_JUDGES = "seatrial.runs.ending"
#: Bytes read of the last lines, which an ended agent wrote, and the host after it.
_LAST_LINES_BYTES = 4096
#: The agent's last line shows the end at once; the engine is queried for runs whose agent was killed.
_RECORDER_STATE_S, _RECORDER_LOG_S = 10.0, 1.0

_FINDING = events.mark(events.Found)
#: Interval between looks at the GPUs. One costs 0.04 ms a GPU on an H200, and reading the cgroup of each process there.
LOOK_S = 1.0
#: Names of other processes that are kept for each GPU.
_MOST_NAMES = 3

_HIDDEN = "a process that this machine does not show"


def follow(
    run: Run,
    write: Write,
    host: Host,
    *,
    tail: int | None = None,
    until_end: bool = True,
    echo: Echo = lambda line: None,
    just_started: bool = False,
    between_looks: Callable[[], None] = lambda: None,
    log_interval_s: float = LOG_INTERVAL_S,
    state_interval_s: float = STATE_INTERVAL_S,
) -> State | None:
    """Pass the run's output on, by default until it has ended; return its last state, None if it never started.

    Args:
        tail: begin with the last so many chunks of output; None: from the beginning.
        echo: gets a cluster's progress before any output, and the watchdog's findings.
        just_started: by the caller, so that the engine is not queried at once.
        between_looks: called after each look at the logs while the run lives.
    """
    while until_end and run.is_starting():  # its image may still be building
        time.sleep(LOG_INTERVAL_S)
    handle = handle_of(run, host)
    reader = OutputReader(run.folder)
    if tail is not None:
        reader.skip_to_last(tail)
    if handle is None:
        return None
    if run.ended:  # its folder is all; the engine, or the cluster, may be long gone
        for stream, data in chain(reader.new(), reader.rest()):
            write(stream, data)
        return State("gone")
    backend = backend_of(handle, host)
    state = State("running") if just_started else backend.state(handle)
    began = queried = time.monotonic()
    alerts = Alerts(run, from_now=tail is not None)
    with witnessing(run, run.plan(), handle), backend.collect(handle, run.folder, echo):
        while until_end and state.is_live:
            for stream, data in reader.new():
                write(stream, data)
            between_looks()
            importlib.import_module(_JUDGES)
            # A run of a second must not wait a tenth of one twice; a look costs two stat calls.
            time.sleep(min(log_interval_s, max(FIRST_INTERVAL_S, (time.monotonic() - began) / 20)))
            if time.monotonic() - queried >= state_interval_s or _has_finished(run):
                state = backend.state(handle)
                queried = time.monotonic()
                for line in alerts.new():
                    echo(line)
    for stream, data in chain(reader.new(), () if state.is_live else reader.rest()):
        write(stream, data)
    return state


def of_rank(run: Run, rank: int, write: Write) -> Write:
    """Return ``write`` for the lines of one rank alone. Raises UsageError: no node has this rank."""
    if (nodes := run.plan().agent.nodes) == 1:
        raise UsageError(f"{run.id} ran on one node: its lines have no rank", run=f"seatrial runs logs {run.id}")
    if not 0 <= rank < nodes:
        raise UsageError(f"{run.id} has no rank {rank}: 0 to {nodes - 1}", run=f"seatrial runs logs {run.id} --rank 0")
    return OfRank(rank, write)


def _has_finished(run: Run) -> bool:
    """Return whether the agent has written its last line."""
    return any(of_type(tail(str(run.events_path), _LAST_LINES_BYTES)[0], AgentFinished))


def request_stop(
    run: Run, backend: Backend, handle: Handle, grace_s: float, *, origin: str = "user", why: str | None = None
) -> None:
    """Send SIGTERM, recorded for the receipt; after ``grace_s`` the agent kills the rest, and can report it first."""
    _record_signal(run, signal.SIGTERM, origin, **({} if why is None else {"why": why}))
    backend.stop(handle, grace_s + AGENT_GRACE_S)


def request_interrupt(run: Run, backend: Backend, handle: Handle, grace_s: float) -> None:
    """Send SIGINT, recorded as the user's; the agent goes on to SIGTERM and SIGKILL. SIGTERM without SIGINT."""
    _record_signal(run, signal.SIGINT)
    if not backend.interrupt(handle):
        backend.stop(handle, grace_s + AGENT_GRACE_S)


def _kill(run: Run, backend: Backend, handle: Handle) -> None:
    _record_signal(run, signal.SIGKILL)
    backend.kill(handle)


def _record_signal(run: Run, number: signal.Signals, origin: str = "user", **more: str) -> None:
    run.record(Signal(signal=int(number), name=number.name, origin=origin, forwarded_to=[], **more))


@contextmanager
def interrupt_stops(run: Run, host: Host, echo: Echo) -> Iterator[None]:
    """Pass SIGTERM on, and Ctrl-C as SIGINT (SIGTERM to a server, which drains), then SIGTERM, then SIGKILL."""
    handle = run.handle()
    if handle is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    backend = backend_of(handle, host)
    plan = run.plan()
    job, takes_sigint = plan.job, plan.on_this_host
    grace_s, sent = job.grace_s, 0
    who, why = ("target", "") if job.serve is None else ("server", " to answer what it has accepted")
    stopping = f"Stopping: SIGTERM was sent to the {who}{why}; it is killed in {grace_s:g} s, or by another Ctrl-C."

    def act(send: Callable[..., None], *more: float) -> None:
        threading.Thread(target=send, args=(run, backend, handle, *more), daemon=True).start()

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal sent
        if sent == 0 and number == signal.SIGINT and job.serve is None:
            sent = signal.SIGINT if takes_sigint else signal.SIGTERM
            does = f"SIGTERM follows in {grace_s:g} s, or when you press Ctrl-C again"
            interrupting = f"Interrupting: SIGINT was sent to the target, as by Ctrl-C on its own terminal; {does}."
            echo(interrupting if takes_sigint else stopping)
            act(request_interrupt, grace_s)
        elif sent in (0, signal.SIGINT):
            sent = signal.SIGTERM
            echo(stopping)
            act(request_stop, grace_s)
        elif sent == signal.SIGTERM:
            sent = signal.SIGKILL
            echo("Killing it.")
            act(_kill)

    with handled((signal.SIGINT, signal.SIGTERM), on_interrupt):
        yield


@contextmanager
def handled(signals: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = [(number, signal.signal(number, handler)) for number in signals]
    try:
        yield
    finally:
        for number, earlier in previous:
            signal.signal(number, earlier)


def ensure_recorder(run: Run) -> None:
    """Start a recorder, which outlives this process, for a live run on this machine that nobody collects."""
    handle = None if run.ended else run.handle()
    if handle is None or not handle.framed or table.is_elsewhere(handle.backend):
        return
    with suppress(OSError, SeatrialError):  # a convenience
        turn = Turn(run.folder)
        free = turn.take()
        turn.give_back()
        if free:
            argv = own_program("runs", "record", run.id, "--project", str(run.place.parents[2]))
            spawn_detached(argv, output=run.folder / "recorder.log", cwd=run.folder)


def record(run: Run, host: Host) -> None:
    """Follow a run to its end, and make its receipt."""
    follow(run, lambda stream, data: None, host, state_interval_s=_RECORDER_STATE_S, log_interval_s=_RECORDER_LOG_S)
    finalise(run, host)


class Alerts:
    """Reads events.jsonl on from where it was left, or ``from_now`` on; other lines than findings cost a search."""

    def __init__(self, run: Run, *, from_now: bool = False) -> None:
        self._lines = events.Lines(str(run.events_path))
        if from_now:
            deque(self._lines.new(), maxlen=0)

    def new(self) -> Iterator[str]:
        """Yield ``warning: The run seems to hang (no step … for 300 s)``; control characters are taken out."""
        for line in self._lines.new():
            event = events.parse(line) if _FINDING in line else None
            if event is not None and event["source"] == "agent":
                seen = next(iter(event.get("evidence") or []), None)
                yield clean(f"{event.get('severity')}: {event.get('message')}" + (f" ({seen})" if seen else ""))


class Witness(threading.Thread):
    """Counts, for each GPU, looks at which the run had a context there, worked, or shared it with another process.

    ``own``: returns the run's PIDs. ``listed``: processes with a context on a GPU; None if the driver hides them.
    """

    def __init__(
        self, uuids: tuple[str, ...], own: Callable[[], set[int]], listed: Callable[[str], list[ComputeProcess] | None]
    ) -> None:
        super().__init__(name="witness", daemon=True)
        self._uuids, self._own, self._listed = uuids, own, listed
        self._done = threading.Event()
        self.seen: dict[str, dict[str, Any]] = {
            uuid: {"looks": 0, "ours": 0, "others": 0, "working": 0, "foreign": 0, "names": []} for uuid in uuids
        }

    def run(self) -> None:
        while not self._done.wait(LOOK_S):
            for uuid in self._uuids:
                self.look(uuid)

    def look(self, uuid: str) -> None:
        """Look at one GPU.

        A process whose PID is of another namespace counts as another's, unless the run has as many contexts as there
        are such processes. One whose share of the SMs the driver does not report may work.
        """
        if (listed := self._listed(uuid)) is None:
            return
        own = self._own() if listed else set()
        ours = [process for process in listed if process.pid in own]
        others = {process.pid: processes.name(process.pid) for process in listed if process.pid not in own}
        hidden = sum(name is None for name in others.values())
        unseen = hidden > 0 and hidden > sum(map(processes.has_cuda_context, own)) - len(ours)
        busy = [process.pid for process in listed if process.share_pct is None or process.share_pct > 0]
        names = [f"{others[pid]} (PID {pid})" for pid in busy if others.get(pid)] + [_HIDDEN] * unseen
        counts = self.seen[uuid]
        counts["looks"] += 1
        counts["ours"] += bool(ours)
        counts["others"] += bool(others) and not ours
        counts["working"] += any(process.share_pct for process in ours)
        counts["foreign"] += bool(names)
        counts["names"] = list(dict.fromkeys([*counts["names"], *names]))[:_MOST_NAMES]

    def stop(self) -> None:
        self._done.set()


def _own_pids(plan: Plan, handle: Handle) -> Callable[[], set[int]]:
    """Return a function that lists the PIDs of a run, of its container's or of those below its agent."""
    if plan.container is None:
        agent = int(handle.id)
        return lambda: {agent, *(process.pid for process in processes.descendants(agent))}
    attribution = Attribution()
    return lambda: {
        pid for owner, pids in attribution.containers().items() if owner.container_id == handle.id for pid in pids
    }


@contextmanager
def witnessing(run: Run, plan: Plan, handle: Handle) -> Iterator[None]:
    """Look at the GPUs of a run on this machine while open, and record the counts."""
    uuids = tuple(gpu.uuid for gpu in plan.gpus)
    if not uuids or not (plan.container or plan.on_the_host):
        yield
        return
    sampler = Sampler(uuids)
    witness = Witness(uuids, _own_pids(plan, handle), sampler.processes)
    witness.start()
    try:
        yield
    finally:
        witness.stop()
        witness.join(timeout=2 * LOOK_S)
        hung = witness.is_alive()  # in a broken driver; it is not queried again
        if not hung:
            sampler.close()
        if not run.ended and any(counts["looks"] for counts in witness.seen.values()):
            run.record(HostWitness(gpus=witness.seen))
