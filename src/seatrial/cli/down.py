"""``seatrial down``: stop what ``seatrial up`` started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.screens.front import front
from seatrial.cli.typed import reference
from seatrial.compose.commands import down as bring_down
from seatrial.errors import EXIT_DONE
from seatrial.runs.nearest import store_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def down(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP", help="ID of a group, part of it, name, or last; default: all.", callback=reference
        ),
    ] = None,
    project: Annotated[
        Path | None, typer.Option("--project", "-C", metavar="DIR", help="The project folder; default: here.")
    ] = None,
) -> int:
    """Stop the runs and services of a group that still run; results, receipts and volumes stay."""
    bring_down(store_of(project), group, front(), dict(os.environ))
    return EXIT_DONE
