"""Host: the environment, user and folders of one command or one call of the Python API; Caller: its terminal.

Made once, in ``main()`` or by the function of the Python API; nothing else on the host side reads ``os.environ``.
The state folder holds what seatrial knows of its runs, in a place of the user's that no container is given: plans,
handles, locks, evidence, receipts and trust in projects. A project's own ``.seatrial`` holds what its containers
write, and copies for people to look at; nothing in it is believed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import stat
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from seatrial.errors import DiskError, UsageError, fallback
from seatrial.probe.container import Cgroup, MachineSampler

#: Moves the state folder, e.g. where HOME is on a file system without locks.
STATE_VARIABLE = "SEATRIAL_STATE"
#: ``terminal``: someone who types, in the foreground. ``pipe``: a pipe or socket. ``file``: a regular file.
#: ``nothing``: closed, /dev/null, another device, or a terminal of a job in the background.
InputKind = Literal["terminal", "pipe", "file", "nothing"]
#: Size of a terminal that reports none (a serial line, some CI's).
_COLUMNS, _LINES = 80, 24


class Host:
    """One command's view of machine and user; ``env`` never changes, and ``secrets``, made by a command, precede it."""

    def __init__(self, env: Mapping[str, str] | None = None, *, secrets: Mapping[str, str] | None = None) -> None:
        self.env: Mapping[str, str] = dict(os.environ) if env is None else env
        self.secrets: Mapping[str, str] = secrets or {}

    def secret(self, name: str) -> str:
        """Return a secret's value, of the environment or a login of this machine; "" if it has none."""
        return self.secrets.get(name) or self.env.get(name) or (login(name, self.env) or ("",))[0]

    def with_env(self, env: Mapping[str, str]) -> Host:
        """Return a host with these variables besides its own."""
        return Host({**self.env, **env}, secrets=self.secrets)

    @cached_property
    def uid(self) -> int:
        return os.getuid()

    @cached_property
    def gid(self) -> int:
        return os.getgid()

    @cached_property
    @fallback(None, on=KeyError)
    def account(self) -> pwd.struct_passwd | None:
        """Return the user's entry among the accounts; None without one, as in many containers."""
        return pwd.getpwuid(self.uid)

    @cached_property
    def user_name(self) -> str:
        return self.account.pw_name if self.account else self.env.get("USER") or "user"

    @cached_property
    def memory_bytes(self) -> int | None:
        """Return the memory that this process may use, or the machine's, in bytes; None if unknown."""
        return Cgroup().memory_limit_bytes() or MachineSampler().read()["memory_total_bytes"]

    @cached_property
    @fallback(None, on=(OSError, ValueError))
    def most_pids(self) -> int | None:
        """Return how many processes and threads the kernel allows: the smaller of its two limits; None if unknown."""
        return min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))

    def client_call(self, engine: str) -> list[str]:
        """Return an engine's program and options: SEATRIAL_DOCKER, SEATRIAL_PODMAN or its name. Raises UsageError."""
        variable = f"SEATRIAL_{engine.upper()}"
        try:
            return shlex.split(self.env.get(variable, "")) or [engine]
        except ValueError as error:
            problem = f"{variable} is not a valid command line: {error}"
            raise UsageError(problem, cause=f"its value is {self.env[variable]!r}", run=f"unset {variable}") from error

    @cached_property
    def state_folder(self) -> Path:
        """Return ``$SEATRIAL_STATE``, ``$XDG_STATE_HOME/seatrial`` or ``~/.local/state/seatrial``; made with mode 0700.

        An existing folder must be the user's; nobody else can write it afterwards. Without a HOME that can be written:
        ``/var/tmp/seatrial-<uid>``, which outlives a restart. Raises DiskError if there is none.
        """
        trouble: OSError | None = None
        candidates = self._state_candidates()
        for candidate in candidates:
            try:
                candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                trouble = trouble or error
                continue
            status = candidate.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and os.access(candidate, os.W_OK):
                if status.st_mode & 0o022:
                    candidate.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
                return candidate.resolve()
        why = trouble.strerror if trouble else "it belongs to another user"
        cause = "seatrial keeps its plans and receipts there, inaccessible to containers"
        run = f"export {STATE_VARIABLE}=/path/to/your/folder"
        raise DiskError(f"Cannot use the state folder {candidates[0]}: {why}", cause=cause, run=run)

    @cached_property
    def cache_folder(self) -> Path:
        """Return ``$XDG_CACHE_HOME/seatrial`` or ``~/.cache/seatrial``, made if missing, for what a run can make again.

        Without a HOME that can be written: ``/var/tmp/seatrial-cache-<uid>``. A relative path is ignored. Raises
        DiskError. Source: https://specifications.freedesktop.org/basedir-spec/latest/
        """
        candidates = self._cache_candidates()
        if (usable := next(filter(_is_usable, candidates), None)) is not None:
            return usable
        run = "export XDG_CACHE_HOME=/path/to/your/folder"
        raise DiskError(f"No cache folder is writable: {', '.join(map(str, candidates))} cannot be written", run=run)

    @cached_property
    def runtime_folder(self) -> Path:
        """Return this user's folder for secrets and sockets, in memory where the machine has such a place; mode 0700.

        If other users have made all of those, it lies in the state folder. Raises DiskError.
        """
        candidates = [*self._runtime_candidates(), self.state_folder / "runtime"]
        for candidate in candidates:
            with contextlib.suppress(OSError):
                candidate.mkdir(mode=0o700, exist_ok=True)
                descriptor = os.open(candidate, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.fchmod(descriptor, 0o700)  # EPERM: another user's
                    if os.fstat(descriptor).st_uid == os.getuid():
                        return candidate
                finally:
                    os.close(descriptor)
        names = list(map(str, candidates))
        message = f"No folder for secrets and sockets is this user's alone: {', '.join(names)}"
        raise DiskError(message, run=f"ls -ld {' '.join(names)}")

    @property
    def temporary_folders(self) -> tuple[Path, ...]:
        """Return the folders where this user's programs have sockets and temporary files."""
        found = (self.env.get("XDG_RUNTIME_DIR", ""), "/dev/shm", self.env.get("TMPDIR", ""), "/tmp")
        return tuple(Path(os.path.realpath(folder)) for folder in dict.fromkeys(found) if folder.startswith("/"))

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """Return every folder of state or caches, also those of another environment of this user's that can be made."""
        usual = (*self._usual_state(), *self._cache_candidates(), *self._runtime_candidates())
        candidates = {self.state_folder, self.cache_folder, *usual}
        # os.path's: Path's raises where another user's folder may not be searched
        nearest = {each: next(up for up in (each, *each.parents) if os.path.exists(up)) for each in candidates}  # noqa: PTH110
        return tuple(folder for folder, there in nearest.items() if os.access(there, os.W_OK))

    def _state_candidates(self) -> list[Path]:
        if chosen := self.env.get(STATE_VARIABLE):
            return [Path(os.path.abspath(chosen))]  # noqa: PTH100  resolve() would follow a link before it is checked
        return self._usual_state()

    def _usual_state(self) -> list[Path]:
        home = self.env.get("HOME", "")
        return [*self._folders("XDG_STATE_HOME", home, ".local/state"), Path(f"/var/tmp/seatrial-{os.getuid()}")]

    def _cache_candidates(self) -> list[Path]:
        home = self.env.get("HOME") or (self.account.pw_dir if self.account else "")
        return [*self._folders("XDG_CACHE_HOME", home, ".cache"), Path(f"/var/tmp/seatrial-cache-{os.getuid()}")]

    def _runtime_candidates(self) -> list[Path]:
        return [folder / f"seatrial-{os.getuid()}" for folder in self.temporary_folders]

    def _folders(self, variable: str, home: str, usual: str) -> list[Path]:
        bases = (Path(self.env.get(variable, "")), Path(home, usual))
        return [base / "seatrial" for base in bases if base.is_absolute()]


@lru_cache(maxsize=1)
def logins() -> dict[str, dict[str, Any]]:
    """Return service → its row of logins.toml."""
    from seatrial.system.project_files import own_table  # of runs with a login alone

    return own_table(Path(__file__).with_name("logins.toml"))


@fallback(None, on=(OSError, ValueError))  # another's, no text, no URL
def login(name: str, env: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return (value, file) of a secret that a login has left, by the name of its variable; None without one."""
    rows = (row for row in logins().values() if name in row.get("given", ()) and "files" in row)
    row: dict[str, Any] = next(rows, {})
    set_ones = {key: value for key, value in {"HOME": "/nonexistent", **env}.items() if value}
    usable = (each for each in row.get("files", ()) if re.split(r"[$/]", each)[1] in set_ones)
    file = Path(Template(next(usable, "")).safe_substitute(set_ones))
    variable, usual = row.get("server", ("", ""))
    server = re.escape(urlsplit(env.get(variable, "")).hostname or usual)
    if not file.is_file():  # a pipe would be waited for
        return None
    found = re.search(row["value"].replace("{server}", server), file.read_text())
    return (found[1], file) if found else None


@fallback(False, on=OSError)
def _is_usable(folder: Path) -> bool:
    """Return True if it exists or can be made, and is this user's: another could put an agent of his own there.

    Links are judged by who made them: anybody may make one in /var/tmp.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    owners = {folder.lstat().st_uid, folder.parent.lstat().st_uid}
    return owners <= {os.getuid(), 0} and os.access(folder, os.W_OK)


class Caller(NamedTuple):
    """Describes the standard streams of the process that runs a command, and the size of its terminal.

    ``asks``: ``--interactive``: standard input is for the target in any case. ``screens``: which of stdout (1) and
    stderr (2) are terminals that show the target's. ``term``, ``colors``: $TERM, $COLORTERM.
    """

    input: InputKind = "nothing"
    asks: bool = False
    screens: tuple[int, ...] = ()
    columns: int = _COLUMNS
    lines: int = _LINES
    term: str | None = None
    colors: str | None = None


def read_caller(host: Host, *, asks: bool = False, shows_output: bool = True) -> Caller:
    """Look at this process's standard streams. ``shows_output``: the target's stdout goes to ours."""
    screens = tuple(number for number in (1, 2) if shows_output and os.isatty(number))
    columns, lines = window_size(screens[0]) if screens else (_COLUMNS, _LINES)
    return Caller(_input_kind(), asks, screens, columns, lines, host.env.get("TERM"), host.env.get("COLORTERM"))


@fallback((_COLUMNS, _LINES), on=OSError)
def window_size(descriptor: int) -> tuple[int, int]:
    """Return (columns, lines) of a terminal; the usual ones where they are unknown."""
    size = os.get_terminal_size(descriptor)
    return size.columns or _COLUMNS, size.lines or _LINES


def _input_kind() -> InputKind:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return "nothing"
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return "pipe"
    if stat.S_ISREG(mode):
        return "file"
    return "terminal" if in_foreground(0) else "nothing"


@fallback(False, on=OSError)  # another session's terminal
def in_foreground(descriptor: int) -> bool:
    """Return True if this is a terminal whose keys are for this process: reading as a background job would stop it."""
    return os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
