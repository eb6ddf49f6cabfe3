"""Choose how the target's processes are started: by torchrun, or as one process on each node."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from seatrial.backends import table
from seatrial.errors import UsageError
from seatrial.images.recipes import recipe
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.job.reading.signs import RANK_OPTIONS
from seatrial.job.script import ScriptFacts
from seatrial.planning.site import Meeting
from seatrial.recipe_names import module_of
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.project_files import own_table

Launcher = Literal["torchrun", "none"]
#: Ranks that failed or were lost start again this often, where they go on from checkpoints.
RESTARTS = 3
#: Framework → why several nodes are refused if nothing shows how its scripts join, how they do, and the fix.
_JOIN = Path(__file__).with_name("join.toml")
#: torchrun's usual port for a rendezvous. Source: docs.pytorch.org/docs/stable/elastic/run.html.
PORT = 29400
#: scontrol expands a list by itself, in milliseconds; it contacts no other machine for that.
SCONTROL_S = 10.0
#: ``--nodes slurm``: hosts and this node's number come from SLURM_JOB_NODELIST and SLURM_NODEID.
SLURM = ("slurm",)


def choose_launcher(job: Job, script: ScriptFacts, gpus: int) -> tuple[Launcher, Choice]:
    """Choose torchrun for several GPUs where the script joins a process group or is a recipe that takes a rank a GPU.

    One process gets it only where the script cannot run without: a script that looks for RANK would join a process
    group, by NCCL even on a CPU. ``gpus``: of each node.
    Raises UsageError: several nodes would train the same model again, each for itself.
    """
    chosen, reason = _chosen(job, script, gpus)
    if chosen == "none" and job.nodes > 1 and job.launcher == "auto" and not script.workers_evidence:
        join = own_table(_JOIN)[script.framework or "torch"]
        problem = f"{job.target.value or 'The image'} would run on {job.nodes} nodes independently: {reason}"
        cause = f"Each node would train the same model separately; {join['how']}"
        raise UsageError(problem, cause=cause, run=join["run"])
    if gives_rank(job, script, chosen):
        reason += f"; each rank gets {script.rank_option}"
    return chosen, Choice(what="launcher", value=_value(chosen, job.nodes, max(1, gpus)), reason=reason)


def _chosen(job: Job, script: ScriptFacts, gpus: int) -> tuple[Launcher, str]:
    if job.launcher != "auto":
        return job.launcher, f"--launcher {job.launcher}"
    if script.launcher_evidence:
        return "torchrun", f"the script needs variables that torchrun sets: {script.launcher_evidence}"
    if script.workers_evidence and not script.torchrun_evidence:
        how = "JAX_COORDINATOR_ADDRESS" if script.framework == "jax" else "TF_CONFIG"
        peers = f", which find each other by {how}" if job.nodes > 1 else ""
        return "none", f"one process on each node{peers}: {script.workers_evidence}"
    several = max(1, gpus) * job.nodes > 1
    if several and script.torchrun_evidence and not script.one_process_evidence:
        return "torchrun", f"the script joins a process group: {script.torchrun_evidence}"
    # A recipe that starts its own processes on several GPUs, as bench does, has no ranks.
    if several and job.target.kind == "recipe" and recipe(job.target.value).ranks:
        return "torchrun", f"{job.target.value} runs one rank per GPU"
    if script.torchrun_evidence and not script.one_process_evidence:
        return "none", f"one process: the script also runs without torchrun ({script.torchrun_evidence})"
    return "none", script.one_process_evidence or own_table(_JOIN)[script.framework or "torch"]["sign"]


def _value(chosen: Launcher, nodes: int, gpus: int) -> str:
    if chosen == "none":
        return "none"
    ranks = f"{gpus} rank{'s' * (gpus > 1)}"
    return f"torchrun, {ranks}" if nodes == 1 else f"torchrun, {nodes} × {ranks}"


def with_rank(argv: tuple[str, ...], job: Job, script: ScriptFacts, launcher: Launcher) -> tuple[str, ...]:
    """Add the rank's option to a script of torch.distributed.launch's time: torchrun puts each rank's number in.

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
    return RESTARTS * keeps_checkpoints if job.restarts is None else job.restarts


def join(job: Job, rank_of: int | None, host: Host) -> Job:
    """Return the job with its hosts' names and, where known, which of them this is.

    ``rank_of``: from 0; None if Slurm has it. Raises UsageError: beyond the hosts, or several nodes without names.
    """
    on_a_cluster = table.is_elsewhere(job.backend)
    if on_a_cluster and job.hosts:
        problem = "on Kubernetes --nodes takes a number: the scheduler picks the hosts"
        raise UsageError(problem, run="seatrial run … --nodes 2")
    if on_a_cluster or (job.nodes == 1 and not job.hosts):
        if rank_of is not None:
            raise UsageError("--rank-of needs --nodes host1,host2", run="seatrial run … --nodes a,b --rank-of 0")
        return job
    if not job.hosts:
        run = "seatrial run … --nodes host1,host2   # or --on k8s; under Slurm: --nodes slurm"
        raise UsageError(f"{job.nodes} nodes need their names: only Kubernetes can discover them", run=run)
    hosts = slurm_hosts(host) if job.hosts == SLURM else job.hosts
    if job.hosts == SLURM and rank_of is None:
        rank_of = int(host.env.get("SLURM_NODEID", "0"))
    if rank_of is not None and not 0 <= rank_of < len(hosts):
        raise UsageError(f"--rank-of {rank_of}: there are {len(hosts)} hosts, 0 to {len(hosts) - 1}")
    return job.changed(hosts=hosts, nodes=len(hosts), node_rank=rank_of)


