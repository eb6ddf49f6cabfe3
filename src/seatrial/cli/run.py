"""``seatrial run``: plan, build, start, follow, and end with a receipt.

Help, and a flag that there is not, need none of what runs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from seatrial.cli import typed
from seatrial.cli.importing import importing
from seatrial.cli.job_flags import Words, takes_job
from seatrial.errors import EXIT_DONE, UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def run(
    context: typer.Context,
    words: Words = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Resume from a run's checkpoints.", callback=typed.reference),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", "-i", help="Pass standard input to the target, whatever it is. A terminal and pipes are."
        ),
    ] = False,
    rank_of: Annotated[
        int | None,
        typer.Option("--rank-of", metavar="N", min=0, help="This machine's index in --nodes host1,host2."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON; output goes to stderr.")] = False,
    verbose: typed.Verbose = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="The target's output, warnings, and the verdict of a failure.")
    ] = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Run a script, module, recipe or image in a GPU container. Ends with a receipt.

    The target's own arguments go after --: seatrial run train.py --gpus 1 -- --epochs 5
    """
    if interactive and detach:
        raise UsageError(
            "--interactive and --detach exclude each other: nobody can type to a run in the background",
            run="seatrial run … --interactive",
        )
    with importing():
        from seatrial.cli.screens.run import Screen
        from seatrial.cli.session import carry_out
        from seatrial.cli.typed_job import read_allowed_job
        from seatrial.job.script import script_facts
        from seatrial.planning import multi_host
        from seatrial.system.caller import read_caller

    screen = Screen(json=as_json, whole=verbose, quiet=quiet and not verbose)
    job = read_allowed_job(words or [], context.obj, flags, screen, resume=resume)
    job = multi_host.join(job, rank_of, os.environ)
    if job.hosts and job.node_rank is None:
        print(multi_host.instructions(job, sys.argv[1:], script_facts(job.source, job.project, any_python=True)))
        return EXIT_DONE
    caller = read_caller(os.environ, asks=interactive, shows_output=not as_json)
    return carry_out(job, dict(os.environ), screen, detach=detach, caller=caller, notifies=True)
