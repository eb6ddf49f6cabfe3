"""The control group around this process (v1 and v2): memory, its limit, OOM kills, CPU time and quota.

Source of every file's meaning: https://docs.kernel.org/admin-guide/cgroup-v2.html and …/cgroup-v1/memory.html
"""

import os
from typing import Dict, List, Optional, Tuple

#: v1 writes "no limit" as the largest page-aligned 64-bit number; nothing real is above this.
_NO_LIMIT_BYTES = 1 << 62


#: More than any of the files has; the kernel gives cgroup.procs of thousands of processes in one go too.
_MOST_BYTES = 1 << 20


class Cgroup:
    """Counters of one process's cgroup; each is None where the kernel or container does not show it.

    Args:
        pid: whose cgroup; "self" by default.
        root: where the cgroup file systems are mounted.
        proc: where procfs is mounted.
    """

    def __init__(self, pid: str = "self", root: str = "/sys/fs/cgroup", proc: str = "/proc") -> None:
        paths = _paths(_text(os.path.join(proc, str(pid), "cgroup")) or "")
        self.version = 2 if os.path.exists(os.path.join(root, "cgroup.controllers")) else 1
        self._memory = _folders(root, "memory", paths, self.version)
        self._cpu = _folders(root, "cpu", paths, self.version)
        self._cpuacct = _folders(root, "cpuacct", paths, self.version)

    def processes(self) -> List[int]:
        """PIDs in this very cgroup, as seen from our PID namespace (0: outside of it)."""
        text = _text(os.path.join(self._memory[0], "cgroup.procs")) if self._memory else None
        return [int(word) for word in (text or "").split()]

    def memory_bytes(self) -> Optional[int]:
        """Memory in use without the page cache that could be dropped at once (what kubelet calls working set)."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        used = _number(self._memory, name)
        if used is None:
            return None
        inactive = "inactive_file" if self.version == 2 else "total_inactive_file"
        return max(0, used - _table(self._memory, "memory.stat").get(inactive, 0))

    def memory_limit_bytes(self) -> Optional[int]:
        """The tightest limit on the way up to the root, or None when there is none."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        limits = [_number([folder], name) for folder in self._memory]
        return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT_BYTES), default=None)

    def oom_kills(self) -> Optional[int]:
        """Processes of this cgroup that the kernel's OOM killer has killed since it was made."""
        return _table(self._memory, "memory.events" if self.version == 2 else "memory.oom_control").get("oom_kill")

    def cpu_seconds(self) -> Optional[float]:
        """CPU time used by all processes of the cgroup, ended ones included."""
        if self.version == 2:
            return self.cpu()[0]
        usage_ns = _number(self._cpuacct, "cpuacct.usage")
        return None if usage_ns is None else usage_ns / 1e9

    def cpu(self) -> Tuple[Optional[float], Optional[Tuple[int, int]]]:
        """(cpu_seconds, scheduler periods), in one reading.

        The periods are (those so far, those in which the quota stopped somebody), or None without a quota.
        """
        table = _table(self._cpu, "cpu.stat")
        periods = (table["nr_periods"], table.get("nr_throttled", 0)) if table.get("nr_periods") else None
        if self.version == 1:
            return self.cpu_seconds(), periods
        usage_us = table.get("usage_usec")
        return None if usage_us is None else usage_us / 1e6, periods

    def cpu_quota_cores(self) -> Optional[float]:
        """The tightest CPU limit on the way up to the root, in cores, or None when there is none."""
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
    """Controller → path, from /proc/PID/cgroup. The unified hierarchy's controller is ""."""
    paths = {}
    for line in proc_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _folders(root: str, controller: str, paths: Dict[str, str], version: int) -> List[str]:
    """The cgroup's folder and its ancestors up to the mount, nearest first; only those that exist here.

    Inside a container on v1 the path names folders of the host that are not mounted: the mount itself is ours then.
    """
    mount = root if version == 2 else os.path.join(root, controller)
    path = paths.get("" if version == 2 else controller, "/").strip("/")
    parts = path.split("/") if path and ".." not in path else []
    candidates = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in candidates if os.path.isdir(folder)]


def _text(path: str) -> Optional[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a fourth of what open() takes
    except OSError:  # not mounted, not permitted, or this kernel has no such file
        return None
    try:
        return os.read(descriptor, _MOST_BYTES).decode()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _number(folders: List[str], name: str) -> Optional[int]:
    """The number in the nearest folder's file; "max" and absence are None."""
    text = _text(os.path.join(folders[0], name)) if folders else None
    return int(text) if text is not None and text.strip().lstrip("-").isdigit() else None


def _table(folders: List[str], name: str) -> Dict[str, int]:
    text = _text(os.path.join(folders[0], name)) if folders else None
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
