"""Read a container's limits and use: its cgroup, /dev/shm and processes; read the same of the whole machine."""

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from seatrial.probe import processes
from seatrial.probe.processes import TICKS_PER_S, Tree

#: v1 writes "no limit" as the largest page-aligned 64-bit number; nothing real is above this.
_NO_LIMIT_BYTES = 1 << 62
#: More than any of the files has; the kernel gives cgroup.procs of thousands of processes in one go too.
_MOST_BYTES = 1 << 20
#: Read at most this often: rates over less are noise, and the files cost more than a GPU's counters.
INTERVAL_S = 0.9
#: Limits seldom change (``docker update``).
LIMITS_INTERVAL_S = 30.0


class SharedMemory(NamedTuple):
    """Bytes used and in all."""

    used_bytes: int
    total_bytes: int


def read(path: str = "/dev/shm") -> Optional[SharedMemory]:
    """Return the space of the file system at ``path``, or None if there is none."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return SharedMemory((stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_blocks * stat.f_frsize)


class Cgroup:
    """Counters of the cgroup of ``pid``, None if not shown. ``root``: where the cgroup file systems are mounted."""

    def __init__(self, pid: str = "self", root: str = "/sys/fs/cgroup", proc: str = "/proc") -> None:
        paths = _paths(_text(os.path.join(proc, str(pid), "cgroup")) or "")
        self.version = 2 if os.path.exists(os.path.join(root, "cgroup.controllers")) else 1
        self._memory = _folders(root, "memory", paths, self.version)
        self._cpu = _folders(root, "cpu", paths, self.version)
        self._cpuacct = _folders(root, "cpuacct", paths, self.version)

    def processes(self) -> List[int]:
        """Return the PIDs in this very cgroup, as seen from our PID namespace (0: outside of it)."""
        text = _text(os.path.join(self._memory[0], "cgroup.procs")) if self._memory else None
        return [int(word) for word in (text or "").split()]

    def memory_bytes(self) -> Optional[int]:
        """Return the memory in use without the page cache that could be dropped at once (kubelet's working set)."""
        used = _number(self._memory, "memory.current" if self.version == 2 else "memory.usage_in_bytes")
        if used is None:
            return None
        inactive = "inactive_file" if self.version == 2 else "total_inactive_file"
        return max(0, used - _table(self._memory, "memory.stat").get(inactive, 0))

    def memory_limit_bytes(self) -> Optional[int]:
        """Return the tightest limit on the way up to the root, or None if there is none."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        limits = [_number([folder], name) for folder in self._memory]
        return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT_BYTES), default=None)

    def oom_kills(self) -> Optional[int]:
        """Return how many processes of this cgroup the kernel's OOM killer has killed since it was made."""
        return _table(self._memory, "memory.events" if self.version == 2 else "memory.oom_control").get("oom_kill")

    def cpu_seconds(self) -> Optional[float]:
        return self.cpu()[0]

    def cpu(self) -> Tuple[Optional[float], Optional[Tuple[int, int]]]:
        """Return (CPU seconds with ended processes', (periods, those in which the quota stopped some) or None)."""
        table = _table(self._cpu, "cpu.stat")
        periods = (table["nr_periods"], table.get("nr_throttled", 0)) if table.get("nr_periods") else None
        if self.version == 1:
            usage_ns = _number(self._cpuacct, "cpuacct.usage")
            return None if usage_ns is None else usage_ns / 1e9, periods
        usage_us = table.get("usage_usec")
        return None if usage_us is None else usage_us / 1e6, periods

    def cpu_quota_cores(self) -> Optional[float]:
        """Return the tightest CPU limit on the way up to the root, in cores, or None if there is none."""
        quotas = [self._quota(folder) for folder in self._cpu]
        return min((quota for quota in quotas if quota is not None), default=None)

    def _quota(self, folder: str) -> Optional[float]:
        if self.version == 2:
            words = (_text(os.path.join(folder, "cpu.max")) or "max").split()
            return None if words[0] == "max" else int(words[0]) / int(words[1])
        quota_us = _number([folder], "cpu.cfs_quota_us")
        period_us = _number([folder], "cpu.cfs_period_us")
        return quota_us / period_us if quota_us and quota_us > 0 and period_us else None


def _paths(proc_cgroup: str) -> Dict[str, str]:
    """Return controller → path, from /proc/PID/cgroup. The unified hierarchy's controller is ""."""
    paths = {}
    for line in proc_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _folders(root: str, controller: str, paths: Dict[str, str], version: int) -> List[str]:
    """Return the cgroup's folder and its ancestors up to the mount, nearest first; only those that exist here.

    Inside a container on v1 the path names folders of the host that are not mounted: the mount itself is ours then.
    """
    mount = root if version == 2 else os.path.join(root, controller)
    path = paths.get("" if version == 2 else controller, "/").strip("/")
    parts = path.split("/") if path and ".." not in path else []
    candidates = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in candidates if os.path.isdir(folder)]


def _text(path: str) -> Optional[str]:
    data = processes.contents(path, _MOST_BYTES)
    return None if data is None else data.decode()


