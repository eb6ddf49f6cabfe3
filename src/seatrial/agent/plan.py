"""Read the agent's plan, with this node's rank and folder. ``common.contract.agent_plan`` documents its keys."""

import json
import os
import stat
from typing import Any, Dict, NamedTuple, Optional

from seatrial.common.contract.agent_plan import AgentPlan, Terminal, known


class Gpu(NamedTuple):
    """An expected GPU or MIG slice. ``minor`` is N of /dev/nvidiaN, or None."""

    uuid: str
    name: str
    minor: Optional[int] = None
    compute_capability: Optional[str] = None


def events_file(plan: AgentPlan) -> str:
    """Return the path of the file that the target reports to: $SEATRIAL_EVENTS."""
    return os.path.join(plan.run_dir, "events.jsonl")


def read(path: str) -> AgentPlan:
    """Read the agent's plan from a plan.json. Raises OSError, or ValueError, KeyError or TypeError for another file."""
    with open(path, encoding="utf-8") as file:
        whole = json.load(file)
    keys: Dict[str, Any] = dict(whole["agent"], injection=whole.get("injection"), mounts=whole.get("mounts", {}))
    keys["gpus"] = tuple(Gpu(**known(gpu, Gpu._fields)) for gpu in keys.get("gpus", ()))
    terminal = keys.get("terminal")
    keys["terminal"] = Terminal(**known(terminal, Terminal._fields)) if terminal else None
    return _placed(AgentPlan(**known(keys, AgentPlan._fields)))


def _placed(plan: AgentPlan) -> AgentPlan:
    """Return the plan with this node's rank, and a folder of its own for its target if several share one.

    Raises ValueError when the variable for the rank does not have it.
    """
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
    """Make a folder on what may be a volume that several users share. Like those that a kubelet makes for a subPath, it
    gets the mode of the one above, so that the next user's run can make its own next to it.

    Raises OSError.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_folder(above)
    try:
        os.mkdir(path)
        os.chmod(path, stat.S_IMODE(os.stat(above).st_mode))
    except FileExistsError:  # another node's agent was quicker
        pass
