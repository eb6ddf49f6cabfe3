"""``seatrial tune``: changes to an unmodified script, tried and measured; a Job like any other."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from seatrial.cli.job_flags import Words, takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.session import carry_out
from seatrial.cli.typed import Verbose
from seatrial.cli.typed_job import read_allowed_job
from seatrial.common.contract.tunables import GROUPS
from seatrial.errors import EXIT_DONE, UsageError
from seatrial.job.tuning import Tuning
from seatrial.receipt.sections.tune import TuneRecord
from seatrial.receipt.store import load
from seatrial.runs.launch import Prepared
from seatrial.runs.tuned_file import save_changes
from seatrial.runs.tuning_job import tuning_job

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def tune(
    context: typer.Context,
    words: Words = None,
    steps: Annotated[int, typer.Option("--steps", min=10, help="Steps measured in a trial.")] = 60,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Of a trial's steps, at most.")] = 20.0,
    budget: Annotated[float, typer.Option("--budget", help="Seconds for all trials.")] = 180.0,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAMES", help=f"Try these only: {', '.join(GROUPS)}.")
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Look for the largest and the fastest batch, in place of changes.")
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Write what is kept into seatrial.toml; later runs apply it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON; output goes to stderr.")] = False,
    verbose: Verbose = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Try changes on an unmodified script and keep what is faster and trains the same: tune train.py -- --epochs 5

    Loader workers, pinned memory, TF32, bf16, channels_last, a fused optimizer, torch.compile, DDP's buckets: each is
    measured in a short trial from outside. No file of the project is changed without --save.
    """
    asked = Tuning(steps=steps, seconds=seconds, budget_s=budget, only=_names(only), fit=fit)
    screen = Screen(json=as_json, whole=verbose)
    job = tuning_job(read_allowed_job(words or [], context.obj, flags, screen), asked)
    begun: list[Prepared] = []
    code = carry_out(job, dict(os.environ), screen, notifies=True, before_start=begun.append)
    if code != EXIT_DONE:
        return code
    found = load(begun[0].run.folder).tune
    if found is None or fit:
        return code
    if not found.kept:
        screen.say("nothing is kept, so the script stays as it is")
        return code
    if save:
        _save(found, begun[0], screen)
    if not save:
        screen.say("keep it: the same command with --save applies it to later runs")
    return code


def _names(only: str | None) -> tuple[str, ...]:
    """Raises UsageError for a name that is none."""
    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    for name in names:
        if name not in GROUPS:
            raise UsageError(f"--only {name}: known are {', '.join(GROUPS)}", run="seatrial tune … --only workers,bf16")
    return names


def _save(found: TuneRecord, prepared: Prepared, screen: Screen) -> None:
    job, comment = prepared.plan.job, f"measured by seatrial tune, run {prepared.run.id}; --no-tune: without"
    path = save_changes(job.project, {"script": job.target.value, **found.kept}, comment)
    screen.say(f"[tune] of {path.name} has it: later runs of {job.target.value} apply it, and --no-tune leaves it out")
