"""``seatrial init``: write seatrial.toml with what was found in the project, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.screens.run import Screen
from seatrial.errors import EXIT_DONE
from seatrial.planning.project_file import FILE, project_file, write_project_file

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def init(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="The training script; detected by default.")
    ] = None,
    project: Annotated[Path | None, typer.Option("--project", "-C", help="The project folder; default: here.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the file; write nothing.")] = False,
) -> int:
    """Write seatrial.toml from what was found in the project, with the reasons."""
    folder = (project or Path.cwd()).resolve()
    if show:
        print(project_file(folder, script), end="")
        return EXIT_DONE
    write_project_file(folder, script)
    Screen().say(f"{FILE} written; seatrial plan shows the resulting plan")
    return EXIT_DONE
