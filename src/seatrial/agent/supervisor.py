"""Supervise one run, from the first line of evidence to the last: check, start, watch, end.

The target restarts if peers are lost, and from checkpoints if a pod replaces another. Two files of the run's folder
count the earlier attempts: one has a line for each failure, the other a line for each pod. They outlive the pod if a
volume keeps them. A requested end is in neither.
"""

import os
import platform
import socket
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Tuple

import seatrial
from seatrial.agent import gpu_check, isolation, target
from seatrial.agent.hook import install
from seatrial.agent.journal import STALL_S, Journal, encode, print_to_stderr, take
from seatrial.agent.plan import EXIT_FAILED, agent_exit_code, make_folder
from seatrial.agent.run_loop import EXIT_GPU_CONTRACT, TargetRun
from seatrial.agent.target import interpreter, target_environment
from seatrial.common.agent_plan import AgentPlan
from seatrial.events import AgentFinished, AgentStarted, Signal, never_started
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import in_one_line
from seatrial.probe import nvml, processes
from seatrial.probe.container import Cgroup

#: The code of an engine that refuses to start a run.
EXIT_REFUSED = 5
#: Before torchrun is started again: the store of an attempt that is ending should be gone by then.
PAUSE_S = 3.0

_FILE = ".failures"
_PODS = ".pods"
_BEGUN, _ENDED = b"1", b"0"
_MOST_BYTES = 4096
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def refuse(plan: AgentPlan, target: str) -> int:
    """Report a mount that was swapped, and write into none. Return the exit code."""
    finding = by_id("mount-swapped").finding(values={"target": target})
    print_to_stderr(in_one_line(finding.message, finding.cause, finding.fix))
    if plan.evidence_dir is None:  # else it is a shell, whose evidence is in one of the mounts
        journal = Journal(None)
        journal.write(finding.event())
        journal.write(AgentFinished(exit_code=EXIT_REFUSED, energy_j={}))
        journal.flush(STALL_S)
    return EXIT_REFUSED


def supervise(plan: AgentPlan, journal: Journal, alterable: Optional[str], unverified: Optional[str] = None) -> int:
    """Run the plan; return the agent's exit code: the target's own, 128 + signal, 3 (GPU contract) or 124 (time-out).

    In a pod, 143 means that its end was requested and its run has not ended (plan.agent_exit_code). ``alterable``,
    ``unverified``: why the target could alter the evidence, and why mounts were not compared, or None.

    Raises OSError when a secret cannot be read or the run folder cannot be written.
    """
    target.raise_stopped()
    os.umask(0o022)
    hooks = os.path.join(plan.run_dir, "python-hooks")
    try:
        _write_started(journal, Cgroup(), alterable, unverified)
        make_folder(plan.run_dir)  # a TrainJob's lies in the folder of models, where nobody made it
        secrets = take(plan.secrets, plan.secrets_dir)
        journal.hide(encode(secrets))
        env = target_environment(plan, os.environ, secrets)
        if (outcome := _check(plan, env, journal)) is None:
            journal.write(AgentFinished(exit_code=EXIT_GPU_CONTRACT, energy_j={}))
            return EXIT_GPU_CONTRACT
        if outcome.gpus:
            plan = plan._replace(gpus=tuple(outcome.gpus))
        plan = _with_its_own_horovod(plan, env, journal)
        hooked = plan.measure_steps or plan.changes or plan.stand_ins or plan.workers
        if plan.gpu_memory_bytes is not None or hooked:
            install.install(hooks, env, plan.gpu_memory_bytes, plan.measure_steps, plan.changes)
        install.place(plan.stand_ins, hooks, env, first=plan.launcher == "torchrun")

        def once() -> Tuple[int, bool]:
            trial = outcome.trial if outcome.trial and not outcome.trial.started else None
            run = TargetRun(plan, env, journal, encode(secrets), trial)
            return run.run(), run.not_again

        return run_again(plan, journal, once)
    except target.StoppedEarly as stopped:
        name = target.signal_name(stopped.number)
        print_to_stderr("stopped by %s before the target was started" % name)
        journal.write(Signal(signal=stopped.number, name=name, origin="engine", forwarded_to=[]))
        code = agent_exit_code(plan, 128 + stopped.number, stopped=True)
        journal.write(AgentFinished(exit_code=code, energy_j={}))
        return code
    finally:
        install.remove(hooks)


