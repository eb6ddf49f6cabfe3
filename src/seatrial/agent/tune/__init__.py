"""`seatrial tune`: the program that the agent starts in place of the script, which runs the script again and again.

It is a process of the target's like any other: what it finds out goes to $SEATRIAL_EVENTS as reports, no evidence.
The agent writes its orders (Spec) to a file, and makes the command that starts it.
"""

import json
import os
import sys
from typing import List, NamedTuple

from seatrial.agent.isolation import own_python
from seatrial.common.agent_plan import AgentPlan

#: Argument of the agent's archive that makes it the driver.
WORD = "--tune"


class Spec(NamedTuple):
    """Attributes:

    argv: the script's whole command line, torchrun included. ranks: its processes. folder: for the trials' files.
    steps, seconds: measured in each trial, at most. budget_s: for all of it. gpus: the script was given.
    only: names of changes (candidates.NAMES); () for all. fit: look for the largest and the fastest batch instead.
    """

    argv: List[str]
    folder: str
    steps: int = 60
    seconds: float = 20.0
    budget_s: float = 180.0
    only: List[str] = []  # noqa: RUF012
    gpus: int = 0
    ranks: int = 1
    fit: bool = False


def of(plan: AgentPlan, argv: List[str]) -> Spec:
    """Return the tune that a plan requests of a script with this whole command line."""
    ranks = plan.processes if plan.launcher == "torchrun" else 1
    gpus = max(len(plan.gpus), plan.gpu_count or 0) if plan.gpu_mode == "required" else 0
    return Spec(argv=argv, folder=os.path.join(plan.run_dir, "tune"), gpus=gpus, ranks=ranks, **(plan.tune or {}))


def command(spec: Spec) -> List[str]:
    """Write the spec, and give the command that runs it by the agent's own interpreter. Raises OSError."""
    os.makedirs(spec.folder, exist_ok=True)
    path = os.path.join(spec.folder, "spec.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec._asdict(), file)
    return [*own_python(), "-I", "-S", os.path.abspath(sys.argv[0]), WORD, path]


def read(path: str) -> Spec:
    """Read a spec. Raises OSError, or ValueError or TypeError for another file."""
    with open(path, encoding="utf-8") as file:
        return Spec(**json.load(file))
