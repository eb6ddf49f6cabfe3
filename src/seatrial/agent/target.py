"""Make the target's environment and command line, start its process, and forward signals to it."""

import ctypes
import json
import os
import signal
import subprocess
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping

from seatrial.agent.plan import events_file
from seatrial.agent.terminal import Standard
from seatrial.common.agent_plan import AgentPlan
from seatrial.events import EVENTS_VARIABLE
from seatrial.probe import processes

#: Read by the hook, too.
ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
#: Marks every process of a run, in whichever session or parent; the guard finds them by it.
RUN_VARIABLE = "SEATRIAL_RUN_ID"
#: Variables that programs read for a terminal's width if there is none: the size of a plain terminal.
NO_TERMINAL = {"COLUMNS": "80", "LINES": "24"}

#: What Kubeflow's operators put into their pods: defaults of torchrun's arguments, ours being on its command line, and
#: ranks without LOCAL_RANK, which one process of ours must not take for torchrun's. Sources: torch argparse_util.py;
#: kubeflow/trainer v1.9 pkg/controller.v1/pytorch/envvar.go and elastic.go, v2.3 pkg/runtime/framework/plugins/torch.
OPERATORS_VARIABLES = (
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_BACKEND"),
    *("PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE", "PET_MAX_RESTARTS"),
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
#: Time for nodes to join each other; torch's own default (dynamic_rendezvous.py, torch 2.13).
MEETING_TIMEOUT_S = 600

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # Source: prctl(2)
#: Passed on to the target. SIGKILL and SIGSTOP cannot be caught; the others are about this process itself.
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
#: Signals that request the target's end, so that the grace period begins.
STOPPING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
#: torchrun handles these itself; any other ends it, so only its ranks get the rest.
#: Source: torch/distributed/elastic/multiprocessing/api.py, TORCHELASTIC_SIGNALS_TO_HANDLE (torch 2.13).
_TORCHRUN_HANDLES = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def variables(plan: AgentPlan) -> Dict[str, str]:
    """Return TF_CONFIG and JAX's variables; {} on one node, and if another launcher sets the ranks."""
    if not plan.workers or plan.node_rank is None:
        return {}
    task = {"type": "worker", "index": plan.node_rank}
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": list(plan.workers)}, "task": task}),
        ADDRESS: plan.workers[0],
        COUNT: str(len(plan.workers)),
        NUMBER: str(plan.node_rank),
    }


