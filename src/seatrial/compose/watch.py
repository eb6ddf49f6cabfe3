"""Follow a group that Compose has been given: adopt its runs as they start, until nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from seatrial import errors
from seatrial.backends import table
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.compose.client import Container, compose_of, containers
from seatrial.compose.console import Console, MemberOutput
from seatrial.compose.group import Group, GroupStore, Member, ended, identity, is_alive
from seatrial.compose.read import with_profiles
from seatrial.compose.up import LOG, OVERRIDE, RENDERED, hand_over
from seatrial.events import AgentFinished, AgentStarted, Signal
from seatrial.findings.finding import Finding
from seatrial.job.plan import EngineAddress
from seatrial.runs.leases import record_start
from seatrial.runs.run import Run
from seatrial.runs.status import finalise
from seatrial.runs.watch import follow, handled, request_interrupt, request_stop
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.records import Folder, Process

#: The engine is queried this often for the group's containers: about 20 ms of CPU each time.
LOOK_S = 0.5
TELLS_EXIT = r"\s*\S*{}[-_]\d+ exited with code \d+\s*"  # Compose's own; 2.40 clears the terminal's line before it
#: Between Ctrl-C and ``compose stop`` for services without runs.
_DOWN_TIMEOUT_S = 120.0


class Watch:
    """Follows one group.

    ``again``: another command line began it: what was killed with it, or with the engine, is started once more.
    ``stops``: stop everything at the first look, as Ctrl-C does.
    """

    def __init__(
        self, store: GroupStore, group: Group, console: Console, host: Host, *, again: bool = False, stops: bool = False
    ) -> None:
        self._again, self._requested = again, stops
        self._cut_off: dict[str, bool] = {}
        self._no_reader: BrokenPipeError | None = None
        self._store, self._group = store, store.change_group(group, launcher=identity(Process.this()))
        self._backend, self._console, self._host = engine_of(group, host), console, host
        compose = compose_of(self._backend, with_profiles(host, tuple(group.details.get("profiles") or ())))
        override, rendered = (store.folder(group.id) / name for name in (OVERRIDE, RENDERED))
        files = tuple(Path(file) for file in group.details["files"])
        self._compose = replace(compose, files=files, override=override, rendered=rendered)
        self._project = str(group.details["project"])
        self._lines = MemberOutput(console, [member.name for member in group.members])
        self._threads: dict[str, threading.Thread] = {}
        self._presses = 0
        self._end_task: Callable[..., None] = request_stop
        self._stopping, self._notified = False, set[str]()
        self._services_announced = False

    def to_the_end(self) -> Group:
        """Follow until every member has ended, or raise BrokenPipeError; Ctrl-C stops them all, a second kills them."""
        with handled((signal.SIGINT, signal.SIGTERM), self._on_interrupt):
            while not all(member.ended for member in self._group.members):
                self._look()
                if self._no_reader is not None and not self._stopping:
                    raise self._no_reader
                time.sleep(LOOK_S)
            for thread in self._threads.values():
                thread.join()
            with contextlib.suppress(errors.SeatrialError):  # volumes hold what the tasks have made, and stay
                self._compose.ask("down", timeout_s=_DOWN_TIMEOUT_S)
        return self._group

    # ------------------------------------------------------------------ looking

    def _look(self) -> None:
        if self._presses or self._requested:
            self._stop()
        starting = self.is_starting()
        found = containers(self._backend, self._project)
        self._group = self._store.read(self._group.id) or self._group
        self._stopping |= bool(self._group.details.get("stopping"))  # seatrial runs stop --all, of another process
        waiting = []
        for member in self._group.members:
            container = found.get(member.name)
            if member.ended:
                continue
            if container is not None and container.status != "created" and not self._is_cut_off(member, container):
                self._look_at(member, container)
            elif not starting and member.name not in self._threads:
                waiting.append(member)
        if waiting:
            self._without_compose(waiting, found)
        self._announce_services()

    def _is_cut_off(self, member: Member, container: Container) -> bool:
        """Return True if the container ended with its engine and is to be started again."""
        if (name := member.name) not in self._cut_off:
            ended = container.status == "exited" and name not in self._threads and member.run is not None
            if not (self._again and ended and not self._stopping):
                return False
            self._cut_off[name] = was_cut_off(self._store.runs.run(str(member.run)), self._backend)
        if container.status == "running" or not (self._again or self.is_starting()):
            self._cut_off[name] = False  # it has been started again
        return self._cut_off[name]

    def _look_at(self, member: Member, container: Container) -> None:
        if member.run is not None:
            self._adopt(member, self._store.runs.run(member.run))
        elif container.status == "running":
            if member.state != "running":
                self._change(member.name, state="running", started_at=time.time())
                self._show_logs(member.name)
        else:
            good = container.exit_code == 0 or self._stopping
            state = "stopped" if self._stopping and member.role == "service" else "done" if good else "failed"
            why = "" if good else f"exit code {container.exit_code}"
            if member.started_at is None:
                self._show_logs(member.name)
            self._change(member.name, state=state, why=why, exit_code=container.exit_code, ended_at=time.time())

    def is_starting(self) -> bool:
        """Return True while ``docker compose up`` goes on."""
        return is_alive(self._group.details.get("compose"))

    def _adopt(self, member: Member, run: Run) -> None:
        """Record that the member's container runs, and follow it in a thread of its own."""
        if member.name in self._threads:
            return
        handle = run.handle() or self._backend.find(run.id, run.folder)
        if handle is None:
            return
        if not run.ended:
            with run.lock("adopt"):
                if run.handle() is None:
                    record_start(run, run.plan(), self._backend, handle, self._host)
        self._change(member.name, state="running", started_at=member.started_at or time.time())
        thread = threading.Thread(target=self._follow, args=(member.name, run), name=member.name, daemon=True)
        self._threads[member.name] = thread
        thread.start()

    def _follow(self, name: str, run: Run) -> None:
        try:
            follow(run, self._lines.writer(name), self._host, echo=lambda line: self._console.note(f"{name}: {line}"))
            self._lines.end(name)
            finalise(run, self._host)
            if (summary := run.summary()) is None:
                raise errors.SeatrialError("it has no receipt")
            self._change(name, **ended(summary), ended_at=time.time())
        except errors.EngineUnavailableError:  # its end is recorded when the engine is back: here, or at the next up
            del self._threads[name]
        except BrokenPipeError as error:  # nobody reads the output; the member goes on
            self._no_reader = error
        except (errors.SeatrialError, OSError) as error:
            self._change(name, state="failed", why=str(error), ended_at=time.time())

    def _change(self, name: str, **changes: object) -> None:
        self._group = self._store.change(self._group, name, **changes)

    def _show_logs(self, name: str) -> None:
        """Print the output of a service without a run, until it ends."""
        argv = self._compose.argv("--ansi", "never", "logs", "--follow", "--no-color", "--no-log-prefix", name)
        write, cwd = self._lines.writer(name), self._compose.files[0].parent

        def show(line: str) -> None:
            if not re.fullmatch(TELLS_EXIT.format(re.escape(name)), line):
                write("stdout", line.encode() + b"\n")

        _in_thread(command.stream, argv, show, env=self._host.env, cwd=cwd, apart=True)

    def _announce_services(self) -> None:
        """Stop services at the next look when no task is left and one failed; else name those that still serve."""
        left = [member for member in self._group.members if not member.ended]
        if self._services_announced or self._stopping or not left or any(each.role == "task" for each in left):
            return
        tasks = [member for member in self._group.members if member.role == "task"]
        if failed := ", ".join(each.name for each in tasks if each.state == "failed"):
            self._console.note(f"{failed} failed, and no task is left to serve")
            self._presses = max(1, self._presses)
        elif all(each.state == "running" for each in left):
            self._services_announced = True
            names = ", ".join(each.name for each in left)
            before = "every task has ended; " if tasks else ""
            self._console.note(f"{before}{names} still serve{'s' * (len(left) == 1)}: Ctrl-C stops what is left")

    def _without_compose(self, waiting: list[Member], found: Mapping[str, Container]) -> None:
        """Launch members again, or end them, that Compose had not started when it ended."""
        doomed = [member for member in waiting if self._failed_needs(member)]
        if self._again and not self._stopping and len(doomed) < len(waiting):
            others = [member for member in self._group.members if not member.ended and member not in waiting]
            # else the ended ones are recorded first
            if all(found[member.name].status == "running" for member in others):
                self._launch_again([member for member in (*others, *waiting) if member not in doomed])
            return
        names = {member.name for member in waiting}
        for member in waiting:
            if all(self._group.member(need).ended for need in member.needs if need not in names):
                self._never_started(member)  # its reason is known

    def _launch_again(self, members: list[Member]) -> None:
        """Start Compose again; what runs stays, and what has ended well is not waited for, nor done again."""
        self._again = False
        if cut_off := [member.name for member in members if self._cut_off.get(member.name)]:
            self._console.note(f"{', '.join(cut_off)} ended from outside, as when the engine is killed: starting again")
        if missing := ", ".join(each.name for each in members if each.state == "waiting" and each.name not in cut_off):
            self._console.note(f"Compose was killed too: starting {missing}")
        names = [member.name for member in members]
        log = self._store.folder(self._group.id) / LOG
        process = self._compose.bring_up(log, "--no-deps", "--no-recreate", *names)
        runs = [self._store.runs.run(m.run) for m in members if m.run is not None and m.state == "waiting"]
        self._group = hand_over(self._store, self._group, runs, process, self._host)

    def _failed_needs(self, member: Member) -> list[str]:
        states = {name: self._group.member(name) for name in member.needs}
        return [name for name, each in states.items() if each.ended and each.state != "done"]

    # ------------------------------------------------------------------- ending

    def _never_started(self, member: Member) -> None:
        """Record that Compose has ended without starting this member, and why."""
        printed = last_compose_line(self._store.folder(self._group.id))
        failed = self._failed_needs(member)
        if self._stopping:
            state, why = "stopped", "stopped before it was started"
        elif failed:
            state, why = "skipped", f"{failed[0]} did not end well"
        else:
            state, why = "failed", printed or "Compose did not start it"
        if member.run is not None:
            run = self._store.runs.run(member.run)
            run.give_up()
            kind = "stopped" if self._stopping else "engine-refused"
            run.record(Finding(kind, "error", why, cause=printed, fix="seatrial up").event())
            finalise(run, self._host)
        code = None if self._stopping else errors.EXIT_TARGET_FAILED
        self._change(member.name, state=state, why=why, exit_code=code, ended_at=time.time())
        self._console.note(f"{member.name} was not started: {why}")

    def _on_interrupt(self, number: int, _frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses == 1 and number == signal.SIGINT:
            self._end_task = request_interrupt
        if self._presses == 2:
            self._console.note("Killing what is left.")
            _in_thread(self._compose.ask, "kill", timeout_s=_DOWN_TIMEOUT_S)

    def _stop(self) -> None:
        """Stop members that run, each once, with time to save: services by SIGTERM, tasks as by Ctrl-C; return at once.

        A container that Compose starts meanwhile is stopped at a later look.
        """
        if not self._stopping:
            self._stopping = True
            self._group = self._store.change_group(self._group, details={**self._group.details, "stopping": True})
            if self.is_starting():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._group.details["compose"][0], signal.SIGTERM)
        live = [each for each in self._group.members if each.state == "running" and each.name not in self._notified]
        self._notified.update(member.name for member in live)
        if live:
            again = " Press Ctrl-C again to kill." if self._presses else ""
            self._console.note(f"Stopping {', '.join(member.name for member in live)}.{again}")
        for run, role in [(self._store.runs.run(member.run), member.role) for member in live if member.run]:
            if (handle := run.handle()) is not None:
                act = self._end_task if role == "task" else request_stop
                _in_thread(act, run, self._backend, handle, run.plan().job.grace_s)
        if plain := [member.name for member in live if member.run is None]:
            _in_thread(self._compose.ask, "stop", *plain, timeout_s=_DOWN_TIMEOUT_S)


