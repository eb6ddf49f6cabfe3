"""GPU leases: two runs started together get different GPUs, or parts of one where they request parts.

One file a GPU in a folder that every user of the machine shares. A lease names its run; it is void once that run's
launcher has gone without starting it, or its process or container has ended, so nobody has to clean up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from seatrial.backends import table
from seatrial.backends.base import Backend, Handle, State
from seatrial.errors import DiskError, EngineUnavailableError, SeatrialError, UntrustedPathError, fallback
from seatrial.events import HostLaunched
from seatrial.job.plan import EngineAddress, Plan
from seatrial.job.value import Value
from seatrial.planning.secrets import remove_secrets
from seatrial.probe import processes
from seatrial.runs.run import Run
from seatrial.system.files import status_of
from seatrial.system.host import Host
from seatrial.system.records import Folder, Process
from seatrial.system.text import as_typed

#: Moves the folder, e.g. for tests or for machines that share no /var/lock.
FOLDER_VARIABLE = "SEATRIAL_LEASES"
#: Every user may put a file into the folder. Its content becomes part of paths and sentences.
_MOST_BYTES = 64 * 1024
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
#: Longest wait for the lock (a command that lists an engine's runs holds it for seconds); for other users' leases.
_LOCK_S, _POLL_S, _OTHERS_S = 120.0, 0.05, 20.0
#: Ten tenths are one.
_ROUNDING = 1e-6


class Lease(Value):
    """One GPU, or ``share`` of it, held by one run.

    ``launcher``: the command line that took it; it counts while ``handle``, the started run, is None. ``backend``,
    ``engine``, ``record``: where to look for a run whose launcher died before it wrote the handle.
    """

    model_config = ConfigDict(extra="ignore")

    gpu_uuid: str = Field(pattern=_NAME)
    run_id: str = Field(pattern=_NAME)
    launcher: Process
    share: float = Field(default=1.0, gt=0, le=1)
    handle: Handle | None = None
    backend: str | None = None
    engine: EngineAddress | None = None
    record: str | None = None

    @property
    def name(self) -> str:
        # The run's ID keeps another user's void lease, which the sticky bit protects, out of the way.
        return f"{self.gpu_uuid}--{self.run_id}.json"


def default_folder(host: Host) -> Path:
    """Return ``$SEATRIAL_LEASES``, else a folder in /var/lock (tmpfs on every systemd distribution), else in /tmp."""
    if chosen := host.env.get(FOLDER_VARIABLE):
        return Path(chosen)
    parent = Path("/var/lock")
    return (parent if os.access(parent, os.W_OK) else Path(tempfile.gettempdir())) / "seatrial-leases"


class Leases:
    """The lease folder; ``is_live``: whether the run behind a handle still runs.

    ``find``: the handle of a lease's run that was started without one, or None; raises EngineUnavailableError.
    """

    def __init__(
        self,
        folder: Path,
        is_live: Callable[[Handle], bool],
        find: Callable[[Lease], Handle | None] = lambda lease: None,
    ) -> None:
        self.folder = folder
        self._records = Folder(folder, mode=0o644, shared=True)
        self._is_live, self._find = is_live, find

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Choose and take under one lock. Raises UntrustedPathError: no folder, or another process keeps the lock."""
        with contextlib.ExitStack() as stack:
            try:
                self._make_folder()
                lock = stack.enter_context(self._records.open_lock(".lock"))
            except (OSError, DiskError, UntrustedPathError) as error:
                message = f"{self.folder} was not created by seatrial"
                cause = "Any user of this machine can create a file there"
                run = f"ls -la {as_typed(self.folder)}; export {FOLDER_VARIABLE}=/a/folder/of/yours"
                raise UntrustedPathError(message, cause=cause, run=run) from error
            due_s = time.monotonic() + _LOCK_S
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > due_s:
                    message = f"{self.folder / '.lock'} has been locked for {_LOCK_S:g} s by {_holder(lock.fileno())}"
                    cause = "Any user of this machine can lock it; seatrial does for a moment"
                    run = f"fuser -v {as_typed(self.folder / '.lock')}; export {FOLDER_VARIABLE}=/a/folder/of/yours"
                    raise UntrustedPathError(message, cause=cause, run=run)
                time.sleep(_POLL_S)
            yield

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with contextlib.suppress(PermissionError):  # its owner did so
                os.fchmod(descriptor, 0o1777)  # every user leases here; nobody can remove another's
        finally:
            os.close(descriptor)

    def current(self, share: float = 1.0) -> dict[str, str]:
        """Return GPU UUID → ID of a run that holds it, with the name of another user, for the leases that are not void.

        Users with few leases come first: thousands of one user stop nobody. GPUs with ``share`` left are left out.
        """
        held: dict[str, str] = {}
        sums: dict[str, float] = {}
        names = self._records.names("*.json")
        owners = {name: status.st_uid for name in names if (status := status_of(self.folder / name))}
        counts, me = Counter(owners.values()), os.getuid()
        due_s = time.monotonic() + _OTHERS_S
        for name in sorted(owners, key=lambda name: (owners[name] != me, counts[owners[name]])):
            if owners[name] != me and time.monotonic() > due_s:
                break
            lease = self._records.read(name, Lease, max_bytes=_MOST_BYTES)
            if lease is not None and self._holds(lease):
                held[lease.gpu_uuid] = lease.run_id + (_of_user(self.folder / name) if owners[name] != me else "")
                sums[lease.gpu_uuid] = sums.get(lease.gpu_uuid, 0.0) + lease.share
        return {uuid: run_id for uuid, run_id in held.items() if sums[uuid] + share > 1 + _ROUNDING}

    def take(
        self,
        gpu_uuids: Sequence[str],
        run_id: str,
        backend: str | None = None,
        record: Path | None = None,
        engine: EngineAddress | None = None,
        *,
        share: float | None = None,
    ) -> None:
        """Lease these GPUs to a run that this process is about to start. Call under ``locked``."""
        folder = None if record is None else str(record)
        where: dict[str, Any] = {"backend": backend, "engine": engine, "record": folder}
        for uuid in gpu_uuids:
            lease = Lease(gpu_uuid=uuid, run_id=run_id, launcher=Process.this(), share=share or 1.0, **where)
            self._records.write(lease.name, lease)

    def release(self, run_id: str) -> None:
        """Give back what a run holds. Leases of others stay."""
        for lease in self._of(run_id):
            self._records.remove(lease.name)

    def change(self, run_id: str, **changes: Any) -> None:
        """Let a run's leases live as long as ``handle``, which has started, or ``launcher``, which will start it."""
        for lease in self._of(run_id):
            self._records.write(lease.name, lease.changed(**changes))

    def _of(self, run_id: str) -> list[Lease]:
        own = Folder(self.folder, own=True)
        found = (own.read(name, Lease, max_bytes=_MOST_BYTES) for name in own.names(f"*--{run_id}.json"))
        return [lease for lease in found if lease is not None and lease.run_id == run_id]

    @fallback(True, on=EngineUnavailableError)  # such an engine may still run it: no GPU is given away on a guess
    def _holds(self, lease: Lease) -> bool:
        if lease.handle is None and lease.launcher.is_alive():
            return True
        handle = lease.handle or self._find(lease)
        return handle is not None and self._is_live(handle)


