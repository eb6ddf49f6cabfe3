"""Runs of an image without Python: no agent beside the target, so the host writes down what the engine knows."""

from __future__ import annotations

from seatrial.backends.base import Backend, Handle, State
from seatrial.events import TargetExited, TargetStarted
from seatrial.job.plan import Plan
from seatrial.runs.run import Run

#: Lines of output asked of the engine: all there are.
_ALL = 2**31 - 1


def record_start(run: Run, plan: Plan) -> None:
    """The target is the container's own command: it has started with it."""
    run.record(TargetStarted(pid=None, argv=list(plan.agent.argv), launcher="none", framework=None))


def record_end(run: Run, backend: Backend, handle: Handle, state: State) -> None:
    """The target's output, as the engine kept it, and its end; once.

    The engine does not tell a signal from an exit code above 128, which shells and engines both use for one.
    """
    if state.status != "exited" or run.has(TargetExited):
        return
    (run.folder / "stdout.log").write_text(backend.logs_tail(handle, _ALL))
    code = state.exit_code or 0
    number = code - 128 if code > 128 else None
    run.record(
        TargetExited(
            exit_code=None if number else code,
            signal=number,
            cause="signal" if number else "exited",
            seconds=state.seconds,
            max_rss_bytes=None,
            oom_kills=None,
        )
    )
