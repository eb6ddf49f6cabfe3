"""Limits of a container: memory, shared memory, processes; what an engine or a framework can be held to."""

from __future__ import annotations

from seatrial.backends.base import EngineFacts
from seatrial.errors import EngineError
from seatrial.findings.catalogue import by_id
from seatrial.job.model import Job
from seatrial.job.plan import SHM_BYTES_PER_GPU, Choice
from seatrial.job.units import format_bytes
from seatrial.planning.ray import SHM_SHARE, store_bytes

#: Processes and threads of a container, at most, and no more than half of what its host can have: a fork bomb ends
#: there and not in the host. 64 data loaders of 64 threads each have room.
PIDS = 32768

#: What a container leaves of the host's memory to the host, unless --memory says otherwise: a twentieth, and this much
#: at least. A script that takes all then ends itself and not the machine's sshd.
HOST_MEMORY_SHARE = 20
HOST_MEMORY_LEAST_BYTES = 512 * 2**20

#: Frameworks that can be told to stay below a limit without a change to the script:
#: torch.cuda.set_per_process_memory_fraction, TensorFlow's GPUOptions, and the options of JAX's XLA client.
LIMITED_FRAMEWORKS = frozenset({"torch", "tensorflow", "jax"})


def gpu_memory_enforceable(framework: str | None) -> bool:
    """Whether ``--gpu-memory`` can be kept: CUDA itself has no limit that a process cannot pass."""
    return framework in LIMITED_FRAMEWORKS


def shm_limit(
    job: Job, gpu_count: int, *, ray: str | None = None, memory_bytes: int | None = None
) -> tuple[int, Choice]:
    """The size of /dev/shm.

    Args:
        ray: where the script imports Ray, or None.
        memory_bytes: the container's limit, where there is one.
    """
    if job.shm_bytes is not None:
        size, reason = job.shm_bytes, "--shm-size"
    else:
        size = SHM_BYTES_PER_GPU * max(1, gpu_count)
        reason = "2 GiB × max(1, GPUs): processes pass batches and gradients through it; engines default to 64 MB"
        if ray is not None and (store := store_bytes(memory_bytes)):
            size += int(store / SHM_SHARE)
            reason = f"2 GiB × max(1, GPUs), and {format_bytes(store)} for the object store of Ray ({ray})"
        # /dev/shm counts as memory. At half the limit, as the kernel sizes a tmpfs of its own, a script that fills
        # it meets "no space", which names the cause, and not the OOM killer, which does not.
        most = memory_bytes if ray is not None else job.memory_bytes
        if most is not None and size > most // 2:
            size, reason = most // 2, "half of the memory limit, as it counts towards that limit"
    return size, Choice(what="/dev/shm", value=format_bytes(size), reason=reason)


def shm_warnings(job: Job) -> tuple[str, ...]:
    if not job.shm_bytes or not job.memory_bytes or job.shm_bytes <= job.memory_bytes:
        return ()
    told = f"--shm-size {format_bytes(job.shm_bytes)} is more than --memory {format_bytes(job.memory_bytes)}"
    return (f"{told}: a script that fills it will be killed",)


def memory_limit(job: Job, engine: EngineFacts, host_memory_bytes: int | None) -> tuple[int | None, tuple[Choice, ...]]:
    if job.memory_bytes is not None or not engine.memory_limits or host_memory_bytes is None or engine.desktop:
        return job.memory_bytes, ()
    size = host_memory_bytes - max(HOST_MEMORY_LEAST_BYTES, host_memory_bytes // HOST_MEMORY_SHARE)
    if size < HOST_MEMORY_LEAST_BYTES:
        return None, ()
    reason = f"of this host's {format_bytes(host_memory_bytes)}; the rest is left for the host; change it with --memory"
    return size, (Choice(what="memory", value=format_bytes(size), reason=reason),)


def pids_limit(host_pids: int | None) -> int:
    """Processes and threads. ``host_pids``: how many this host can have, where it tells."""
    return min(PIDS, host_pids // 2) if host_pids else PIDS


def refuse_unenforceable(job: Job, engine: EngineFacts) -> None:
    asked = [("--cpus", job.cpus, engine.cpu_limits), ("--memory", job.memory_bytes, engine.memory_limits)]
    for flag, value, enforced in asked:
        if value is not None and not enforced:
            raise EngineError(
                f"{engine.name.capitalize()} cannot enforce {flag} here",
                cause="it runs rootless and the user has no cgroup controllers of that kind (cgroup v2 delegation)",
                run=by_id("cgroup-not-delegated").fix,
            )
