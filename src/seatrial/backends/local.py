"""Backend local: the agent as a process of this machine, in a session of its own, so that it outlives the caller."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from seatrial.backends.base import OF_PROCESSES, Echo, EngineFacts, Handle, State, confirm, reported_end, this_machine
from seatrial.errors import DiskError, EngineError
from seatrial.job.in_container import AGENT_PYTHON_FLAGS
from seatrial.job.plan import EngineAddress, Plan
from seatrial.probe import processes
from seatrial.system import agent_archive, command
from seatrial.system.text import as_typed

#: venv alone takes seconds; a slow disk may need more.
CREATE_TIMEOUT_S = 300.0
COMPLETE = "seatrial-complete"

POLL_S = 0.05
#: Rounds of SIGKILL: a process may fork during the first one (its children stay in its session), and a killed one may
#: take a while to end.
KILL_ROUNDS = 100


def ensure_venv(directory: Path, requirements: Sequence[str], python: Path, progress: Echo) -> Path:
    """Return the interpreter of a virtual environment with these requirements; make it if there is none.

    It is made in place, since its scripts name their interpreter by absolute path; a file marks a complete one, and one
    without the mark is made anew. A lock keeps two callers from making the same.

    ``directory``: holds one folder per content. ``python``: the interpreter it is based on. ``progress``: gets each
    step, and pip's output line by line. Raises EngineError with pip's own reason, DiskError.
    """
    interpreter = venv_interpreter(directory, requirements, python)
    folder = interpreter.parent.parent
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _make(folder, requirements, python, progress)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            (folder / COMPLETE).touch()
    return interpreter


def venv_interpreter(directory: Path, requirements: Sequence[str], python: Path) -> Path:
    """Return the path of ``ensure_venv``'s interpreter. Makes nothing."""
    content = "\n".join([str(python), command.check([str(python), "-VV"], timeout_s=30).stdout, *requirements])
    return directory / hashlib.sha256(content.encode()).hexdigest()[:16] / "bin" / "python"


