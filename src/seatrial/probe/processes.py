"""Read processes from /proc: what belongs to a target or a container, what it uses, and whether CUDA is mapped."""

import os
import re
import time
from contextlib import suppress
from typing import Dict, List, Mapping, NamedTuple, Optional, Set

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GPU_NODE = re.compile(r"/dev/nvidia(\d+)$")
#: File descriptors on /dev/nvidiaN above which a process has a CUDA context there.
#: Measured on an H200, driver 580.159.04: NVML alone opens 3, cuInit makes it 7, a context 23.
_CONTEXT_DESCRIPTORS = 8
#: Interval between full readings of all processes and their cgroups. A process outside our tree never enters it
#: (orphans go to an ancestor), so a full reading only finds PIDs that were reused in between.
RESCAN_S = 30.0

_ID = r"(?P<id>[0-9a-f]{64})"
#: Engine → the prefix of its container's ID. Podman's conmon has a cgroup of its own and is not a container.
_PATTERNS = (
    ("podman", re.compile(r"/libpod-" + _ID)),
    ("containerd", re.compile(r"/cri-containerd-" + _ID)),
    ("cri-o", re.compile(r"/crio-" + _ID)),
    ("docker", re.compile(r"/docker[-/]" + _ID)),
    ("containerd", re.compile(r"/kubepods[^\n]*/" + _ID)),
)
#: systemd's driver writes the UID's dashes as underscores.
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


class GpuProcess(NamedTuple):
    """One line of /proc/PID/stat. ``started_ticks`` distinguishes a reused PID from the old one."""

    pid: int
    parent: int
    session: int
    state: str
    cpu_seconds: float
    rss_bytes: int
    started_ticks: int


def contents(path: str, most_bytes: int, flags: int = 0) -> Optional[bytes]:
    """Read a small file in a fourth of what ``open`` takes; None where it is gone, or may not or cannot be read."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            return os.read(descriptor, most_bytes)
        finally:
            os.close(descriptor)
    return None


def read(pid: int, proc: str = "/proc") -> Optional[GpuProcess]:
    """Return the process, or None once it is gone."""
    if (stat := contents("%s/%d/stat" % (proc, pid), 4096)) is None:
        return None
    # The command name is in parentheses and may hold any character, parentheses included: fields begin after the last.
    fields = stat[stat.rindex(b")") + 2 :].split()
    cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    rss_bytes = int(fields[21]) * _PAGE_BYTES
    return GpuProcess(pid, int(fields[1]), int(fields[3]), fields[0].decode(), cpu_seconds, rss_bytes, int(fields[19]))


def name(pid: int) -> Optional[str]:
    """Return the name of its program, at most 15 characters that anybody may have chosen; None once it is gone."""
    return file_bytes("/proc/%d/comm" % pid).decode("utf-8", "replace").strip() or None


def waited_s(pid: int) -> Optional[float]:
    """Seconds in which its first thread was ready and no CPU was free; None if the kernel does not count them.

    Source: docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat.
    """
    fields = file_bytes("/proc/%d/schedstat" % pid).split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else None


def everyone(proc: str = "/proc") -> Dict[int, GpuProcess]:
    """Return PID → process, for all that are visible."""
    found = (read(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(pid: int) -> List[GpuProcess]:
    """Return all processes under this one, itself not counted, parents before children. Zombies are left out."""
    return under(pid, everyone())


def under(pid: int, processes: Mapping[int, GpuProcess]) -> List[GpuProcess]:
    """Return those of ``processes`` below this one, itself not counted, parents before children, without zombies."""
    children: Dict[int, List[GpuProcess]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: List[GpuProcess] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found.extend(process for process in below if process.state != "Z")
        queue.extend(process.pid for process in below)
    return found


def command_line(pid: int) -> bytes:
    """Return the arguments joined by NUL; empty once the process is gone."""
    return file_bytes("/proc/%d/cmdline" % pid)


def status(pid: int) -> Dict[str, str]:
    """Return name → value of /proc/PID/status; {} once the process is gone. Source: proc(5)."""
    lines = file_bytes("/proc/%d/status" % pid).decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def environment(pid: int) -> List[bytes]:
    """Return the ``NAME=value`` entries the process was started with; empty when gone or another user's."""
    return file_bytes("/proc/%d/environ" % pid).split(b"\0")


def has_cuda_context(pid: int, proc: str = "/proc") -> bool:
    """Return whether the process maps /dev/nvidia-uvm.

    Measured on an H200, driver 580.159.04: NVML and cuInit open that node without mapping it, and a CUDA context maps
    it exactly once. So a mapping is a context.
    """
    return b"/dev/nvidia-uvm\n" in file_bytes("%s/%d/maps" % (proc, pid))