def _holder(descriptor: int) -> str:
    """Return the process that has locked a file, and its user. Source: proc_locks(5)."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in processes.file_bytes("/proc/locks").decode().splitlines():  # a kernel or container may hide it
        _, kind, _, _, pid, locked, *_ = line.replace("-> ", "").split()
        if (kind, locked) == ("FLOCK", file) and "->" not in line:
            return f"{processes.name(int(pid)) or 'a process'} (PID {pid}){_of_user(Path('/proc', pid))}"
    return "another process"


@fallback(" of another user", on=(KeyError, OSError))  # a user without a name; of another container, or gone
def _of_user(path: Path) -> str:
    """Return the owner of a file or process, to follow its name."""
    return f" of {path.owner()}"


# --------------------------------------------------------------------------------------- a run and its engine


def backend_of(handle: Handle, host: Host) -> Backend:
    """Return the backend of a started run, on the engine where it was started."""
    return table.backend(handle.backend, host, handle.engine)


def state_of(handle: Handle, host: Host) -> State:
    """Return the answer of the run's own engine. Raises EngineUnavailableError."""
    return backend_of(handle, host).state(handle)


def handle_of(run: Run, host: Host) -> Handle | None:
    """Return a run's handle, as written or by its label, or None if none started. Raises EngineUnavailableError."""
    handle = run.handle()
    if handle is not None or run.ended or run.given_up or run.is_starting():
        return handle
    try:
        plan = run.plan()
    except SeatrialError:  # it got no further than its folder
        return None
    backend = table.backend(plan.backend, host, plan.engine)
    with run.lock("adopt"):
        if (handle := run.handle()) is None and (handle := backend.find(run.id, run.folder)) is not None:
            record_start(run, plan, backend, handle, host)
    return handle


