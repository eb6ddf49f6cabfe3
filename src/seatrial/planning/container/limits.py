"""Limits of a container: memory, shared memory and processes; variables of Ray."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.backends.base import EngineFacts
from seatrial.errors import EngineError, UsageError
from seatrial.findings.catalogue import by_id
from seatrial.job.in_container import SHM_BYTES_PER_GPU
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.job.units import format_bytes

#: Ray's own defaults for its object store: at most, and of a /dev/shm; and the least that it accepts.
#: Source: ray 2.60, ray/_private/ray_constants.py (…_MAX_MEMORY_BYTES, OBJECT_STORE_MINIMUM_MEMORY_BYTES) and
#: ray/_private/utils.py, resolve_object_store_memory.
MOST_STORE_BYTES = 200 * 10**9
SHM_SHARE = 0.95
LEAST_STORE_BYTES = 75 * 2**20

#: Ray goes to /tmp and warns, or refuses, if its store exceeds /dev/shm. Caps Ray's default, no size of a script.
_MOST_VARIABLE = "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES"

#: ``ray start`` prompts, and sends statistics if nobody answers. Source: docs.ray.io, "Usage Stats Collection".
_STATISTICS_VARIABLE = "RAY_USAGE_STATS_ENABLED"


def ray_env(evidence: str | None, shm_bytes: int | None, have: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a script that imports Ray; what the user or the image sets stays.

    ``evidence``: where it does so, or None. ``shm_bytes``: of the container; None for a process, where Ray measures.
    """
    if evidence is None:
        return {}
    env = {_STATISTICS_VARIABLE: "0"}
    if shm_bytes is not None and (most := int(shm_bytes * SHM_SHARE)) >= LEAST_STORE_BYTES:
        env[_MOST_VARIABLE] = str(min(most, MOST_STORE_BYTES))
    return {name: value for name, value in env.items() if name not in have}


#: Most processes and threads of a container, and never more than half of its host's: a fork bomb ends there and not on
#: the host. It is enough for 64 data loaders of 64 threads each.
PIDS = 32768

#: Memory that a container leaves to the host, unless --memory is set: a twentieth, and at least this much. A script
#: that takes everything then ends itself and not the machine's sshd.
HOST_MEMORY_SHARE = 20
HOST_MEMORY_LEAST_BYTES = 512 * 2**20

#: Frameworks that can be made to stay below ``--gpu-memory`` without a change to the script:
#: torch.cuda.set_per_process_memory_fraction, TensorFlow's GPUOptions, and the options of JAX's XLA client. CUDA itself
#: has no limit that a process cannot pass.
LIMITED_FRAMEWORKS = frozenset({"torch", "tensorflow", "jax"})


def shm_limit(job: Job, gpu_count: int, *, memory_bytes: int | None, counts: str = "") -> tuple[int, Choice]:
    """Compute the size of /dev/shm in bytes, and explain it.

    ``memory_bytes``: the limit, or the machine's, or None. ``counts``: a remark on how it counts as memory.
    """
    if job.shm_bytes is not None:
        size, reason = job.shm_bytes, "--shm-size"
    elif memory_bytes is not None:
        # Half, as the kernel sizes a tmpfs of its own: no number of DataLoader workers meets a smaller bound, and a
        # script that fills it meets "no space", which names the cause, and not the OOM killer, which does not.
        size, reason = memory_bytes // 2, "half of the memory; loader workers pass batches through it"
    else:
        size = SHM_BYTES_PER_GPU * max(1, gpu_count)
        reason = f"{format_bytes(SHM_BYTES_PER_GPU)} × max(1, GPUs), as the machine's memory is unknown"
    reason = f"{reason}; {counts}" if counts else reason
    return size, Choice(what="/dev/shm", value=format_bytes(size), reason=reason)


def memory_warnings(job: Job, host_memory_bytes: int | None = None) -> tuple[str, ...]:
    """Warn of sizes that cannot be filled; ``host_memory_bytes``: None where the target may run on another machine."""
    host = ("this host's", host_memory_bytes)
    bound = ("--memory", job.memory_bytes) if job.memory_bytes else host
    sizes = (("--shm-size", job.shm_bytes, *bound), ("--memory", job.memory_bytes, *host))
    return tuple(
        f"{option} {format_bytes(size)} is more than {what} {format_bytes(most)}: a script that fills it may be killed"
        for option, size, what, most in sizes
        if size and most and size > most
    )


def memory_limit(job: Job, engine: EngineFacts, host_memory_bytes: int | None) -> tuple[int | None, tuple[Choice, ...]]:
    if job.memory_bytes is not None or not engine.memory_limits or host_memory_bytes is None or engine.desktop:
        return job.memory_bytes, ()
    size = host_memory_bytes - max(HOST_MEMORY_LEAST_BYTES, host_memory_bytes // HOST_MEMORY_SHARE)
    if size < HOST_MEMORY_LEAST_BYTES:
        return None, ()
    reason = f"of this host's {format_bytes(host_memory_bytes)}; the rest is left for the host; change it with --memory"
    return size, (Choice(what="memory", value=format_bytes(size), reason=reason),)


def refuse_unenforceable(job: Job, engine: EngineFacts) -> None:
    if job.cpus is not None and engine.cores and job.cpus > engine.cores:
        words = f"--cpus {job.cpus:g} is more than this machine has: {engine.cores} cores"
        raise UsageError(words, run=f"seatrial run … --cpus {engine.cores}")
    limits = [("--cpus", job.cpus, engine.cpu_limits), ("--memory", job.memory_bytes, engine.memory_limits)]
    for flag, value, enforced in limits:
        if value is not None and not enforced:
            cause = "it runs rootless and the user has no cgroup controllers of that kind (cgroup v2 delegation)"
            run = by_id("cgroup-not-delegated").fix
            raise EngineError(f"{engine.name.capitalize()} cannot enforce {flag} here", cause=cause, run=run)
