"""Which container a process belongs to, read from its cgroup path: Docker, Podman, containerd, CRI-O, Kubernetes.

Source of the paths: systemd and cgroupfs drivers of Docker 20.10 and Podman 4.3 as they run here, and
https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/cgroup_manager_linux.go for pods.
"""

import os
import re
import time
from typing import Dict, List, NamedTuple, Optional

#: How often every process's cgroup is read after all.
RESCAN_S = 30.0

_ID = r"(?P<id>[0-9a-f]{64})"
#: Engine → what stands before its container's ID. Podman's conmon has a cgroup of its own and is nobody's container.
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
    """The container in the text of /proc/PID/cgroup, or None for a process of the host.

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
    """The container of a process; None for the host's own, and for one that is gone."""
    try:
        with open("%s/%d/cgroup" % (proc, pid)) as file:
            return parse(file.read())
    except OSError:
        return None


class Attribution:
    """Which containers have processes here, asked again and again: the cgroup of a known process is not read anew.

    A process is known once two readings agree: an engine starts a container's first process in its own cgroup and
    then moves it. Every RESCAN_S all are read: PIDs are given again, and the service manager may move processes.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: Dict[str, Optional[Owner]] = {}
        self._known: Dict[str, Optional[Owner]] = {}
        self._rescan_at_s = 0.0

    def containers(self) -> Dict[Owner, List[int]]:
        """Every container that has a process here, with its PIDs in order."""
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
