"""Read the machine: its memory and load, and which container a process on a GPU belongs to."""

import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class MachineSampler:
    """Reads /proc/stat, /proc/meminfo and /proc/loadavg; CPU is the mean since the last reading."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._busy_s, self._read_s = self._cpu_seconds(), time.monotonic()

    def read(self) -> Dict[str, Any]:
        """Return cpu_cores in use, cpu_count, memory_used_bytes, memory_total_bytes, load_1m; None if unknown."""
        busy_s, now_s = self._cpu_seconds(), time.monotonic()
        cores: Optional[float] = None
        if busy_s is not None and self._busy_s is not None and now_s > self._read_s:
            cores = round(max(0.0, busy_s - self._busy_s) / (now_s - self._read_s), 2)
        self._busy_s, self._read_s = busy_s, now_s
        memory = self._memory()
        total, free = memory.get("MemTotal"), memory.get("MemAvailable")
        load = self._text("loadavg").split()
        return {
            "cpu_cores": cores,
            "cpu_count": os.cpu_count(),
            "memory_used_bytes": total - free if total is not None and free is not None else None,
            "memory_total_bytes": total,
            "load_1m": float(load[0]) if load else None,
        }

    def _cpu_seconds(self) -> Optional[float]:
        """Return all cores' time that was neither idle nor a disk's wait; guests are in user time already."""
        fields = self._text("stat").split("\n", 1)[0].split()
        if len(fields) < 9 or fields[0] != "cpu":
            return None
        user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[1:9])
        return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S

    def _memory(self) -> Dict[str, int]:
        lines = (line.split() for line in self._text("meminfo").splitlines())
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}

    def _text(self, name: str) -> str:
        try:
            with open(os.path.join(self._proc, name)) as file:
                return file.read()
        except OSError:
            return ""


#: Interval between full readings of every process's cgroup.
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


class Owner(NamedTuple):
    """A container. ``pod_uid`` in Kubernetes, else None."""

    engine: str
    container_id: str
    pod_uid: Optional[str] = None


def parse(cgroup: str) -> Optional[Owner]:
    """Return the container in the text of /proc/PID/cgroup, or None for a process of the host.

    The innermost one, where a container runs in another (kind, Docker in Docker).
    """
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
    try:
        with open("%s/%d/cgroup" % (proc, pid)) as file:
            return parse(file.read())
    except OSError:
        return None


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
