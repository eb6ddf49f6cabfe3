"""The whole machine: CPU in use, memory, load. Source of the files: proc(5)."""

import os
import time
from typing import Any, Dict, Optional

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Machine:
    """Reads /proc/stat, /proc/meminfo and /proc/loadavg; CPU is the mean since the last reading."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._busy_s, self._read_s = self._cpu_seconds(), time.monotonic()

    def read(self) -> Dict[str, Any]:
        """cpu_cores in use, cpu_count, memory_used_bytes, memory_total_bytes, load_1m; None where not told."""
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
        """All cores' time that was neither idle nor waiting for a disk; guests are in user time already."""
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
