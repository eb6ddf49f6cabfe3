"""``seatrial tune``: changes to an unmodified script, tried and measured; a job like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from seatrial.cli.options import RECEIPT_AS_JSON, VERBOSE, WORDS, command, importing, option, takes_job, this_host
from seatrial.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from seatrial.runs.launch import Prepared


@command(examples=("seatrial tune train.py --save", "seatrial tune train.py --only workers,bf16 -- --epochs 5"))
@takes_job
@WORDS
@option("--steps", metavar="N", type=click.IntRange(min=10), default=60, help="Steps measured in a trial.")
@option(
    "--seconds", metavar="N", type=click.FloatRange(min=1), default=20.0, help="Maximum seconds of steps per trial."
)
@option("budget_s", "--budget", metavar="N", type=float, default=180.0, help="Seconds for all trials.")
@option("--only", metavar="NAMES", help="Try only these: workers,bf16; a wrong name lists all.")
@option("--fit", is_flag=True, help="Find the largest and the fastest batch size.")
@option("--save", is_flag=True, help="Write the kept changes into seatrial.toml; later runs apply them.")
@RECEIPT_AS_JSON
@VERBOSE
def tune(
    words: tuple[str, ...],
    only: str | None,
    fit: bool,
    save: bool,
    as_json: bool,
    verbose: bool,
    flags: dict[str, Any],
    **limits: Any,
) -> int:
    """Try changes on an unmodified script and keep what is faster and trains the same: tune train.py -- --epochs 5

    Loader workers, pinned memory, TF32, bf16, channels_last, a fused optimizer, torch.compile, DDP's buckets: each is
    measured in a short trial from outside. No file of the project is changed without --save.
    """
    with importing():
        from seatrial.cli.job import read_allowed_job
        from seatrial.cli.run import run_to_receipt
        from seatrial.cli.screen import Screen
        from seatrial.job.tables import Tuning
        from seatrial.receipt.store import load
        from seatrial.runs.tuning import save_changes, tuning_job

    tuning = Tuning(only=_names(only), fit=fit, **limits)
    screen = Screen(json=as_json, whole=verbose)
    job = tuning_job(read_allowed_job(words, flags, screen), tuning)
    begun: list[Prepared] = []
    code = run_to_receipt(job, this_host(), screen, notifies=True, before_start=begun.append)
    found = load(begun[0].run.folder).tune if code == EXIT_DONE else None
    if found is None or fit or not found.kept:
        return code
    script = begun[0].plan.job.target.value
    if save:
        comment = f"measured by seatrial tune, run {begun[0].run.id}; --no-tune: without"
        path = save_changes(job.project, {"script": script, **found.kept}, comment)
        screen.note(f"[tune] of {path.name} has it: later runs of {script} apply it, and --no-tune leaves it out")
    else:
        screen.note("keep it: the same command with --save applies it to later runs")
    return code


def _names(only: str | None) -> tuple[str, ...]:
    """Return the names in ``--only``. Raises UsageError for an unknown one."""
    from seatrial.common.contract.tunables import GROUPS

    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    for name in names:
        if name not in GROUPS:
            raise UsageError(f"--only {name}: known are {', '.join(GROUPS)}", run="seatrial tune … --only workers,bf16")
    return names
