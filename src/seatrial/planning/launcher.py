"""Choose how the target's processes are started: by torchrun, or as one process on each node with TF_CONFIG."""

from __future__ import annotations

import json
from typing import Any, Literal

from seatrial.backends.containers.env_file import read_env_file
from seatrial.errors import UsageError
from seatrial.images.recipes import recipe
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.job.reading.signs import RANK_OPTIONS
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host

_EXAMPLE = json.dumps({"cluster": {"worker": ["a:29400", "b:29400"]}, "task": {"type": "worker", "index": 0}})


def refuse_half_set(job: Job, script: ScriptFacts, host: Host, *, inherits: bool) -> None:
    """Raises UsageError for a TF_CONFIG of a TensorFlow script that is none.

    Args:
        inherits: the target has this process's environment.
    """
    found = {}
    for path in job.env_files:
        found.update(read_env_file(path, host))
    found.update(job.env)
    value = found.get("TF_CONFIG", host.env.get("TF_CONFIG") if inherits else None)
    if value is None or script.framework != "tensorflow" or (wrong := what_is_wrong(value)) is None:
        return
    where = "" if "TF_CONFIG" in found else " of this shell"
    raise UsageError(
        f"TF_CONFIG{where} is half set: {wrong}",
        cause="TensorFlow's workers find each other by it, and without a part of it each would train for itself; "
        f"whole it is {_EXAMPLE}",
        run=f"seatrial run {job.target.value} --nodes host1,host2   # and no TF_CONFIG: it is set on each host",
    )


def what_is_wrong(value: str) -> str | None:
    """A few words on the first thing that is missing or does not fit; None: it is whole, or empty.

    Source: tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py of 2.21, and what a
    MultiWorkerMirroredStrategy says of each.
    """
    try:
        told = json.loads(value or "{}")
    except ValueError as error:
        return f"it is not JSON ({error})"
    if not isinstance(told, dict):
        return "it is not a JSON object"
    if not told:
        return None
    cluster, task = told.get("cluster"), told.get("task")
    if not isinstance(cluster, dict) or not cluster:
        return "it has no cluster"
    if wrong := next((name for name, hosts in cluster.items() if not _hosts(hosts)), None):
        return f"cluster.{wrong} is not a list of HOST:PORT"
    if not isinstance(task, dict):
        return "it has no task"
    kind, index = task.get("type"), task.get("index")
    if kind is None or index is None:
        return f"its task has no {'type' if kind is None else 'index'}"
    if kind == "evaluator":  # stands in no cluster
        return None
    if kind not in cluster:
        return f"its task is of type {kind!r}, and the cluster has {', '.join(sorted(cluster))}"
    if not str(index).isdigit() or int(index) >= len(cluster[kind]):
        return f"its task's index is {index!r}, and the cluster has {len(cluster[kind])} of type {kind}"
    return None


def _hosts(hosts: Any) -> bool:
    """A list, or of a sparse cluster a mapping, of HOST:PORT."""
    values = list(hosts.values()) if isinstance(hosts, dict) else hosts
    if not isinstance(values, list) or not values:
        return False
    return all(isinstance(host, str) and host.rpartition(":")[2].isdigit() and ":" in host for host in values)


Launcher = Literal["torchrun", "none"]

#: Ranks that failed or were lost start again this often, where they go on from checkpoints.
RESTARTS = 3


#: Framework → how its scripts join several nodes, and what to type or change.
_HOW_TO_JOIN = {
    "torch": (
        "a distributed script calls init_process_group",
        "seatrial run … --launcher torchrun   # if it does join one",
    ),
    "tensorflow": (
        "a distributed script makes a tf.distribute.MultiWorkerMirroredStrategy",
        "seatrial run … --launcher none   # if it does join the others",
    ),
    "jax": (
        "a distributed script calls jax.distributed.initialize()",
        "seatrial run … --launcher none   # if it does join the others",
    ),
}


_NO_SIGN = {
    "torch": "no sign that the script joins a process group",
    "tensorflow": "no sign that the script joins several workers (tf.distribute)",
    "jax": "no sign that the script joins several processes (jax.distributed)",
}


