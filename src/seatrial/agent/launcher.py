"""The target's command line: as it is, or one process for each GPU through torchrun."""

import os
from typing import List

from seatrial.agent.plan import Plan


def command(plan: Plan) -> List[str]:
    """argv to run. What stands before the script (ENTRYPOINT, python and its flags) stays in front.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html (--standalone picks a free port for the rendezvous).
    """
    if plan.launcher != "torchrun" or plan.script is None:
        return list(plan.argv)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(plan.processes)]
    return list(plan.argv[: plan.script]) + torchrun + list(plan.argv[plan.script :])


def interpreter(plan: Plan) -> str:
    """The Python that runs the target, for checks that must see its packages."""
    before = plan.argv[: plan.script] if plan.script is not None else plan.argv[:1]
    pythons = [word for word in before if os.path.basename(word).startswith("python")]
    return pythons[-1] if pythons else "python3"
