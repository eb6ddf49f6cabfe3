"""GPU leases: two runs started together get different GPUs, or parts of one where they ask for parts.

One file a GPU in a folder that every user of the machine shares. A lease names its run; it is void once that run's
launcher has gone without starting it, or its process or container has ended, so nobody has to clean up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seatrial.backends.base import Handle
from seatrial.errors import EngineUnavailableError, UntrustedPathError
from seatrial.job.plan import EngineAddress
from seatrial.runs.launching_process import LaunchingProcess
from seatrial.system.files import write_atomically
from seatrial.system.host import Host
from seatrial.system.nofollow import open_regular, read_regular
from seatrial.system.typed_path import as_typed

#: Moves the folder, e.g. for tests or for machines that share no /var/lock.
FOLDER_VARIABLE = "SEATRIAL_LEASES"

#: Every user may put a file into the folder. What it says becomes part of paths and sentences.
_MOST_BYTES = 64 * 1024
#: Ten tenths are one.
_ROUNDING = 1e-6
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class Lease(BaseModel):
    """One GPU held by one run.

    Attributes:
        launcher: the CLI that took it; it counts while handle is None.
        handle: the started run.
        share: of the GPU; 1 of a run that has it for itself.
        backend, engine, record: where to ask for a run whose launcher died before it could say.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    gpu_uuid: str = Field(pattern=_NAME)
    run_id: str = Field(pattern=_NAME)
    launcher: LaunchingProcess
    share: float = Field(default=1.0, gt=0, le=1)
    handle: Handle | None = None
    backend: str | None = None
    engine: EngineAddress | None = None
    record: str | None = None


def default_folder(host: Host) -> Path:
    """``$SEATRIAL_LEASES``, else a folder in /var/lock (tmpfs on every systemd distribution), else in /tmp."""
    if chosen := host.env.get(FOLDER_VARIABLE):
        return Path(chosen)
    parent = Path("/var/lock")
    return (parent if os.access(parent, os.W_OK) else Path(tempfile.gettempdir())) / "seatrial-leases"


class Leases:
    """The lease folder.

    Args:
        is_live: tells whether the run behind a handle still runs.
        find: the handle of a lease's run that was started without one, or None. Raises EngineUnavailableError.
    """

    def __init__(
        self,
        folder: Path,
        is_live: Callable[[Handle], bool],
        find: Callable[[Lease], Handle | None] = lambda lease: None,
    ) -> None:
        self.folder = folder
        self._is_live, self._find = is_live, find

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Choose and take under one lock, so that nobody chooses in between."""
        self._make_folder()
        # Reading is enough to lock it. Opened with O_CREAT, another user's file would be refused even so: the kernel's
        # fs.protected_regular guards sticky folders (sysctl/fs, "protected_regular").
        lock = self.folder / ".lock"
        with contextlib.suppress(FileExistsError):
            made = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(made, 0o644)  # whatever the umask: others must be able to read it
            os.close(made)
        try:
            file = open_regular(lock)
        except (FileNotFoundError, UntrustedPathError) as error:
            raise self._odd(lock) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise self._odd(self.folder) from error
        try:
            with contextlib.suppress(PermissionError):  # its owner did so
                os.fchmod(descriptor, 0o1777)  # every user leases here; nobody can remove another's
        finally:
            os.close(descriptor)

    def _odd(self, path: Path) -> UntrustedPathError:
        """Somebody else was here first, and has put something in the place of our folder or its lock."""
        return UntrustedPathError(
            f"{path} was not created by seatrial",
            cause="Any user of this machine can create a file there",
            run=f"ls -la {as_typed(self.folder)}; export {FOLDER_VARIABLE}=/a/folder/of/yours",
        )

    def current(self, beside: float = 1.0) -> dict[str, str]:
        """GPU UUID → ID of a run that holds it, for the leases that are not void.

        Args:
            beside: GPUs that have so much left, with what is held summed up, are not in it.
        """
        held: dict[str, str] = {}
        sums: dict[str, float] = {}
        for path in sorted(self.folder.glob("*.json")):
            lease = _read(path)
            if lease is not None and self._holds(lease):
                held[lease.gpu_uuid] = lease.run_id
                sums[lease.gpu_uuid] = sums.get(lease.gpu_uuid, 0.0) + lease.share
        return {uuid: run_id for uuid, run_id in held.items() if sums[uuid] + beside > 1 + _ROUNDING}

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
        for uuid in gpu_uuids:
            lease = Lease(
                gpu_uuid=uuid,
                run_id=run_id,
                launcher=LaunchingProcess.this_process(),
                share=share or 1.0,
                backend=backend,
                engine=engine,
                record=None if record is None else str(record),
            )
            write_atomically(self._path(lease), lease.model_dump_json().encode())

    def bind(self, run_id: str, handle: Handle) -> None:
        """The run has started: from now on its leases live as long as it does."""
        for lease in self._of(run_id):
            write_atomically(self._path(lease), lease.model_copy(update={"handle": handle}).model_dump_json().encode())

    def hand_over(self, run_id: str, launcher: LaunchingProcess) -> None:
        """Another process starts the run: until it has a handle, that one stands for it."""
        for lease in self._of(run_id):
            changed = lease.model_copy(update={"launcher": launcher})
            write_atomically(self._path(lease), changed.model_dump_json().encode())

    def release(self, run_id: str) -> None:
        """Give back what a run holds. Leases of others stay."""
        for lease in self._of(run_id):
            self._path(lease).unlink(missing_ok=True)

    def _path(self, lease: Lease) -> Path:
        # The run is in the name: a void lease of another user, which the sticky bit protects, is never in the way.
        return self.folder / f"{lease.gpu_uuid}--{lease.run_id}.json"

    def _of(self, run_id: str) -> list[Lease]:
        found = (_read(path) for path in self.folder.glob(f"*--{run_id}.json"))
        return [lease for lease in found if lease is not None and lease.run_id == run_id]

    def _holds(self, lease: Lease) -> bool:
        if lease.handle is not None:
            return self._is_live(lease.handle)
        if lease.launcher.is_alive():
            return True
        try:
            found = self._find(lease)
        except EngineUnavailableError:
            return True  # as of a handle: nobody knows that it has ended
        return found is not None and self._is_live(found)


def _read(path: Path) -> Lease | None:
    try:
        return Lease.model_validate_json(read_regular(path, most_bytes=_MOST_BYTES))
    except (OSError, UntrustedPathError, ValidationError):
        return None