def choose_launcher(job: Job, script: ScriptFacts, gpus: int) -> tuple[Launcher, Choice]:
    """torchrun for several GPUs where the script joins a process group or is a recipe that takes a rank a GPU.

    One process gets it only where the script cannot run without: under torchrun a script that looks for RANK joins a
    process group, by NCCL even on a CPU.

    Args:
        gpus: of each node.

    Raises UsageError: several nodes would train the same model again, each for itself.
    """
    chosen, reason = _chosen(job, script, gpus)
    if chosen == "none" and job.nodes > 1 and job.launcher == "auto" and not script.workers_evidence:
        cause, run = _HOW_TO_JOIN.get(script.framework or "torch", _HOW_TO_JOIN["torch"])
        raise UsageError(
            f"{job.target.value or 'The image'} would run on {job.nodes} nodes independently: {reason}",
            cause=f"Each node would train the same model separately; {cause}",
            run=run,
        )
    if gives_rank(job, script, chosen):
        reason += f"; each rank is given {script.rank_option}"
    return chosen, Choice(what="launcher", value=_value(chosen, job.nodes, max(1, gpus)), reason=reason)


def _chosen(job: Job, script: ScriptFacts, gpus: int) -> tuple[Launcher, str]:
    if job.launcher != "auto":
        return job.launcher, f"--launcher {job.launcher}"
    if script.launcher_evidence:
        return "torchrun", f"the script needs what torchrun sets: {script.launcher_evidence}"
    if script.workers_evidence and not script.torchrun_evidence:
        how = "JAX_COORDINATOR_ADDRESS" if script.framework == "jax" else "TF_CONFIG"
        told = f", which are told of each other by {how}" if job.nodes > 1 else ""
        return "none", f"one process on each node{told}: {script.workers_evidence}"
    several = max(1, gpus) * job.nodes > 1
    if several and script.torchrun_evidence and not script.one_process_evidence:
        return "torchrun", f"the script joins a process group: {script.torchrun_evidence}"
    if several and has_a_rank_per_gpu(job):
        return "torchrun", f"{job.target.value} runs one rank per GPU"
    if script.torchrun_evidence and not script.one_process_evidence:
        return "none", f"one process: the script also runs without torchrun ({script.torchrun_evidence})"
    no_sign = _NO_SIGN.get(script.framework or "torch", _NO_SIGN["torch"])
    return "none", script.one_process_evidence or no_sign


def _value(chosen: Launcher, nodes: int, gpus: int) -> str:
    if chosen == "none":
        return "none"
    ranks = f"{gpus} rank{'s' * (gpus > 1)}"
    return f"torchrun, {ranks}" if nodes == 1 else f"torchrun, {nodes} × {ranks}"


def has_a_rank_per_gpu(job: Job) -> bool:
    """Return whether the target is a recipe that runs under torchrun on several GPUs; bench starts its own."""
    return job.target.kind == "recipe" and recipe(job.target.value).ranks


def with_rank(argv: tuple[str, ...], job: Job, script: ScriptFacts, launcher: Launcher) -> tuple[str, ...]:
    """The command of a script of torch.distributed.launch's time: torchrun puts each rank's number in.

    Without it each rank of such a script takes itself for the only one, or all take the same GPU.
    Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, ``macros.substitute``; torch 1.9 to 2.13.
    """
    if not gives_rank(job, script, launcher):
        return argv
    own = len(argv) - len(job.target.args)  # before its other arguments, as torch.distributed.launch has it
    return (*argv[:own], f"{script.rank_option}=${{local_rank}}", *argv[own:])


def gives_rank(job: Job, script: ScriptFacts, launcher: Launcher) -> bool:
    """Return whether each rank gets its number by an option of the script that the user has not given."""
    given = any(word.partition("=")[0] in RANK_OPTIONS for word in job.target.args)
    return launcher == "torchrun" and script.rank_option is not None and not given


def restarts(job: Job, *, keeps_checkpoints: bool) -> int:
    """Return how often failed ranks start again; without checkpoints, never by default."""
    if job.restarts is not None:
        return job.restarts
    return RESTARTS if keeps_checkpoints else 0
