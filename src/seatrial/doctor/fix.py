"""``doctor --fix`` and ``--undo``: safe changes, each shown, agreed to, journalled, made atomically and undoable."""

from __future__ import annotations

import difflib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from seatrial.backends.containers.cdi import spec_text
from seatrial.doctor.checks.engine import daemon_json_path, merged
from seatrial.doctor.checks.toolkit import CDI_BY_DEFAULT, engine_version
from seatrial.doctor.examine import Result
from seatrial.doctor.machine import Machine
from seatrial.errors import DiskError, GpuContractError, UsageError, fallback, os_errors
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.host import Host

#: The spec in the folder that wins among those that engines read, which the toolkit chooses, too.
SPEC = "/var/run/cdi/nvidia.yaml"
#: Size of /dev/shm for containers that request none of their own.
DEFAULT_SHM = "2g"
#: The runtime as nvidia-ctk registers it. Source: nvidia-container-toolkit, pkg/config/engine/docker.
NVIDIA_RUNTIME = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}

RESTART_S = 60.0

_DIFF = {"+": "green", "-": "red", "@": "cyan"}

Ask = Callable[[str], bool]


@dataclass(frozen=True)
class Change:
    """One edit of a file or symbolic link.

    ``before``, ``after``: content, or a link's target; None when there is nothing yet.
    """

    path: Path
    why: str
    before: str | None
    after: str
    link: bool = False

    def diff(self) -> str:
        """Return the difference in the form of ``diff -u``."""
        if self.link:
            return f"+ {self.path} -> {self.after}\n"
        before, after = (text.splitlines(keepends=True) for text in (self.before or "", self.after))
        earlier = str(self.path) if self.before is not None else "/dev/null"
        lines = difflib.unified_diff(before, after, earlier, str(self.path))
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)

    def make(self) -> None:
        """Make the change. Raises DiskError, with the file left as before."""
        make_folder(self.path.parent)
        if current(self.path) != self.before:
            raise DiskError(f"{self.path} changed in the meantime; nothing was written", run="seatrial doctor --fix")
        if not self.link:
            write_atomically(self.path, self.after.encode(), _mode(self.path))
            return
        with os_errors(DiskError, f"Cannot create the link {self.path}", "sudo seatrial doctor --fix"):
            self.path.symlink_to(self.after)

    def take_back(self) -> None:
        """Undo the change. Raises DiskError if the file was edited since: that edit must not be lost."""
        if current(self.path) != self.after:
            raise DiskError(f"{self.path} was changed after the fix; leaving it as is", run=f"ls -l {self.path}")
        if self.before is not None and not self.link:
            write_atomically(self.path, self.before.encode(), _mode(self.path))
            return
        with os_errors(DiskError, f"Cannot remove {self.path}"):
            self.path.unlink()


def current(path: Path) -> str | None:
    """Return a file's content or a link's target; None if there is nothing. Raises DiskError."""
    with os_errors(DiskError, f"Cannot read {path}", "sudo seatrial doctor --fix"), suppress(FileNotFoundError):
        return str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
    return None


@fallback(0o644, on=OSError)
def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


class ChangeJournal:
    """The changes of --fix, a file a session, in the caller's state folder; --undo takes the newest back."""

    def __init__(self, host: Host) -> None:
        home = host.env.get("XDG_STATE_HOME") or f"{host.env.get('HOME') or '/root'}/.local/state"
        self.folder = Path(home) / "seatrial" / "doctor"

    def write(self, changes: Sequence[Change]) -> Path:
        """Write a session before its first change is made: a crash in between is undone, too."""
        make_folder(self.folder)
        path = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}.json"
        write_atomically(path, json.dumps([asdict(each) for each in changes], indent=1, default=str).encode(), 0o600)
        return path

    def newest(self) -> tuple[Path, list[Change]]:
        """Return the newest session. Raises UsageError if there is nothing to undo."""
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        if not files:
            raise UsageError("No fix to undo", cause=f"{self.folder} contains none", run="seatrial doctor")
        return files[-1], [Change(**{**each, "path": Path(each["path"])}) for each in json.loads(files[-1].read_text())]

    def close(self, path: Path) -> None:
        """Mark a session as undone."""
        path.rename(path.with_suffix(".undone"))


def changes_for(results: Sequence[Result], machine: Machine) -> list[Change]:
    """Return the safe changes for the findings, each path once."""
    found = {finding.id for result in results for finding in result.verdict.findings}
    changes, wanted = [], list(_daemon_settings(machine, found))
    if wanted:
        path = machine.here(daemon_json_path(machine))
        before = current(path)
        after = merged(before or "", {key: value for settings, _ in wanted for key, value in settings.items()})
        if after != before:
            changes.append(Change(path, "; ".join(why for _, why in wanted), before, after))
    changes += _spec(machine, found)
    changes += _char_links(machine, found)
    return changes