def _number(folders: List[str], name: str) -> Optional[int]:
    """Return the number in the nearest folder's file; None for "max" and without the file."""
    text = _text(os.path.join(folders[0], name)) if folders else None
    return int(text) if text is not None and text.strip().lstrip("-").isdigit() else None


def _table(folders: List[str], name: str) -> Dict[str, int]:
    text = _text(os.path.join(folders[0], name)) if folders else None
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class ContainerUsage:
    """The usage of a process's container, or of the process and its descendants if it has no cgroup of its own.

    ``pid``: by default this process, itself not counted. ``mains``: PIDs that drive the GPUs; the caller adds them.
    """

    def __init__(self, pid: Optional[int] = None) -> None:
        self.mains: Set[int] = set()
        self._pid = os.getpid() if pid is None else pid
        self._tree = Tree(self._pid, with_root=pid is not None)
        self._cgroup = Cgroup(str(self._pid))
        # A container's cgroup holds only our processes; a login session's is shared with strangers.
        members = set(self._cgroup.processes())
        ours = {process.pid for process in processes.descendants(self._pid)} | {self._pid, 1}
        self._own = bool(members) and members <= ours
        self._limits: Dict[str, Any] = {}
        self._limits_due_s = 0.0
        self._keys: Dict[str, Any] = {}
        self._before = self._look()

    def read(self) -> Dict[str, Any]:
        """Return the container's keys of a ``sample`` event: rates over INTERVAL_S or more; sooner, the same again."""
        if self._keys and time.monotonic() - self._before.read_s < INTERVAL_S:
            return self._keys
        if time.monotonic() >= self._limits_due_s:
            self._limits_due_s = time.monotonic() + LIMITS_INTERVAL_S
            self._limits = {
                "memory_limit_bytes": self._cgroup.memory_limit_bytes(),
                "cpu_quota_cores": self._cgroup.cpu_quota_cores(),
            }
        before, now = self._before, self._look()
        self._before = now
        shared = read()
        self._keys = {
            "cpu_cores": _rate(before.cpu_seconds, now.cpu_seconds, now.read_s - before.read_s),
            "memory_bytes": now.memory_bytes,
            "shm_used_bytes": shared.used_bytes if shared else None,
            "shm_total_bytes": shared.total_bytes if shared else None,
            "processes": len(now.tree),
            **self._roles(before, now),
            "cpu_throttled_pct": _throttled(before.cpu_periods, now.cpu_periods),
            **self._limits,
        }
        return self._keys

    def _look(self) -> "_Look":
        tree = self._tree.read()
        cpu_seconds, cpu_periods = self._cgroup.cpu() if self._own else (None, None)
        memory_bytes = self._cgroup.memory_bytes() if self._own else None
        cpu_seconds = sum(one.cpu_seconds for one in tree.values()) if cpu_seconds is None else cpu_seconds
        memory_bytes = sum(one.rss_bytes for one in tree.values()) if memory_bytes is None else memory_bytes
        return _Look(time.monotonic(), cpu_seconds, memory_bytes, tree, cpu_periods)

    def _roles(self, before: "_Look", now: "_Look") -> Dict[str, Any]:
        """Return the CPU use of the processes that drive the GPUs and of those that work for them (data loaders)."""
        mains = self.mains & set(now.tree) or set(list(now.tree)[:1])
        used_s = {"main": 0.0, "worker": 0.0}
        for pid, process in now.tree.items():
            earlier = before.tree.get(pid)
            reused = earlier is not None and earlier.started_ticks != process.started_ticks
            since_s = earlier.cpu_seconds if earlier is not None and not reused else 0.0
            used_s["main" if pid in mains else "worker"] += max(0.0, process.cpu_seconds - since_s)
        passed_s = now.read_s - before.read_s
        return {
            "main_cpu_cores": _rate(0.0, used_s["main"], passed_s),
            "worker_cpu_cores": _rate(0.0, used_s["worker"], passed_s),
            "workers": len(now.tree) - len(mains),
        }


class _Look(NamedTuple):
    """The readings of one moment: CPU time and memory of the whole, and every process in it."""

    read_s: float
    cpu_seconds: float
    memory_bytes: int
    tree: Dict[int, processes.GpuProcess]
    cpu_periods: Optional[Tuple[int, int]]


def _rate(before_s: float, now_s: float, passed_s: float) -> float:
    """Return the cores in use. Never negative: CPU time of ended processes leaves a tree's sum."""
    return round(max(0.0, now_s - before_s) / max(passed_s, 1e-3), 3)


def _throttled(before: Optional[Tuple[int, int]], now: Optional[Tuple[int, int]]) -> Optional[float]:
    """Share of the periods in between, in percent; None without a quota, and 0 where none has passed."""
    if before is None or now is None:
        return None
    periods, throttled = now[0] - before[0], now[1] - before[1]
    return round(100.0 * throttled / periods, 1) if periods > 0 else 0.0


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
        return (user + nice + system + irq + softirq + steal) / TICKS_PER_S

    def _memory(self) -> Dict[str, int]:
        lines = (line.split() for line in self._text("meminfo").splitlines())
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}

    def _text(self, name: str) -> str:
        return _text(os.path.join(self._proc, name)) or ""
