"""One run in the foreground, from its Job to its receipt: what run, bench and predict share."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from seatrial.backends.base import State
from seatrial.cli.root import importing
from seatrial.cli.screen import Screen
from seatrial.errors import EXIT_DONE, EXIT_GPU_CONTRACT, SeatrialError
from seatrial.job.model import Job
from seatrial.runs import launch
from seatrial.runs.following.input import TYPING_INTERVAL_S, passing_on
from seatrial.runs.following.watch import LOG_INTERVAL_S, ensure_recorder, follow, interrupt_stops, terminate_interrupts
from seatrial.runs.launch import Prepared
from seatrial.runs.run_actions import is_live
from seatrial.runs.serving_job import ready_words, saying_when_ready, wait_until_ready
from seatrial.system.caller import Caller
from seatrial.system.host import Host
from seatrial.system.memo import remembering


@remembering()
def carry_out(
    job: Job,
    host: Host,
    screen: Screen,
    *,
    detach: bool = False,
    caller: Caller | None = None,
    notifies: bool = False,
    before_start: Callable[[Prepared], None] = lambda prepared: None,
) -> int:
    """Plan, build, start and follow; the exit code of the command.

    Args:
        detach: return once it has started.
        caller: whose terminal and input the target gets; None: nobody's.
        notifies: its end is told as ``[notify]`` says.
        before_start: called with the run's folder there and nothing started.
    """
    with terminate_interrupts():
        prepared = launch.prepare(
            job, host, building=screen.building, caller=None if detach else caller, notifies=notifies
        )
        screen.announce(prepared.plan)
        try:
            before_start(prepared)
            with screen.building() as progress:
                launch.start(prepared, host, progress)
        except SeatrialError:
            _receipt(prepared, host, screen, error_follows=True)
            raise
        except KeyboardInterrupt:
            _receipt(prepared, host, screen)
            raise
    serving = prepared.plan.job.serve
    if detach:
        ensure_recorder(prepared.run)
        if serving is not None:
            seconds = wait_until_ready(serving, lambda: not is_live(prepared.run, host))
            if seconds is None:
                return _ended_early(prepared, host, screen)
            screen.say(ready_words(serving, seconds))
        screen.detached(prepared.plan)
        return EXIT_DONE
    looks_s = LOG_INTERVAL_S if prepared.plan.agent.input is None else TYPING_INTERVAL_S
    with interrupt_stops(prepared.run, host, screen.say):  # at once: the target may be at work already
        with importing():  # while the container starts: its end need not wait for it
            importlib.import_module("seatrial.runs.ending")
            from seatrial.receipt.render.pages import PACKAGE, compile_pages
        compile_pages(PACKAGE)
        ready, typing = saying_when_ready(serving, screen.say), passing_on(prepared.run, prepared.plan)
        with ready, typing, screen.showing_progress(prepared.run) as show:
            ended = follow(prepared.run, screen.write, host, say=screen.say, between_looks=show, log_interval_s=looks_s)
    exit_code = _receipt(prepared, host, screen, ended=ended)
    if exit_code == EXIT_GPU_CONTRACT and prepared.plan.on_this_host:  # its GPUs are not of this host
        from seatrial.doctor.examine import second_opinion

        screen.say(second_opinion(host, in_container=prepared.plan.container is not None))
    return exit_code


def _ended_early(prepared: Prepared, host: Host, screen: Screen) -> int:
    """A server that ended before it answered: what it said, and its receipt."""
    follow(prepared.run, screen.write, host, say=screen.say)
    return _receipt(prepared, host, screen)


def _receipt(
    prepared: Prepared,
    host: Host,
    screen: Screen,
    *,
    ended: State | None = None,
    error_follows: bool = False,
) -> int:
    from seatrial.runs.finish import finalise

    receipt = finalise(prepared.run, host, ended=ended)
    assert receipt is not None, "a run followed to its end must have ended"
    screen.receipt(receipt, prepared.run, error_follows=error_follows)
    return receipt.exit_code
