"""Paths, labels and limits of a run's container, on which the planner, the engines and the agent agree."""

from __future__ import annotations

import posixpath

#: Folders inside a container. The local backend uses host paths instead.
CONTAINER_PROJECT = "/workspace"
CONTAINER_DATA = "/data"
CONTAINER_MODELS = "/models"
CONTAINER_HOME = "/home/seatrial"
CONTAINER_RUN = "/seatrial/run"
CONTAINER_AGENT = "/seatrial/agent.pyz"
#: The mounted Python that runs the agent (system/agent_archive.py), and its command line, which begins with its loader.
CONTAINER_PYTHON = "/seatrial/python"
PYTHON_COMMAND = (
    f"{CONTAINER_PYTHON}/lib/ld.so",
    "--library-path",
    f"{CONTAINER_PYTHON}/lib",
    f"{CONTAINER_PYTHON}/bin/python3",
)

#: DataLoader workers hand batches over through /dev/shm; a batch of 512 ImageNet images is 308 MB in float32, and
#: each of 40 workers holds two. Docker's default of 64 MB ends in "Bus error". A tmpfs takes only what is used of it.
SHM_BYTES_PER_GPU = 64 * 2**30
CONTAINER_PLAN = "/seatrial/plan.json"
CONTAINER_INPUT = "/seatrial/input"
#: Flags of the agent's Python: PYTHONPATH, the user's site packages and a json.py of the project stay out of it.
AGENT_PYTHON_FLAGS = ("-I", "-S")
#: The agent's command line, behind its Python.
AGENT_ARGV = (*AGENT_PYTHON_FLAGS, CONTAINER_AGENT, CONTAINER_PLAN)

#: Labels of a container of ours: the run's ID and name; its purpose; that its log is the agent's, in frames. All are
#: always set: an image may bring labels, too.
RUN_LABEL = "seatrial.run"
NAME_LABEL = "seatrial.name"
ROLE_LABEL = "seatrial.role"
LOG_LABEL = "seatrial.log"
TARGET_ROLE = "target"
FRAMED_LOG = "frames"

CONTAINER_RECIPES = "/seatrial/recipes.whl"
CONTAINER_SECRETS = "/seatrial/secrets"
#: The earlier run's outputs, and in them the checkpoints to go on from.
CONTAINER_RESUME = "/seatrial/resume"
CONTAINER_RESUMED_CHECKPOINTS = f"{CONTAINER_RESUME}/checkpoints"

#: Choice and value of a plan whose ready image is not here yet.
IMAGE_UNKNOWN = ("image contents", "unknown")

#: On top of the grace that the agent gives the target, for the agent itself to finish the evidence, in seconds.
AGENT_GRACE_S = 10
#: The agent's exit code in a pod that was stopped from outside, so that another goes on.
EXIT_POD_STOPPED = 143


def folder_inside(workdir: str | None) -> str:
    """Return the working directory; a relative one is of the project."""
    return posixpath.normpath(posixpath.join(CONTAINER_PROJECT, workdir or ""))
