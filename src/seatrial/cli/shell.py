"""``seatrial shell``: an interactive shell where the target would run, with the same GPUs, mounts and user."""

from __future__ import annotations

import os
from typing import Any

import typer

from seatrial.cli.job_flags import Words, takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.typed_job import read_allowed_job
from seatrial.runs import launch

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def shell(context: typer.Context, words: Words = None, *, flags: dict[str, Any]) -> int:
    """Open an interactive shell in the container the target would get; its GPUs are checked first."""
    environ = dict(os.environ)
    screen = Screen()
    job = read_allowed_job(words or [], context.obj, flags, screen)
    prepared = launch.prepare(job, environ, building=screen.building, interactive=True)
    screen.announce(prepared.plan)
    return launch.shell(prepared, environ, screen.building)
