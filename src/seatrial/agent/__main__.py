"""``python agent.pyz PLAN_JSON``: the agent. Its exit code is the target's; see supervisor.supervise."""

import sys

from seatrial.agent import plan
from seatrial.agent.journal import say
from seatrial.agent.supervisor import supervise

EXIT_USAGE = 2


def main() -> int:
    """Read the plan and run it."""
    if len(sys.argv) != 2:
        say("usage: agent.pyz PLAN_JSON")
        return EXIT_USAGE
    try:
        run = plan.read(sys.argv[1])
    except (OSError, ValueError, KeyError, TypeError) as error:
        say("%s holds no plan that this agent can read: %s" % (sys.argv[1], error))
        return EXIT_USAGE
    return supervise(run)


if __name__ == "__main__":
    sys.exit(main())
