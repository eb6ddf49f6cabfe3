"""The container (or the tree of processes) around one process: CPU, memory, /dev/shm, and who in it works."""

import os
import time
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

from seatrial.probe import proc, shm
from seatrial.probe.cgroup import Cgroup
from seatrial.probe.tree import Tree

#: Read at most this often: rates over less are noise, and the files cost more than a GPU's counters.
INTERVAL_S = 0.9

#: Limits seldom change (``docker update``).
LIMITS_INTERVAL_S = 30.0


class Container:
    """The one of a process, or that process and its descendants where it has no cgroup of its own.

    Args:
        pid: the process. Default: this process, itself not counted.

    Attributes:
        mains: PIDs of the processes that drive the GPUs; the caller adds them as it learns of them.
    """

    def __init__(self, pid: Optional[int] = None) -> None:
        self.mains: Set[int] = set()
        self._pid = os.getpid() if pid is None else pid
        self._tree = Tree(self._pid, with_root=pid is not None)
        self._cgroup = Cgroup(str(self._pid))
        self._own = self._is_own_cgroup()
        self._limits: Dict[str, Any] = {}
        self._limits_due_s = 0.0
        self._keys: Dict[str, Any] = {}
        self._before = self._look()

    def read(self) -> Dict[str, Any]:
        """The container's keys of a ``sample`` event; rates since they were last read, INTERVAL_S ago or more.

        Sooner, the same again.
        """
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
        shared = shm.read()
        self._keys = {
            "cpu_cores": _rate(before.cpu_seconds, now.cpu_seconds, now.read_s - before.read_s),
            "memory_bytes": now.memory_bytes,
            "memory_limit_bytes": self._limits["memory_limit_bytes"],
            "shm_used_bytes": shared.used_bytes if shared else None,
            "shm_total_bytes": shared.total_bytes if shared else None,
            "processes": len(now.tree),
            **self._roles(before, now),
            "cpu_throttled_pct": _throttled(before.cpu_periods, now.cpu_periods),
            "cpu_quota_cores": self._limits["cpu_quota_cores"],
        }
        return self._keys

    def _is_own_cgroup(self) -> bool:
        """Whether the cgroup holds nobody but us: a container's. A login session's is shared with strangers."""
        members = set(self._cgroup.processes())
        ours = {process.pid for process in proc.descendants(self._pid)} | {self._pid, 1}
        return bool(members) and members <= ours

    def _look(self) -> "_Look":
        tree = self._tree.read()
        cpu_seconds, cpu_periods = self._cgroup.cpu() if self._own else (None, None)
        memory_bytes = self._cgroup.memory_bytes() if self._own else None
        return _Look(
            read_s=time.monotonic(),
            cpu_seconds=sum(one.cpu_seconds for one in tree.values()) if cpu_seconds is None else cpu_seconds,
            memory_bytes=sum(one.rss_bytes for one in tree.values()) if memory_bytes is None else memory_bytes,
            tree=tree,
            cpu_periods=cpu_periods,
        )

    def _roles(self, before: "_Look", now: "_Look") -> Dict[str, Any]:
        """CPU of those who drive the GPUs, and of those who work for them (data loaders)."""
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
    """What was read at one moment: CPU time and memory of the whole, and every process in it."""

    read_s: float
    cpu_seconds: float
    memory_bytes: int
    tree: Dict[int, proc.Process]
    cpu_periods: Optional[Tuple[int, int]]


def _rate(before_s: float, now_s: float, passed_s: float) -> float:
    """Cores in use. Never negative: CPU time of ended processes leaves a tree's sum."""
    return round(max(0.0, now_s - before_s) / max(passed_s, 1e-3), 3)


def _throttled(before: Optional[Tuple[int, int]], now: Optional[Tuple[int, int]]) -> Optional[float]:
    """Share of the periods in between, in percent; None without a quota, and 0 where none has passed."""
    if before is None or now is None:
        return None
    periods, throttled = now[0] - before[0], now[1] - before[1]
    return round(100.0 * throttled / periods, 1) if periods > 0 else 0.0
