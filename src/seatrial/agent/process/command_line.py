"""The target's command line: as it is, or one process for each GPU through torchrun."""

import os
from typing import List

from seatrial.agent.plan import Plan

#: How long nodes wait for each other. torch's own default for joining (dynamic_rendezvous.py, torch 2.13).
MEETING_TIMEOUT_S = 600


def command(plan: Plan) -> List[str]:
    """argv to run. What stands before the script (ENTRYPOINT, python and its flags) stays in front.

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


def _meeting(plan: Plan) -> List[str]:
    """How the ranks find each other. c10d at node 0: whoever is lost may come back; static ranks could not.

    Several nodes start torchrun again (attempts.py) where one would let it restart its ranks: its rendezvous takes a
    node that comes back within the 15 s in which the lost one counts as alive, and then waits for ever (torch 2.13).
    """
    if plan.nodes == 1:
        return ["--standalone"] + (["--max-restarts", str(plan.restarts)] if plan.restarts else [])
    nodes = str(plan.nodes) if plan.min_nodes is None else "%d:%d" % (plan.min_nodes, plan.nodes)
    meeting = ["--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", str(plan.rendezvous)]
    # Images are pulled at different speeds: the others wait for node 0 as long as they would wait for each other.
    settings = ["--rdzv-conf", "is_host=%d,read_timeout=%d" % (plan.node_rank == 0, MEETING_TIMEOUT_S)]
    return meeting + ["--rdzv-id", plan.rendezvous_id or plan.run_id] + settings


def interpreter(plan: Plan) -> str:
    """The Python that runs the target, for checks that must see its packages.

    A wrapper by another name counts where the plan says that a script stands behind it.
    """
    before = plan.argv[: plan.script] if plan.script is not None else plan.argv[:1]
    pythons = [word for word in before if os.path.basename(word).startswith("python")]
    wrappers = [word for word in before if not word.startswith("-")] if plan.script is not None else []
    return (pythons or wrappers or ["python3"])[-1]
