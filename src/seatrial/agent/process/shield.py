"""Keeping the agent out of the target's reach, who is of the same user and in the same container.

An undumpable process belongs to nobody in /proc: others of its user, root without CAP_SYS_PTRACE included, can neither
open its descriptors, read or write its memory, nor trace it (ptrace(2), "Ptrace access mode checking"). And PID 1 of a
container takes no signal from inside that it has no handler for, SIGKILL and SIGSTOP included (pid_namespaces(7)).
"""

import ctypes
import os
import sys
from typing import Dict, Optional

_PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4  # Source: linux/prctl.h

#: With one of these a target reaches the agent's memory, or the kernel under it. Source: linux/capability.h
_DANGEROUS = {
    2: "DAC_READ_SEARCH",
    16: "SYS_MODULE",
    17: "SYS_RAWIO",
    19: "SYS_PTRACE",
    21: "SYS_ADMIN",
    38: "PERFMON",
    39: "BPF",
    40: "CHECKPOINT_RESTORE",
}


def close() -> Optional[str]:
    """Shut this process off from others of its user. Why the target could alter its evidence all the same, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 or libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        return "the kernel does not protect the agent's memory"
    status = _status()
    held = _capabilities(status)
    if held is None:
        return "the capabilities of the target cannot be read"
    names = [name for bit, name in sorted(_DANGEROUS.items()) if held >> bit & 1]
    if names:
        return "the target has the capabilities %s" % ", ".join(names)
    if _own_code_is_writable():
        return "the target can write the Python that the agent runs on"
    return None


def _capabilities(status: Dict[str, str]) -> Optional[int]:
    """What the target can have: of root, or where a setuid program can give it, all that are not dropped for good."""
    can_gain = os.geteuid() == 0 or status.get("NoNewPrivs") != "1"
    try:
        return int(status["CapBnd"] if can_gain else status["CapEff"], 16)
    except (KeyError, ValueError):
        return None


def _own_code_is_writable() -> bool:
    """Python loads some modules only when it needs them."""
    places = [os.path.dirname(os.__file__), os.path.realpath(sys.executable), sys.argv[0]]
    return any(os.access(place, os.W_OK) for place in places)


def _status() -> Dict[str, str]:
    """Name → value of /proc/self/status."""
    try:
        with open("/proc/self/status") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}
