"""``seatrial run`` and ``seatrial shell``. Help and a misspelt option need none of what they import while running."""

from __future__ import annotations

import sys
from typing import Any

import click

from seatrial.cli.options import (
    RECEIPT_AS_JSON,
    VERBOSE,
    WORDS,
    command,
    option,
    takes_job,
    target_arguments,
    this_host,
)
from seatrial.cli.root import importing
from seatrial.cli.typed import RunReference
from seatrial.errors import EXIT_DONE, UsageError


@command(
    examples=(
        "seatrial run train.py --gpus 1 --data ./data -- --epochs 5",
        "seatrial run digits",
        "seatrial run --resume last",
        "seatrial run bench -- train digits --compare eager,graph",
        'seatrial run predict -- spam "WINNER!! Call now"',
    )
)
@takes_job
@WORDS
@option("--resume", metavar="RUN", type=RunReference(), help="Resume from a run's checkpoints.")
@option("--detach", "-d", is_flag=True, help="Run in the background.")
@option(
    "--interactive",
    "-i",
    is_flag=True,
    help="Pass standard input to the target, whatever it is. A terminal and pipes are passed anyway.",
)
@option("--rank-of", metavar="N", type=click.IntRange(min=0), help="This machine's index in --nodes host1,host2.")
@RECEIPT_AS_JSON
@VERBOSE
@option("--quiet", "-q", is_flag=True, help="The target's output, warnings, and the verdict of a failure.")
def run(
    words: tuple[str, ...],
    resume: str | None,
    detach: bool,
    interactive: bool,
    rank_of: int | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
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
        from seatrial.cli.screen import Screen
        from seatrial.cli.session import carry_out
        from seatrial.cli.typed_job import read_allowed_job
        from seatrial.job.script import script_facts
        from seatrial.planning import launcher
        from seatrial.system.caller import read_caller

    screen = Screen(json=as_json, whole=verbose, quiet=quiet and not verbose)
    job = read_allowed_job(list(words), target_arguments(), flags, screen, resume=resume)
    job = launcher.join(job, rank_of, this_host())
    if job.hosts and job.node_rank is None:
        print(launcher.instructions(job, sys.argv[1:], script_facts(job.source, job.project, any_python=True)))
        return EXIT_DONE
    caller = read_caller(this_host(), asks=interactive, shows_output=not as_json)
    return carry_out(job, this_host(), screen, detach=detach, caller=caller, notifies=True)


@command(examples=("seatrial shell train.py --gpus all",))
@takes_job
@WORDS
def shell(words: tuple[str, ...], flags: dict[str, Any]) -> int:
    """Open an interactive shell in the container the target would get; its GPUs are checked first."""
    with importing():
        from seatrial.cli.screen import Screen
        from seatrial.cli.typed_job import read_allowed_job
        from seatrial.runs import launch

    host, screen = this_host(), Screen()
    job = read_allowed_job(list(words), target_arguments(), flags, screen)
    prepared = launch.prepare(job, host, building=screen.building, interactive=True)
    screen.announce(prepared.plan)
    return launch.shell(prepared, host, screen.building)
