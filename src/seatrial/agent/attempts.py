"""Decide how often the target is started: again for lost peers, and from checkpoints if a pod takes another's place.

Earlier attempts are counted in two files of the run's folder, which outlive the pod if a volume keeps them: one has a
line for each failure, the other for each pod. A requested end is in neither.
"""

import os
import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, Tuple

from seatrial.agent import target
from seatrial.agent.journal import Journal
from seatrial.common.agent_plan import AgentPlan

#: Before torchrun is started again: the store of an attempt that is ending should be gone by then.
PAUSE_S = 3.0

#: The agent's exit code if a pod was requested to end: its run has not ended, however the target took
#: it. 128 + SIGTERM; operators make such a pod anew (seatrial.job.in_container.EXIT_POD_STOPPED is the same).
EXIT_STOPPED = 143

#: Exit codes of 128 and above make operators recreate the pod, so a failed target exits with 1. The evidence has how it
#: ended.
EXIT_FAILED = 1
_LEAST_RETRYABLE = 128

_FILE = ".failures"
_PODS = ".pods"
_BEGUN, _ENDED = b"1", b"0"
_MOST_BYTES = 4096


def failures(run_dir: str) -> List[int]:
    """Exit codes with which the target has failed by itself in this run, also in pods before this one.

    The target could write here, too: it can give itself more attempts or none, as it can by its exit code.
    """
    return [int(word) for word in _words(run_dir, _FILE) if word.isdigit() and 0 < int(word) < 256]


def lost_pods(run_dir: str) -> int:
    """Count the pods before this one that began and recorded no end: killed for memory, or lost with their node."""
    words = _words(run_dir, _PODS)
    return max(0, words.count(_BEGUN) - words.count(_ENDED))


def exit_code(plan: AgentPlan, code: int, stopped: bool) -> int:
    """Return the agent's exit code for the target's; in a pod it also shows the controller whether the run has ended.

    Args:
        stopped: the target was still going on when the request to end came.
    """
    if plan.pod_restarts is None:
        return code
    if stopped:
        return EXIT_STOPPED
    return EXIT_FAILED if code >= _LEAST_RETRYABLE else code


def allowed(plan: AgentPlan) -> int:
    """Return the number of failures that end the attempts; 1 on a single node, which has no peer to lose."""
    return 1 + plan.restarts if plan.nodes > 1 else 1


def run_again(plan: AgentPlan, journal: Journal, once: Callable[[], Tuple[int, bool]]) -> int:
    """Run the target until it ends well, is requested to end, or has failed too often; its exit code.

    Args:
        once: runs it; its exit code, and whether that is final: its end was requested, or it broke the GPU contract.
    """
    if plan.nodes == 1 and plan.pod_restarts is None:
        return once()[0]
    before = failures(plan.run_dir)
    if len(before) >= allowed(plan):
        journal.note("the target failed %d times before: it is not restarted" % len(before))
        return before[-1]
    lost = lost_pods(plan.run_dir)
    if plan.pod_restarts is not None and lost > plan.pod_restarts:
        journal.note(
            "%d pods of this node were killed or lost without a word, and %d may be: the target is not restarted"
            % (lost, plan.pod_restarts)
        )
        return EXIT_FAILED
    _append(plan, _PODS, _BEGUN)
    try:
        return _attempts(plan, journal, once, len(before))
    finally:
        _append(plan, _PODS, _ENDED)


def _attempts(plan: AgentPlan, journal: Journal, once: Callable[[], Tuple[int, bool]], failed: int) -> int:
    while True:
        code, final = once()
        if code == 0 or final:
            return code
        _append(plan, _FILE, b"%d" % code)
        failed += 1
        if failed >= allowed(plan):
            return code
        journal.note("torchrun ended here, a peer was lost or failed: attempt %d of %d" % (failed + 1, allowed(plan)))
        target.raise_stopped()  # nothing runs that a request to stop could be passed on to
        time.sleep(PAUSE_S)


def _words(run_dir: str, name: str) -> List[bytes]:
    """Return the words of a file that the target can write, too; none if it is not a regular file."""
    with _open(os.path.join(run_dir, name), os.O_RDONLY) as descriptor:
        return os.read(descriptor, _MOST_BYTES).split() if descriptor >= 0 else []
    return []


def _append(plan: AgentPlan, name: str, word: bytes) -> None:
    with _open(os.path.join(plan.run_dir, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
        if descriptor >= 0:
            os.write(descriptor, word + b"\n")


@contextmanager
def _open(path: str, flags: int) -> Iterator[int]:
    """Open the file for the block, which an OSError ends: of a full disk, one attempt more. -1 if that fails."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError:
        yield -1
        return
    try:
        yield descriptor
    except OSError:
        pass
    finally:
        os.close(descriptor)
