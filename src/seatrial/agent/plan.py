"""Read the agent's plan, with this node's rank and folder. ``common.agent_plan`` documents its keys.

Compare the container's mounts with the files that the host opened: an engine mounts by path, and a path may change.
"""

import json
import os
import signal
import stat
from contextlib import suppress
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from seatrial.common.agent_plan import AgentPlan, Terminal, known

Identities = Dict[str, Optional[List[int]]]
#: The agent's exit code if a pod was requested to end: its run has not ended, however the target took
#: it. 128 + SIGTERM; operators make such a pod anew (seatrial.job.in_container.EXIT_POD_STOPPED is the same).
EXIT_STOPPED = 143
#: Operators recreate a pod at exit codes of 128 and above, so a failed target exits with 1. The evidence has its end.
EXIT_FAILED = 1
_LEAST_RETRYABLE = 128


def stand_before(orders: str, argv: List[str], archive: str) -> str:
    """Compare the mounts of a service that becomes no run, and become its own command; return why it cannot start."""
    with open(orders, encoding="utf-8") as file:
        whole = json.load(file)
    swapped, _ = compare_mounts(whole["mounts"], archive)
    if swapped is not None:
        return "%s shows another file or folder than the one that was checked: nothing was started" % swapped
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, which what is executed would inherit
    with open("/proc/self/environ", "rb") as file:  # as the engine set it: Python adds LC_CTYPE
        env = dict(each.split(b"=", 1) for each in file.read().split(b"\0") if b"=" in each)
    env.update((name.encode(), value.encode()) for name, value in whole["env"].items())
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        return "%s cannot be run: %s" % (argv[0], error.strerror)


def compare_mounts(mounts: Identities, archive: str) -> Tuple[Optional[str], Optional[str]]:
    """Return (target that shows something else, why others could not be compared), each None if there is none.

    ``archive``: the agent's own, which no container can replace: it differs where the engine has another kernel.
    """
    if mounts.get(archive) and _seen(archive, mounts) != mounts[archive]:
        return None, "the engine runs in a virtual machine"
    unseen = []
    for target in mounts:
        try:
            if not _is_as_opened(target, mounts):
                return target, None
        except PermissionError:  # no process of this user gets there
            unseen.append(target)
        except OSError:
            return target, None
    return None, "the container's user cannot reach %s" % ", ".join(unseen) if unseen else None


def _is_as_opened(target: str, mounts: Identities) -> bool:
    seen, wanted = _seen(target, mounts), mounts[target]
    if wanted is None:
        return bool(seen) and seen[0] != os.stat(os.path.dirname(target)).st_dev
    return seen == wanted


def _seen(target: str, mounts: Identities) -> List[int]:
    """Return device and inode at a path that no link leads away from: an image may have links above it, a mount not."""
    around = [other for other in mounts if target.startswith(other.rstrip("/") + "/")]
    trusted = max(around, key=len) if around else os.path.dirname(target)
    place = os.path.join(os.path.realpath(trusted), os.path.relpath(target, trusted))
    if os.path.realpath(place) != place:
        return []
    found = os.stat(place, follow_symlinks=False)
    return [found.st_dev, found.st_ino]


class Gpu(NamedTuple):
    """An expected GPU or MIG slice. ``minor`` is N of /dev/nvidiaN, or None."""

    uuid: str
    name: str
    minor: Optional[int] = None
    compute_capability: Optional[str] = None


def events_file(plan: AgentPlan) -> str:
    """Return the path of the file that the target reports to: $SEATRIAL_EVENTS."""
    return os.path.join(plan.run_dir, "events.jsonl")


def read(path: str, words: Sequence[str] = ()) -> AgentPlan:
    """Read plan.json; ``words`` are the target's. Raises OSError, or ValueError, KeyError or TypeError for another."""
    with open(path, encoding="utf-8") as file:
        whole = json.load(file)
    keys: Dict[str, Any] = dict(whole["agent"], injection=whole.get("injection"), mounts=whole.get("mounts", {}))
    keys["gpus"] = tuple(Gpu(**known(gpu, Gpu._fields)) for gpu in keys.get("gpus", ()))
    keys["argv"] = words or keys["argv"]
    terminal = keys.get("terminal")
    keys["terminal"] = Terminal(**known(terminal, Terminal._fields)) if terminal else None
    return _placed(AgentPlan(**known(keys, AgentPlan._fields)))


def _placed(plan: AgentPlan) -> AgentPlan:
    """Return the plan with this node's rank and a folder of its target's own. Raises ValueError without a rank."""
    if plan.nodes == 1:
        return plan._replace(node_rank=0)
    if plan.node_rank is not None:  # a machine of its own, with a run folder of its own
        return plan
    number = os.environ.get(plan.node_rank_variable or "", "")
    if not number.isdigit():
        raise ValueError("%s does not give this node's rank: %r" % (plan.node_rank_variable, number))
    rank = int(number)
    folder = os.path.join(plan.run_dir, "nodes", str(rank))
    make_folder(folder)
    rendezvous = os.path.expandvars(plan.rendezvous) if plan.rendezvous else None
    return plan._replace(node_rank=rank, run_dir=folder, rendezvous=rendezvous)


def make_folder(path: str) -> None:
    """Make a folder with the mode of the one above, as a kubelet makes those of a subPath: on a volume that several
    users share the next user's run can make its own next to it. Raises OSError."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_folder(above)
    with suppress(FileExistsError):  # another node's agent was quicker
        os.mkdir(path)
        os.chmod(path, stat.S_IMODE(os.stat(above).st_mode))


def agent_exit_code(plan: AgentPlan, code: int, stopped: bool) -> int:
    """Return the agent's exit code for the target's; in a pod it also shows the controller whether the run has ended.

    ``stopped``: the target was still going on when the request to end came.
    """
    if plan.pod_restarts is None:
        return code
    if stopped:
        return EXIT_STOPPED
    return EXIT_FAILED if code >= _LEAST_RETRYABLE else code
