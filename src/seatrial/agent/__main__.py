"""``python agent.pyz PLAN_JSON [-- TARGET…]``: the agent. Its exit code is the target's; see supervisor.supervise."""

import os
import sys
from typing import Optional

from seatrial.agent import isolation, plan, tune
from seatrial.agent.journal import STALL_S, Journal, print_to_stderr
from seatrial.agent.supervisor import refuse, supervise
from seatrial.common.agent_plan import AgentPlan
from seatrial.probe import cuda, nvml

EXIT_USAGE = 2
EXIT_NO_RUN = 125  # as engines have it: what was to run the target failed, not the target


def main() -> int:
    """Read the plan and run it; or be the driver of a tune, which an agent has started."""
    if len(sys.argv) == 3 and sys.argv[1] == tune.WORD:
        from seatrial.agent.tune.driver import main as drive

        return drive(sys.argv[2])
    if len(sys.argv) < 2:
        print_to_stderr("usage: agent.pyz PLAN_JSON")
        return EXIT_USAGE
    words = sys.argv[3:] if sys.argv[2:3] == ["--"] else []
    if len(sys.argv) > 2 and not words:
        print_to_stderr(plan.stand_before(sys.argv[1], sys.argv[2:], sys.argv[0]))
        return EXIT_NO_RUN
    try:
        run = plan.read(sys.argv[1], words)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print_to_stderr("%s does not contain a plan that this agent can read: %s" % (sys.argv[1], error))
        return EXIT_USAGE
    swapped, unverified = plan.compare_mounts(run.mounts, sys.argv[0])
    if swapped is not None:
        return refuse(run, swapped)
    journal = None
    try:
        alterable: Optional[str] = "agent and target are processes of one user"
        if run.evidence_dir is None:
            alterable = isolation.close() or _unproven_driver(run)
        journal = Journal(run.evidence_dir, repeats=run.pod_restarts is not None)
        code = supervise(run, journal, alterable, unverified)
        journal.flush(STALL_S)
        return code
    except OSError as error:
        reason = "the run cannot start: %s" % ": ".join(filter(None, (error.filename, error.strerror)))
        print_to_stderr(reason)
        if journal is not None:
            journal.note(reason)
            journal.flush(STALL_S)
        return EXIT_NO_RUN


def _unproven_driver(run: AgentPlan) -> Optional[str]:
    """Choose NVML's library, and return why the image could answer for the driver, or None if it could not."""
    if run.gpu_mode != "required":
        return None
    nvml.library, of_image = cuda.find(nvml.library, run.filled, os.environ)
    cuda_library, of_image_too = cuda.find(cuda.LIBRARY, run.filled, os.environ)
    suspect = [path for path, its in ((nvml.library, of_image), (cuda_library, of_image_too)) if its]
    return "%s can be the image's: the engine did not mount it" % " and ".join(suspect) if suspect else None


if __name__ == "__main__":
    sys.exit(main())