def _daemon_settings(machine: Machine, found: set[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield what to merge into daemon.json, and why."""
    if (docker := machine.docker) is None:
        return
    installed = any(machine.exists(f"{folder}/nvidia-container-runtime") for folder in ("/usr/local/bin", "/usr/bin"))
    unknown = not docker.desktop and "nvidia" not in docker.runtimes
    if unknown and installed and found & {"toolkit-missing", "runtime-unknown"}:
        yield NVIDIA_RUNTIME, "register the nvidia runtime"
    version = engine_version(docker.version)
    off_by_default = version is not None and version.major >= 25 and version < CDI_BY_DEFAULT
    if off_by_default and not docker.cdi_spec_dirs and "cdi-unresolvable" in found:
        why = "enable CDI, which is off by default before Docker 28.2; other features are kept"
        yield {"features": {"cdi": True}}, why
    if found & {"shared-memory-too-small", "nccl-shared-memory"}:
        yield {"default-shm-size": DEFAULT_SHM}, f"give containers {DEFAULT_SHM} of shared memory, not 64 MB"


def _spec(machine: Machine, found: set[str]) -> Iterator[Change]:
    """Yield a fresh spec unless NVIDIA's own program is installed; the finding's fix names it then."""
    wanted = {"cdi-unresolvable", "cdi-spec-stale", "cdi-spec-unreadable", "cdi-uvm-missing-in-spec", "cdi-no-vendor"}
    if not found & wanted or machine.ask("nvidia-ctk", "--version") is not None:
        return
    try:
        text = spec_text(machine.driver, machine.inventory.gpus, machine.root)
    except GpuContractError:  # the driver is not complete: an earlier link is what is broken
        return
    path = machine.here(SPEC)
    if (before := current(path)) != text:
        yield Change(path, "a CDI spec of this machine's GPUs, for Podman and Docker 25 and later", before, text)


def _char_links(machine: Machine, found: set[str]) -> Iterator[Change]:
    """Yield a link /dev/char/MAJOR:MINOR for each node: systemd finds a rule's device by it.

    Source: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48. The next start of the machine drops them.
    """
    if "device-access-lost" not in found:
        return
    for node in (*machine.driver.control, *machine.driver.gpus.values()):
        status = machine.here(node.path).stat()
        path = machine.here(f"/dev/char/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
        if stat.S_ISCHR(status.st_mode) and current(path) is None:
            why, target = "systemd uses this link to find the GPU's device rule", f"..{node.path.removeprefix('/dev')}"
            yield Change(path, why, None, target, link=True)


def apply_fixes(results: Sequence[Result], machine: Machine, console: Console, ask: Ask) -> int:
    """Make the safe changes that the user agrees to; return their number. Raises DiskError, with all of them undone."""
    agreed: list[Change] = []
    for change in changes_for(results, machine):
        console.print(Text(f"\n{change.path}: {change.why}", style="bold"), soft_wrap=True)
        for line in change.diff().splitlines():
            console.print(Text(line, style=_DIFF.get(line[:1], "")), soft_wrap=True)
        if ask(f"Write {change.path}?"):
            agreed.append(change)
    if not agreed:
        fixes = any(finding.fix for result in results for finding in result.verdict.findings)
        by_hand = " Fix the rest manually with the commands above." if fixes else ""
        console.print(f"\nNothing was changed.{by_hand}")
        return 0
    journal = ChangeJournal(machine.host)
    path = journal.write(agreed)
    made: list[Change] = []
    try:
        for change in agreed:
            change.make()
            made.append(change)
    except DiskError:
        for change in reversed(made):
            change.take_back()
        journal.close(path)
        raise
    console.print(f"\n{len(made)} written; to undo: seatrial doctor --undo")
    if any(change.path.name == "daemon.json" for change in made):
        _restart(machine, console, ask)
    return len(made)


def _restart(machine: Machine, console: Console, ask: Ask) -> None:
    """Restart Docker, which reads daemon.json when it starts. While containers run, only a person may do that."""
    info = machine.docker_info if isinstance(machine.docker_info, dict) else {}
    running = int(info.get("ContainersRunning") or 0)
    snap = machine.docker is not None and machine.docker.snap
    argv = ["snap", "restart", "docker"] if snap else ["systemctl", "restart", "docker"]
    command = f"sudo {' '.join(argv)}"
    if running:
        stops = f"which would stop the {running} running containers"
        console.print(f"Docker reads it at its next start, {stops}: {command}")
        return
    if not ask("Restart Docker now? No container is running."):
        console.print(f"Docker reads it at its next start: {command}")
        return
    ended = machine.command(argv, timeout_s=RESTART_S)
    console.print("Docker was restarted." if ended.exit_code == 0 else f"{command} failed: {ended.last_line()}")


def undo(console: Console, host: Host) -> None:
    """Undo the newest session. Raises UsageError, DiskError."""
    journal = ChangeJournal(host)
    path, changes = journal.newest()
    for change in reversed(changes):
        change.take_back()
        console.print(f"{change.path}: {'as before' if change.before is not None else 'removed'}", soft_wrap=True)
    journal.close(path)
    if any(change.path.name == "daemon.json" for change in changes):
        console.print("Docker reads it at its next start: sudo systemctl restart docker")