def slurm_hosts(host: Host) -> tuple[str, ...]:
    """Return the hosts of this Slurm job, in its order. Raises UsageError outside of one."""
    listed = host.env.get("SLURM_JOB_NODELIST") or host.env.get("SLURM_NODELIST")
    if not listed:
        run = "srun --nodes 2 --ntasks-per-node 1 seatrial run … --nodes slurm"
        raise UsageError("--nodes slurm, but this is not a Slurm job: SLURM_JOB_NODELIST is not set", run=run)
    if (program := shutil.which("scontrol", path=host.env.get("PATH", ""))) is not None:
        shown = command.run([program, "show", "hostnames", listed], timeout_s=SCONTROL_S)
        if shown.exit_code == 0 and shown.stdout.strip():
            return tuple(shown.stdout.split())
    return tuple(expand(listed))  # a container of the job, as a rule, has no scontrol


def expand(nodelist: str) -> list[str]:
    """Expand ``gpu[01-03,7],login``. Source: slurm.schedmd.com/hostlists.html (one pair of brackets a name)."""
    names: list[str] = []
    for word in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,]*)?", nodelist):
        if (match := re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", word)) is None:
            names.append(word)
            continue
        for part in match[2].split(","):
            first, dash, last = part.partition("-")
            numbers = range(int(first), int(last if dash else first) + 1)
            names += [f"{match[1]}{number:0{len(first)}d}{match[3]}" for number in numbers]
    return names


def meeting(job: Job) -> Meeting:
    """Return where this node finds the others; the defaults on one machine."""
    if job.node_rank is None:
        return Meeting()
    # A host that is named twice, to try it out, has a port for each.
    workers = tuple(f"{host}:{PORT + job.hosts[:node].count(host)}" for node, host in enumerate(job.hosts))
    place, name = workers[0], rendezvous_id(job)
    return Meeting(job.nodes, node_rank=job.node_rank, rendezvous=place, rendezvous_id=name, workers=workers)


def rendezvous_id(job: Job) -> str:
    """Return the ID that the nodes of one run share; each has a run ID of its own."""
    return job.name or "-".join(("seatrial", job.target.value.replace("/", "-"), str(job.nodes)))


def instructions(job: Job, words: Sequence[str], script: ScriptFacts | None = None) -> str:
    """Return the commands for each host: seatrial's own, and torchrun's for hosts without seatrial.

    ``words``: behind ``seatrial``. ``script``: its variables replace torchrun, if it finds its workers by them.
    """
    cut = words.index("--") if "--" in words else len(words)
    before, behind = words[:cut], words[cut:]
    lines = [f"{len(job.hosts)} hosts meet at {job.hosts[0]}:{PORT}. On each, in the project's folder:", ""]
    for rank, host in enumerate(job.hosts):
        lines.append(f"  {host}:  " + shlex.join(["seatrial", *before, "--rank-of", str(rank), *behind]))
    processes = {"count": str(job.gpus.count), "none": "1"}.get(job.gpus.kind, "gpu")
    module = job.target.value if job.target.kind == "module" else module_of(job.target.value)
    target = [job.target.value] if job.target.kind == "script" else ["-m", module]
    torchrun = ["torchrun", "--nnodes", str(job.nodes), "--nproc-per-node", processes, "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", f"{job.hosts[0]}:{PORT}", "--rdzv-id", rendezvous_id(job)]
    torchrun += with_rank((*target, *job.target.args), job, script or ScriptFacts(), "torchrun")
    if script is not None and script.workers_evidence and not script.torchrun_evidence:
        lines += ["", "Without seatrial, on each host with its own number in place of N:", "", *_variables(job, script)]
    else:
        lines += ["", "Without seatrial, the same on every host:", "", "  " + shlex.join(torchrun)]
    named = ["slurm" if word == ",".join(job.hosts) else word for word in before]
    srun = ["srun", "--nodes", str(job.nodes), "--ntasks-per-node", "1", "seatrial", *named, *behind]
    lines += ["", "Under Slurm:", "", "  " + shlex.join(srun)]
    return "\n".join(lines)


def _variables(job: Job, script: ScriptFacts) -> list[str]:
    """Return lines with the variables that the agent would set on each node."""
    hosts = meeting(job.changed(node_rank=0)).workers
    if script.framework == "jax":
        return [f"  JAX_COORDINATOR_ADDRESS={hosts[0]}   # and initialize(num_processes={len(hosts)}, process_id=N)"]
    config = {"cluster": {"worker": list(hosts)}, "task": {"type": "worker", "index": "N"}}
    return ["  TF_CONFIG=" + shlex.quote(json.dumps(config).replace('"N"', "N"))]