def engine_of(group: Group, host: Host) -> ContainerEngine:
    """Return the engine on which a group was brought up."""
    engine = table.engine("docker", host)
    at = group.details.get("engine")
    return engine if at is None else engine.bound_to(EngineAddress.model_validate(at))


def was_cut_off(run: Run, backend: ContainerEngine) -> bool:
    """Return whether the engine died under its container: no exit event from the agent, and not out of memory; or the
    restarted engine ended it. A run that the user stopped stays stopped.
    """
    handle = run.handle() or backend.find(run.id, run.folder)
    if handle is None or not handle.framed or run.ended:
        return False
    state = backend.state(handle)
    if state.oom_killed:
        return False
    with backend.collect(handle, run.folder, lambda line: None):
        pass
    last: list[str] = []  # kinds of events since the last start
    for event in run.events()[0]:
        if event["type"] == AgentStarted.type:
            last = [AgentStarted.type]
        elif event["type"] in (AgentFinished.type, Signal.type):
            if event.get("origin") == "user":
                return False
            last.append(event["type"])
    stopped = Signal.type in last and state.exit_code != 0
    return AgentStarted.type in last and (AgentFinished.type not in last or stopped)


def _in_thread(act: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Call a function in its own thread; errors of the engine and the disk show later."""
    quietly = errors.fallback(None, on=(errors.SeatrialError, OSError))(act)
    threading.Thread(target=quietly, args=args, kwargs=kwargs, daemon=True).start()


@errors.fallback(None, on=(OSError, errors.SeatrialError))
def last_compose_line(folder: Path) -> str | None:
    """Return the last line on a failure that ``docker compose up`` printed; None without one."""
    lines = Folder(folder).load(LOG).decode(errors="replace").splitlines()
    printed = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "time="))]
    return printed[-1] if printed else None


def exit_code(group: Group) -> int:
    """Return the exit code of the first member that failed; else 130 if a task was stopped."""
    if failed := [member for member in group.members if member.state == "failed"]:
        first = min(failed, key=lambda member: member.ended_at or 0.0)
        return (first.exit_code if first.run is not None else None) or errors.EXIT_TARGET_FAILED
    if any(member.state == "stopped" and member.role == "task" for member in group.members):
        return errors.EXIT_INTERRUPTED
    return errors.EXIT_DONE