def _write_started(journal: Journal, cgroup: Cgroup, alterable: Optional[str], unverified: Optional[str]) -> None:
    more = {} if unverified is None else {"unverified_mounts": unverified}
    limits = {"memory_limit_bytes": cgroup.memory_limit_bytes(), "cpu_quota_cores": cgroup.cpu_quota_cores()}
    facts: Dict[str, Any] = {"python": platform.python_version(), "agent_version": seatrial.__version__}
    facts.update(uid=os.getuid(), gid=os.getgid(), cgroup=limits, alterable=alterable, **more)
    journal.write(AgentStarted(pid=os.getpid(), hostname=socket.gethostname(), **facts))


def _with_its_own_horovod(plan: AgentPlan, env: Dict[str, str], journal: Journal) -> AgentPlan:
    """Return the plan with an installed Horovod and its launcher: torchrun's ranks would each train alone with it.

    Across nodes its launcher would need SSH between them: there ours is used in any case.
    """
    if "horovod" not in plan.stand_ins or not install.installed("horovod", interpreter(plan), env, plan.workdir):
        return plan
    if plan.nodes > 1:
        journal.note("Horovod is installed, and seatrial's stand-in is used: between nodes torchrun starts the ranks")
        return plan
    journal.note("Horovod itself is installed here and is used")
    launcher = "horovodrun" if plan.launcher == "torchrun" and plan.processes > 1 else "none"
    return plan._replace(stand_ins=(), launcher=launcher)


def _check(plan: AgentPlan, env: Dict[str, str], journal: Journal) -> Optional[gpu_check.CheckOutcome]:
    """Return the contract's outcome, or None if it is broken: then all is written down and nothing may start."""
    if plan.gpu_mode != "required":
        return gpu_check.CheckOutcome(None, [])
    if nvml.present():
        isolation.import_compiled_by_child("pynvml")
    outcome = gpu_check.check(plan, env, journal)
    if outcome.finding is not None:
        gpu_check.report(outcome.finding, journal)
        journal.write(never_started("gpu-contract", None))
        return None
    if outcome.extra:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in outcome.gpus or plan.gpus)
        journal.note("GPUs beyond the plan are visible here and were hidden: %s" % ", ".join(outcome.extra))
    return outcome


def failures(run_dir: str) -> List[int]:
    """Exit codes with which the target has failed by itself in this run, also in pods before this one.

    The target could write here, too: it can give itself more attempts or none, as it can by its exit code.
    """
    return [int(word) for word in _words(run_dir, _FILE) if word.isdigit() and 0 < int(word) < 256]


def allowed(plan: AgentPlan) -> int:
    """Return the number of failures that end the attempts; 1 on a single node, which has no peer to lose."""
    return 1 + plan.restarts if plan.nodes > 1 else 1


def run_again(plan: AgentPlan, journal: Journal, once: Callable[[], Tuple[int, bool]]) -> int:
    """Run the target until it ends well, is requested to end, or has failed too often; its exit code.

    ``once``: runs it; its exit code, and whether that is final: its end was requested, or it broke the GPU contract.
    """
    if plan.nodes == 1 and plan.pod_restarts is None:
        return once()[0]
    before = failures(plan.run_dir)
    if len(before) >= allowed(plan):
        journal.note("the target failed %d times before: it is not restarted" % len(before))
        return before[-1]
    pods = _words(plan.run_dir, _PODS)
    lost = pods.count(_BEGUN) - pods.count(_ENDED)  # killed for memory, or gone with their node
    if plan.pod_restarts is not None and lost > plan.pod_restarts:
        words = "%d pods of this node were killed or lost without a word, and %d may be: the target is not restarted"
        journal.note(words % (lost, plan.pod_restarts))
        return EXIT_FAILED
    _append(plan, _PODS, _BEGUN)
    try:
        for attempt in range(len(before) + 1, allowed(plan) + 1):
            code, final = once()
            if code == 0 or final:
                break
            _append(plan, _FILE, b"%d" % code)
            if attempt < allowed(plan):
                words = "torchrun ended here, a peer was lost or failed: attempt %d of %d"
                journal.note(words % (attempt + 1, allowed(plan)))
                target.raise_stopped()  # no process runs yet that could get the signal
                time.sleep(PAUSE_S)
        return code
    finally:
        _append(plan, _PODS, _ENDED)


def _words(run_dir: str, name: str) -> List[bytes]:
    """Return the words of a file that the target can write, too; none if it is not a regular file."""
    return (processes.contents(os.path.join(run_dir, name), _MOST_BYTES, _SAFELY) or b"").split()


def _append(plan: AgentPlan, name: str, word: bytes) -> None:
    """Append a word to a file; of a full disk, one attempt more."""
    path, flags = os.path.join(plan.run_dir, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFELY
    with suppress(OSError), open(os.open(path, flags, 0o644), "wb", buffering=0) as file:
        file.write(word + b"\n")
