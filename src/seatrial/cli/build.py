"""``seatrial build``: make the image, verify it, say what is in it; or check a Dockerfile of yours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from seatrial.cli.job_flags import Words, takes_job
from seatrial.cli.screens.build import print_built, print_findings
from seatrial.cli.screens.run import Screen
from seatrial.cli.typed_job import read_allowed_job
from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED
from seatrial.images.lint.check import check_dockerfile
from seatrial.runs.build_command import build_image

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def build(
    context: typer.Context,
    words: Words = None,
    explain: Annotated[bool, typer.Option("--explain", help="Size by package and kind; what slimming saves.")] = False,
    lock: Annotated[bool, typer.Option("--lock", help="Write every version to seatrial.lock.")] = False,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="DOCKERFILE", help="Check your own Dockerfile; builds nothing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every line of the build.")] = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Build the image that run would use, verify it, and report its contents."""
    screen = Screen(json=as_json, whole=verbose)
    if check is not None:
        findings = check_dockerfile(check)
        print_findings(check, findings, as_json=as_json)
        return EXIT_TARGET_FAILED if any(each.severity == "error" for each in findings) else EXIT_DONE
    job = read_allowed_job(words or [], context.obj, flags, screen, building=True)
    with screen.building() as progress:
        built = build_image(job, dict(os.environ), progress, explain=explain, lock=lock)
    print_built(built, as_json=as_json)
    return EXIT_DONE
