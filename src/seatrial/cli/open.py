"""``seatrial open``: a run's receipt in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.typed import Reference
from seatrial.compose.output import find_run
from seatrial.errors import EXIT_DONE, UsageError
from seatrial.runs.nearest import store_of
from seatrial.system.typed_path import as_typed

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("open", context_settings={"help_option_names": ["-h", "--help"]})
def open_(
    reference: Reference = "last",
    only_print: Annotated[bool, typer.Option("--print", help="Print the page's path, and open nothing.")] = False,
    project: Annotated[
        Path | None,
        typer.Option("--project", "-C", metavar="DIR", help="The project folder; default: the nearest with runs."),
    ] = None,
) -> int:
    """Open a run's receipt in the browser; where there is none, print the page's path."""
    from seatrial.runs.finalise import finalise  # it loads all that judges

    run = find_run(store_of(project), reference)
    if finalise(run, os.environ) is None:
        raise UsageError(f"{run.id} has not ended: it has no receipt yet", run=f"seatrial runs logs -f {run.id}")
    page = run.folder / "receipt.html"  # the record's: the target could have written the copy in the project
    if not page.is_file():
        raise UsageError(f"The page of run {run.id} is missing: {page}", run=f"seatrial runs show {run.id}")
    if only_print or not _has_browser() or not webbrowser.open(page.absolute().as_uri()):
        print(page.absolute())
        if not only_print:
            serve = f"cd {as_typed(page.parent)} && python3 -m http.server --bind 127.0.0.1 8000"
            there = f"http://127.0.0.1:8000/{page.name}, from elsewhere through ssh -L 8000:127.0.0.1:8000"
            print(f"no browser here; copy it, or: {serve}   # then open {there}", file=sys.stderr)
    return EXIT_DONE


def _has_browser() -> bool:
    """A browser in the terminal would take it over, so one needs a screen."""
    named = any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))
    return named or sys.platform == "darwin"
