"""Starting the target again on one of several nodes: a peer was lost, so torchrun ended here, too.

The count outlives the pod where a volume keeps the run's folder: a line a failure, in a file beside the target's own.
"""

import os
import time
from typing import Callable, List, Tuple

from seatrial.agent.plan import Plan
from seatrial.agent.process import signals
from seatrial.agent.streams.journal import Journal

#: Before torchrun is started again: the store of an attempt that is ending should be gone by then.
PAUSE_S = 3.0

_FILE = ".failures"
_MOST_BYTES = 4096


def failures(run_dir: str) -> List[int]:
    """Exit codes with which the target has failed by itself in this run, also in pods before this one.

    The target could write here, too: it can give itself more attempts or none, as it can by its exit code.
    """
    try:
        descriptor = os.open(os.path.join(run_dir, _FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        words = os.read(descriptor, _MOST_BYTES).split()
    except OSError:
        words = []
    finally:
        os.close(descriptor)
    return [int(word) for word in words if word.isdigit() and 0 < int(word) < 256]


def _note(run_dir: str, code: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(run_dir, _FILE), flags, 0o644)
    except OSError:
        return
    try:
        os.write(descriptor, b"%d\n" % code)
    except OSError:  # a full disk: one attempt more
        pass
    finally:
        os.close(descriptor)


def allowed(plan: Plan) -> int:
    """Failures after which it is not started again. One node alone has no peer to lose: its script has failed."""
    return 1 + plan.restarts if plan.nodes > 1 else 1


def run_again(plan: Plan, journal: Journal, once: Callable[[], Tuple[int, bool]]) -> int:
    """Run the target until it ends well, is asked to end, or has failed too often; its exit code.

    Args:
        once: runs it; its exit code, and whether that is final: it was asked to end, or broke the GPU contract.
    """
    if plan.nodes == 1:
        return once()[0]
    before = failures(plan.run_dir)
    if len(before) >= allowed(plan):
        journal.note("the target failed %d times before: it is not restarted" % len(before))
        return before[-1]
    failed = len(before)
    while True:
        code, final = once()
        if code == 0 or final:
            return code
        _note(plan.run_dir, code)
        failed += 1
        if failed >= allowed(plan):
            return code
        journal.note("torchrun ended here, a peer was lost or failed: attempt %d of %d" % (failed + 1, allowed(plan)))
        signals.raise_stopped()  # nothing runs that a request to stop could be passed on to
        time.sleep(PAUSE_S)