def _make(folder: Path, requirements: Sequence[str], python: Path, progress: Echo) -> None:
    progress("creating the virtual environment")
    command.check([str(python), "-m", "venv", str(folder)], timeout_s=CREATE_TIMEOUT_S)
    progress("installing the packages with pip")
    progress(f"packages to install: {sum(not line.startswith('-') for line in requirements)} in {folder}")
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    ended = command.stream([*pip, "--progress-bar", "off", "-r", str(listed)], progress)
    if ended.exit_code == 0:
        return
    if "No space left on device" in ended.stdout:
        raise DiskError(f"No space left for the packages in {folder.parent}", run=f"df -h {as_typed(folder.parent)}")
    errors = [line for line in ended.stdout.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else ended.last_line()
    packages = [line for line in requirements if not line.startswith("-")]  # an option may hold an index's password
    message = f"The project's requirements cannot be installed: {reason}"
    raise EngineError(message, run=shlex.join([str(python), "-m", "pip", "install", "--dry-run", *packages]))


class Local:
    """Runs without an engine: the agent checks, samples and records; nothing isolates or limits the target."""

    name = "local"
    traits = OF_PROCESSES
    images = None

    def __init__(self, at: EngineAddress | None = None) -> None:
        """Set up a backend. ``at``: the machine to find runs of; None: this one."""
        self._at = at

    def bound_to(self, engine: EngineAddress) -> Local:
        return Local(engine)

    def facts(self) -> EngineFacts:
        version, works = platform.python_version(), Path("/proc/self/stat").exists()
        found = f"Python {version} at {sys.executable}"
        return EngineFacts(
            self.name,
            available=works,
            reason=found if works else "this system has no /proc: the local backend runs on Linux",
            version=version,
            rootless=os.getuid() != 0,
            cpu_limits=False,
            memory_limits=False,
            address=this_machine(),
        )

    def compile(self, plan: Plan) -> list[str]:
        record = plan.agent.evidence_dir
        return [plan.python or sys.executable, *AGENT_PYTHON_FLAGS, f"{record}/agent.pyz", f"{record}/agent.json"]

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        agent_archive.build(run_dir).rename(run_dir / "agent.pyz")
        pid = command.spawn_detached(self.compile(plan), output=run_dir / "agent.out", cwd=run_dir)
        process = processes.read(pid)
        assert process is not None, "a child that nobody has waited for is in /proc"
        return _handle(process, plan.run_id, run_dir)

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        words = [os.fsencode(run_dir / name) for name in ("agent.pyz", "agent.json")]  # as compile ends
        for process in processes.everyone().values():
            if process.state != "Z" and processes.command_line(process.pid).split(b"\0")[-3:-1] == words:
                return _handle(process, run_id, run_dir)
        _confirm(self._at)
        return None

    def shell(self, plan: Plan, run_dir: Path) -> int:
        agent_archive.build(run_dir).rename(run_dir / "agent.pyz")
        return command.call_interactive(self.compile(plan), cwd=run_dir).exit_code

    def collect(self, handle: Handle, run_dir: Path, echo: Echo) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state(self, handle: Handle) -> State:
        """Return ``gone`` if the agent has ended without its last event: killed, or the machine went down."""
        if _is_running(handle):
            return State("running")
        state = reported_end(handle.folder)
        if state.status == "gone":
            _confirm(handle.engine)
        return state

    def stop(self, handle: Handle, grace_s: float) -> None:
        if not _is_running(handle):
            return
        os.kill(_pid(handle), signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while _is_running(handle):
            if time.monotonic() >= deadline:
                self.kill(handle)
                return
            time.sleep(POLL_S)

    def interrupt(self, handle: Handle) -> bool:
        if _is_running(handle):
            os.kill(_pid(handle), signal.SIGINT)
        return True

    def kill(self, handle: Handle) -> None:
        sessions: set[int] = set()
        for _ in range(KILL_ROUNDS):
            sessions |= _sessions(handle)
            family = [one for one in processes.everyone().values() if one.session in sessions and one.state != "Z"]
            if not family:
                return
            for process in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(POLL_S)
        stuck = ",".join(str(process.pid) for process in family)
        message = f"Processes of this run do not end: {stuck}"
        cause = "they are blocked in the kernel, often on a driver or a network file system"
        raise EngineError(message, cause=cause, run=f"ps -o pid,stat,wchan:32,cmd -p {stuck}")

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        if not _is_running(handle):
            raise EngineError("The run has ended: commands need a running run", run="seatrial runs ls")
        agent = handle.agent()
        return command.call_interactive(argv, env=os.environ | agent["env"], cwd=Path(agent["workdir"])).exit_code

    def remove(self, handle: Handle) -> None:
        """Do nothing: the folder is all of an ended local run."""


def _handle(process: processes.GpuProcess, run_id: str, run_dir: Path) -> Handle:
    pid, ticks, folder, engine = str(process.pid), str(process.started_ticks), str(run_dir), this_machine()
    return Handle(backend="local", id=pid, started=ticks, run_id=run_id, run_dir=folder, engine=engine)


def _confirm(machine: EngineAddress | None) -> None:
    """Refuse a process of another machine, which shares the folder. Raises EngineUnavailableError."""
    if machine is not None:
        confirm("Machine", machine, this_machine, f"ssh {machine.endpoint} seatrial runs ls")


def _pid(handle: Handle) -> int:
    """Return the agent's process ID; 0, which no process has, where somebody has changed the handle."""
    return int(handle.id) if handle.id.isdecimal() and len(handle.id) < 10 else 0


def _is_running(handle: Handle) -> bool:
    process = processes.read(_pid(handle))
    if process is None or str(process.started_ticks) != handle.started:
        return False
    if process.state != "Z":
        return True
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)  # our own child, when this process has started it
    return False


def _sessions(handle: Handle) -> set[int]:
    """Return the sessions of the agent and of all below it: all in them is the run's, even if init has adopted it."""
    leader = _pid(handle)
    agent = processes.read(leader)
    if not leader or (agent is not None and str(agent.started_ticks) != handle.started):
        return set()  # no ID, or another process's, which it could not get while our session lived
    return {leader} | {process.session for process in processes.descendants(leader)}
