"""Keep the agent out of the target's reach, and the target's processes from outliving the agent.

The agent is made undumpable before the target exists; guard, target and imports by a child come before any thread.
"""

import ctypes
import fcntl
import importlib.util
import marshal
import os
import signal
import struct
import sys
import time
import types
from typing import Any, List, Optional

from seatrial.agent import target
from seatrial.agent.target import RUN_VARIABLE
from seatrial.probe import processes

_PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4  # Source: linux/prctl.h

#: Capabilities that let a target reach the agent's memory, or the kernel under it. Source: linux/capability.h
_DANGEROUS = {
    2: "DAC_READ_SEARCH", 16: "SYS_MODULE", 17: "SYS_RAWIO", 19: "SYS_PTRACE",
    21: "SYS_ADMIN", 38: "PERFMON", 39: "BPF", 40: "CHECKPOINT_RESTORE",
}  # fmt: skip

#: Audit number of the architecture → the first of add_key, request_key and keyctl. Source: linux/audit.h, unistd.h
_KEYRINGS = {0xC000003E: 248, 0x40000003: 286, 0xC00000B7: 217, 0x40000028: 309}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2  # Source: linux/prctl.h, linux/seccomp.h
_ALLOWED, _NOT_PERMITTED = 0x7FFF0000, 0x00050001
_X32 = 0x40000000
#: Processes that fork while being killed need another round; more than this many means that one cannot be killed.
_ROUNDS = 50


def close() -> Optional[str]:
    """Shut this process off from others of its user. Why the target could alter its evidence all the same, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    _close_keyrings(libc)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 or libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        return "the kernel does not protect the agent's memory"
    status = processes.status(os.getpid())
    can_gain = os.geteuid() == 0 or status.get("NoNewPrivs") != "1"  # what is not dropped for good
    try:
        held = int(status["CapBnd" if can_gain else "CapEff"], 16)
    except (KeyError, ValueError):
        return "the capabilities of the target cannot be read"
    if names := [name for bit, name in sorted(_DANGEROUS.items()) if held >> bit & 1]:
        return "the target has the capabilities %s" % ", ".join(names)
    if _own_code_is_writable():
        return "the target can write the Python that the agent runs on"
    if len(own_python()) == 1:
        return "the agent ran on the Python of the image, which its packages can replace"
    return None


def _close_keyrings(libc: Any) -> None:
    """Deny this process and its children the kernel's keyrings: without a user namespace root's are the host's.

    Docker's filter does this, Podman's does not. Without no-new-privileges the kernel refuses filters. A filter is a
    program of 8-byte instructions. Source: kernel.org/doc/html/latest/userspace-api/seccomp_filter.html
    """
    load, jump_if, jump_from, jump_above, both, end = 0x20, 0x15, 0x35, 0x25, 0x54, 0x06
    program = [(load, 0, 0, 4)]
    for architecture, first in _KEYRINGS.items():
        program += [(jump_if, 0, 6, architecture), (load, 0, 0, 0), (both, 0, 0, ~_X32 & 0xFFFFFFFF)]
        program += [(jump_from, 0, 1, first), (jump_above, 0, 1, first + 2)]
        program += [(end, 0, 0, _ALLOWED), (end, 0, 0, _NOT_PERMITTED)]
    program += [(end, 0, 0, _ALLOWED)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    described = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, described, 0, 0)


def own_python(*folders: str) -> List[str]:
    """Return the command line of this Python, behind the loader that came with it, which also looks in ``folders``."""
    place = os.path.dirname(os.path.dirname(sys.executable))
    loader = os.path.join(place, "lib", "ld.so")
    if not os.path.exists(loader):
        return [sys.executable]
    # An empty folder would be the working directory, which the target can write.
    return [loader, "--library-path", ":".join([os.path.join(place, "lib"), *filter(None, folders)]), sys.executable]


def _own_code_is_writable() -> bool:
    """Return True if the target could change modules that Python loads later, also by a link on the way to them."""
    places = [os.path.dirname(os.__file__), os.path.realpath(sys.executable)]
    places += [] if _is_sealed(sys.argv[0]) else [sys.argv[0]]
    moved = len(own_python()) > 1 and os.path.realpath(sys.executable) != sys.executable
    return moved or any(os.access(place, os.W_OK) for place in places)


def _is_sealed(path: str) -> bool:
    """Return whether it is memory of this process that cannot be written any more (system/agent_archive.py)."""
    descriptor = archive_descriptor(path)
    try:
        return descriptor is not None and bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    except (AttributeError, OSError):
        return False


def archive_descriptor(path: str) -> Optional[int]:
    """Return N of /proc/self/fd/N, which a child needs to read the archive; None for a file."""
    folder, _, number = path.rpartition("/")
    return int(number) if folder == "/proc/self/fd" and number.isdigit() else None


def start(run_id: str) -> int:
    """Fork the guard, before any thread exists, and return its PID. The end of file on its pipe is our death."""
    read_end, write_end = os.pipe()
    if child := os.fork():
        os.close(read_end)
        os.set_inheritable(write_end, False)
        return child
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, read_end)  # the engine's pipes, and our copy of the write end, must not stay open
        os.closerange(read_end + 1, 256)
        os.read(read_end, 1)
        for _ in range(_ROUNDS):
            if not (marked := find_run(run_id)):
                break
            target.send_signal(marked, signal.SIGKILL)
            time.sleep(0.02)
    finally:
        os._exit(0)


def find_run(run_id: str) -> List[int]:
    """Return the PIDs of live processes with this run's mark, except this process."""
    mark = ("%s=%s" % (RUN_VARIABLE, run_id)).encode()
    alive = [process.pid for process in processes.everyone().values() if process.state != "Z"]
    return [pid for pid in alive if pid != os.getpid() and mark in processes.environment(pid)]


def import_compiled_by_child(name: str) -> Any:
    """Import a module that a forked child compiles; call before any thread exists. Raises ImportError."""
    if name in sys.modules:
        return sys.modules[name]
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(read_end)
            with os.fdopen(write_end, "wb") as pipe:
                spec = importlib.util.find_spec(name)  # even that compiles it, in zipimport
                loader: Any = spec.loader if spec is not None else None
                pipe.write(marshal.dumps(loader.get_code(name)) if loader is not None else b"")
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        raise ImportError("%s cannot be found or compiled" % name, name=name)
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(marshal.loads(data), module.__dict__)
    return module
