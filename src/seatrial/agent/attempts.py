"""Starting the target again on one of several nodes: a peer was lost, so torchrun ended here, too.

The count outlives the pod where a volume keeps the run's folder: failures are read from its events.
"""

import time
from typing import Callable, Optional, Tuple

from seatrial import events
from seatrial.agent import signals
from seatrial.agent.journal import Journal
from seatrial.agent.plan import Plan

#: Before torchrun is started again: the store of an attempt that is ending should be gone by then.
PAUSE_S = 3.0


def failures(events_path: str) -> int:
    """How often the target has failed by itself in this run, also in pods before this one."""
    written, _, _ = events.read(events_path)
    ends = events.of_type(written, "target.exited")
    return sum(end.get("source") == "agent" and end.get("exit_code") not in (0, None) for end in ends)


def last_failure(events_path: str) -> Optional[int]:
    """Exit code of the last failure, or None."""
    written, _, _ = events.read(events_path)
    codes = [end.get("exit_code") for end in events.of_type(written, "target.exited")]
    return codes[-1] if codes and codes[-1] else None


def allowed(plan: Plan) -> int:
    """Failures after which it is not started again. One node alone has no peer to lose: its script has failed."""
    return 1 + plan.restarts if plan.nodes > 1 else 1


def run_again(plan: Plan, journal: Journal, once: Callable[[], Tuple[int, bool]]) -> int:
    """Run the target until it ends well, is asked to end, or has failed too often; its exit code.

    Args:
        once: runs it; its exit code, and whether that is final: it was asked to end, or broke the GPU contract.
    """
    before = last_failure(journal.path)
    if before is not None and failures(journal.path) >= allowed(plan):
        journal.note("the target failed %d times before: it is not started again" % failures(journal.path))
        return before
    while True:
        code, final = once()
        failed = failures(journal.path)
        if code == 0 or final or plan.nodes == 1 or failed >= allowed(plan):
            return code
        journal.note("torchrun ended here, a peer was lost or failed: attempt %d of %d" % (failed + 1, allowed(plan)))
        signals.raise_stopped()  # nothing runs that a request to stop could be passed on to
        time.sleep(PAUSE_S)