def record_start(run: Run, plan: Plan, backend: Backend, handle: Handle, host: Host) -> None:
    """Record that it runs: the handle first, by which everybody finds it."""
    from seatrial.images.build.size import image_bytes_of

    run.save_handle(handle)
    leases(host).change(run.id, handle=handle)
    if run.has(HostLaunched):
        return
    tag = plan.image.tag if plan.image else None
    facts = backend.images.image(tag) if backend.images and tag is not None else None
    known: dict[str, Any] = {"image_id": facts and facts.id, "image_digest": facts and facts.digest}
    known["image_bytes"] = image_bytes_of(plan, backend.images, host)
    run.record(HostLaunched(backend=backend.name, host=platform.node(), handle=handle.id, image=tag, **known))


def give_back(run: Run, host: Host) -> None:
    """Give back what a run holds: its GPUs and its secrets."""
    leases(host).release(run.id)
    remove_secrets(run.id, host)


def leases(host: Host) -> Leases:
    """Return the leases of this machine. Every user writes there, so nothing is done for a lease but look."""
    own_records = host.state_folder / "projects"

    def is_live(handle: Handle) -> bool:
        traits = table.traits(handle.backend)
        if traits is None or not traits.on_this_host:
            return False
        if not traits.isolates:
            pid, started = handle.id, handle.started or ""
            return pid.isdigit() and started.isdigit() and Process(int(pid), int(started)).is_alive()
        if not _CONTAINER_ID.fullmatch(handle.id):
            return False
        if handle.engine is not None and not _is_own_engine(handle.engine):
            return True
        return state_of(handle, host).is_live

    def find(lease: Lease) -> Handle | None:
        """Find a run whose launcher was killed before its note; remove one of ours that was made and never started."""
        record = Path(lease.record or "/")
        traits = None if lease.backend is None else table.traits(lease.backend)
        if lease.backend is None or traits is None or not traits.on_this_host:
            return None
        is_own = record.is_relative_to(own_records) and record.name == lease.run_id and ".." not in record.parts
        if not is_own or not record.is_dir():
            return None
        if traits.isolates and lease.engine is not None and not _is_own_engine(lease.engine):
            raise EngineUnavailableError(f"Engine at {lease.engine.endpoint} is not used for a lease")
        try:
            return table.backend(lease.backend, host, lease.engine).find(lease.run_id, record)
        except EngineUnavailableError:
            raise
        except (SeatrialError, OSError):
            return None

    return Leases(default_folder(host), is_live, find)


@fallback(False, on=OSError)
def _is_own_engine(engine: EngineAddress) -> bool:
    """Return whether it is a Podman store, or a socket of this user's or root's: anybody can write a lease."""
    scheme, _, path = engine.endpoint.partition("://")
    if not path:
        return scheme.startswith("/")
    return scheme == "unix" and Path(path).stat().st_uid in (0, os.getuid())