def target_environment(plan: AgentPlan, base: Mapping[str, str], secrets: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables for the target and for the checks that stand in for it."""
    env = dict(base)
    if plan.launcher == "torchrun" or (plan.script is not None and "PET_NODE_RANK" in env):
        for name in OPERATORS_VARIABLES:
            env.pop(name, None)
    terminal = {"TERM": plan.terminal.term, "COLORTERM": plan.terminal.colors} if plan.terminal else NO_TERMINAL
    # A pipe makes Python keep output back in blocks: hours of silence, and the last lines lost with a kill.
    for name, value in {"PYTHONUNBUFFERED": "1", "_": plan.argv[0], **terminal}.items():
        if value:
            env.setdefault(name, value)
    env.update(variables(plan))
    env.update(plan.env)
    env.update(secrets)
    if plan.python_path:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), *plan.python_path]))
    env[EVENTS_VARIABLE] = events_file(plan)
    env[RUN_VARIABLE] = plan.run_id
    # CUDA numbers the fastest GPU first by default; NVML, nvidia-smi and the plan go by PCI bus.
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if plan.gpu_mode != "required":
        # Empty is CUDA's own way to show no device. "-1" only works because it is not a valid index, and scripts that
        # split and count the list, or convert it to device numbers, take it for one.
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env


def command(plan: AgentPlan) -> List[str]:
    """Return the argv to run. The words before the script (ENTRYPOINT, python and its flags) stay in front.

    Horovod's own launcher is given the interpreter again, since it starts any program.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html (--standalone picks a free port for the rendezvous).
    """
    if plan.launcher == "horovodrun" and plan.script is not None:
        horovodrun = ["-m", "horovod.runner.launch", "-np", str(plan.processes)]
        return list(plan.argv[: plan.script]) + horovodrun + list(plan.argv[plan.script - 1 :])
    if plan.launcher != "torchrun" or plan.script is None:
        return list(plan.argv)
    torchrun = ["-m", "torch.distributed.run", *_meeting(plan), "--nproc-per-node", str(plan.processes)]
    return list(plan.argv[: plan.script]) + torchrun + list(plan.argv[plan.script :])


def _meeting(plan: AgentPlan) -> List[str]:
    """Return torchrun's options for ranks to meet. c10d at node 0: a lost node may come back, unlike static ranks.

    On one node torchrun restarts its ranks. On several nodes supervisor.py restarts torchrun: its rendezvous admits a
    node that comes back within the 15 s in which the lost one counts as alive, and then waits for ever (torch 2.13).
    """
    if plan.nodes == 1:
        return ["--standalone"] + (["--max-restarts", str(plan.restarts)] if plan.restarts else [])
    nodes = str(plan.nodes) if plan.min_nodes is None else "%d:%d" % (plan.min_nodes, plan.nodes)
    meeting = ["--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", str(plan.rendezvous)]
    # Images are pulled at different speeds: the others wait for node 0 as long as they would wait for each other.
    settings = ["--rdzv-conf", "is_host=%d,read_timeout=%d" % (plan.node_rank == 0, MEETING_TIMEOUT_S)]
    return meeting + ["--rdzv-id", plan.rendezvous_id or plan.run_id] + settings


def interpreter(plan: AgentPlan) -> str:
    """Return the Python, or the wrapper with a script behind it, that runs the target, for checks of its packages."""
    before = plan.argv[: plan.script] if plan.script is not None else plan.argv[:1]
    pythons = [word for word in before if os.path.basename(word).startswith("python")]
    wrappers = [word for word in before if not word.startswith("-")] if plan.script is not None else []
    return (pythons or wrappers or ["python3"])[-1]


def become_subreaper() -> None:
    """Make orphans of the target our children instead of init's. PID 1 has them anyway."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: List[str], env: Dict[str, str], workdir: str, streams: Standard, interactive: bool
) -> "subprocess.Popen[bytes]":
    """Start the target, in a session of its own unless interactive, before any thread exists. Raises OSError."""
    # A terminal belongs to one session, so an interactive target stays in ours.
    return subprocess.Popen(
        argv,
        env=env,
        cwd=workdir,
        stdin=streams.theirs[0],
        stdout=streams.theirs[1],
        stderr=streams.theirs[2],
        bufsize=0,
        start_new_session=not interactive,
        preexec_fn=dying_with_us(_take_terminal if streams.controlled else lambda: None),
    )


def dying_with_us(then: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Return a ``preexec_fn`` after which the child dies with this process; it calls ``then`` last."""
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def die_with_us() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        then()

    return die_with_us


def _take_terminal() -> None:
    """Make stdin the terminal that controls this session: Ctrl-C typed there, /dev/tty, job control."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class StoppedEarly(Exception):
    """A stopping signal came before the target was started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def raise_stopped() -> None:
    """Let the first stopping signal end the checks until the target runs. PID 1 ignores signals without a handler."""

    def stop(number: int, frame: Any) -> None:
        for stopping in STOPPING:
            signal.signal(stopping, signal.SIG_IGN)
        raise StoppedEarly(number)

    for number in STOPPING:
        signal.signal(number, stop)


def collect_signals() -> int:
    """Put signals from now on only as numbers into a pipe, and return its read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return read_end


def signal_recipients(number: int, target: int, launcher: str) -> List[int]:
    """Return the PIDs that get the signal: the target and every process under it that runs a program of its own.

    That is each rank, and what a shell ENTRYPOINT has started. Left out are children that only forked, which have
    their parent's command line: a SIGTERM kills torch's DataLoader workers, and a script that answers SIGTERM by saving
    would die of "DataLoader worker is killed by signal" instead. A terminal's SIGINT reaches torchrun alone, whose
    ranks have sessions of their own: it passes one on to them, and a second would break into their saving.
    """
    if launcher == "torchrun" and number == signal.SIGINT:
        return [target]
    chosen = [] if launcher == "torchrun" and number not in _TORCHRUN_HANDLES else [target]
    lines = {target: processes.command_line(target)}
    for process in processes.descendants(target):
        lines[process.pid] = processes.command_line(process.pid)
        if lines[process.pid] != lines.get(process.parent):
            chosen.append(process.pid)
    return chosen


def ignores_signal(pid: int, number: int) -> bool:
    """Return whether a process has set this signal to be ignored: then it goes on as if none had come."""
    return bool(int(processes.status(pid).get("SigIgn", "0"), 16) >> (number - 1) & 1)


def send_signal(pids: List[int], number: int) -> List[int]:
    """Send it; those that got it."""
    reached = []
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # gone, or another user's (setuid)
            os.kill(pid, number)
            reached.append(pid)
    return reached


def signal_name(number: int) -> str:
    """Return a signal's name: SIGTERM for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "SIG%d" % number
