"""``seatrial new``: a folder with a training that runs at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.screens.run import Screen
from seatrial.errors import EXIT_DONE
from seatrial.planning.new_project import new_project
from seatrial.system.typed_path import as_typed

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.")],
) -> int:
    """Make a project: a script that trains, a data loader with tests, seatrial.toml."""
    folder = Path(os.path.normpath(folder))
    written = new_project(folder)
    screen = Screen()
    screen.say(f"made {folder} with {', '.join(written)}")
    screen.say(
        f"now: cd {as_typed(folder)} && seatrial run --gpus none   # or without --gpus none, where there is a GPU"
    )
    return EXIT_DONE
