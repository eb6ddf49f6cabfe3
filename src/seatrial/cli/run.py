"""``seatrial run``: plan, build, start, follow, and end with a receipt."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from seatrial.cli.job_flags import Words, read_job, takes_job
from seatrial.cli.screen import Screen
from seatrial.doctor.examine import second_opinion
from seatrial.errors import EXIT_DONE, EXIT_GPU_CONTRACT, SeatrialError
from seatrial.runs import launch
from seatrial.runs.finalise import finalise
from seatrial.runs.launch import Prepared
from seatrial.runs.watch import follow, interrupt_stops

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def run(
    context: typer.Context,
    words: Words = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on from a run's checkpoints.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it has started.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON; output goes to stderr.")] = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Run a script, module, recipe or image in a GPU container. Ends with a receipt.

    The target's own arguments go behind --: seatrial run train.py --gpus 1 -- --epochs 5
    """
    job = read_job(words or [], context.obj, flags, resume=resume)
    environ = dict(os.environ)
    screen = Screen(json=as_json)
    prepared = launch.prepare(job, environ)
    screen.announce(prepared.plan)
    try:
        launch.start(prepared, environ, screen.progress)
    except (SeatrialError, KeyboardInterrupt):
        _receipt(prepared, environ, screen)
        raise
    if detach:
        screen.detached(prepared.plan)
        return EXIT_DONE
    with interrupt_stops(prepared.run, environ, screen.say):
        follow(prepared.run, screen.write, environ, say=screen.say)
    exit_code = _receipt(prepared, environ, screen)
    if exit_code == EXIT_GPU_CONTRACT:
        screen.say(second_opinion(environ))
    return exit_code


def _receipt(prepared: Prepared, environ: dict[str, str], screen: Screen) -> int:
    receipt = finalise(prepared.run, environ)
    assert receipt is not None, "a run that was followed to its end has ended"
    screen.receipt(receipt, prepared.run)
    return receipt.exit_code