def context_minors(pid: int, proc: str = "/proc") -> List[int]:
    """Return N of every /dev/nvidiaN with a CUDA context of this process, known by its number of descriptors there."""
    counts: Dict[int, int] = {}
    folder = "%s/%d/fd" % (proc, pid)
    with suppress(OSError):  # gone, or another user's
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                if node := _GPU_NODE.match(os.readlink(os.path.join(folder, name))):
                    counts[int(node.group(1))] = counts.get(int(node.group(1)), 0) + 1
    return sorted(minor for minor, count in counts.items() if count >= _CONTEXT_DESCRIPTORS)


def file_bytes(path: str) -> bytes:
    """Read a file; b"" where it is gone, or another user's."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


class Tree:
    """The processes under ``pid``, itself ``with_root``; among 200 others a full reading takes 2.4 ms of CPU."""

    def __init__(self, pid: int, with_root: bool, proc_folder: str = "/proc") -> None:
        self._pid, self._with_root, self._proc = pid, with_root, proc_folder
        self._strangers: Set[int] = set()
        self._known: Set[int] = set()
        self._rescan_at_s = 0.0
        self._newest = b""

    def read(self) -> Dict[int, GpuProcess]:
        """Return PID → process, parents before children; without zombies."""
        if time.monotonic() >= self._rescan_at_s:
            self._rescan_at_s = time.monotonic() + RESCAN_S
            self._strangers, self._newest = set(), b""
        before, self._newest = self._newest, self._newest_pid()
        if self._newest != before or not self._newest:
            self._known = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        answers = {pid: read(pid, self._proc) for pid in sorted(self._known - self._strangers)}
        alive = {pid: process for pid, process in answers.items() if process is not None}
        self._known -= answers.keys() - alive.keys()
        tree = under(self._pid, alive)
        root = alive.get(self._pid) or read(self._pid, self._proc)
        if self._with_root and root is not None:
            tree = [root, *tree]
        found = {process.pid: process for process in tree}
        self._strangers = self._known - {pid for pid, process in alive.items() if pid in found or process.state == "Z"}
        return found

    def _newest_pid(self) -> bytes:
        """Return the PID given last in our PID namespace, or b"" if unknown: while it stays, no process has started."""
        newest = file_bytes(os.path.join(self._proc, "loadavg")).split()[-1:]
        return newest[0] if newest and newest != [b"0"] else b""


class Owner(NamedTuple):
    """A container. ``pod_uid`` in Kubernetes, else None."""

    engine: str
    container_id: str
    pod_uid: Optional[str] = None


def parse(cgroup: str) -> Optional[Owner]:
    """Return the innermost container (kind, Docker in Docker) in the text of /proc/PID/cgroup; None on the host."""
    best: Optional[Owner] = None
    best_at = -1
    for line in cgroup.splitlines():
        for engine, pattern in _PATTERNS:
            for match in pattern.finditer(line):
                if match.start() > best_at:
                    best_at, pod = match.start(), _POD.search(line)
                    best = Owner(engine, match.group("id"), pod.group(1).replace("_", "-") if pod else None)
    return best


def owner(pid: int, proc: str = "/proc") -> Optional[Owner]:
    """Return the container of a process; None for the host's own, and for one that is gone."""
    return parse(file_bytes("%s/%d/cgroup" % (proc, pid)).decode("utf-8", "surrogateescape"))


class Attribution:
    """The containers that have processes here, read repeatedly: the cgroup of a known process is not read anew.

    A process is known once two readings agree: an engine starts a container's first process in its own cgroup and
    then moves it. Every RESCAN_S all are read: PIDs are given again, and the service manager may move processes.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: Dict[str, Optional[Owner]] = {}
        self._known: Dict[str, Optional[Owner]] = {}
        self._rescan_at_s = 0.0

    def containers(self) -> Dict[Owner, List[int]]:
        """Return every container that has a process here, with its PIDs in order."""
        if time.monotonic() >= self._rescan_at_s:
            self._rescan_at_s = time.monotonic() + RESCAN_S
            self._seen, self._known = {}, {}
        found: Dict[Owner, List[int]] = {}
        seen: Dict[str, Optional[Owner]] = {}
        known: Dict[str, Optional[Owner]] = {}
        for name in sorted((name for name in os.listdir(self._proc) if name.isdigit()), key=int):
            its = self._known[name] if name in self._known else owner(int(name), self._proc)
            agrees = name in self._known or (name in self._seen and self._seen[name] == its)
            (known if agrees else seen)[name] = its
            if its is not None:
                found.setdefault(its, []).append(int(name))
        self._seen, self._known = seen, known
        return found
