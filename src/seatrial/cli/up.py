"""``seatrial up``: bring up a Compose file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli.screens.front import front
from seatrial.cli.typed import check_folder, name
from seatrial.compose.commands import up as bring_up
from seatrial.compose.request import UpRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def up(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="Services of the Compose file; default: all."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", help="A Compose file; can be repeated."),
    ] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="A profile of the Compose file; can be repeated."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done; change nothing.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="REQUEST", help="For all, instead of what the file says: none.")
    ] = None,
    backend: Annotated[str | None, typer.Option("--on", metavar="BACKEND", help="auto, docker or podman.")] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option("--notify", metavar="WHERE", help="When all has ended: desktop, a command, or a URL."),
    ] = None,
    group: Annotated[str | None, typer.Option("--name", help="A name for the group.", callback=name)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every line of a build.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Outputs, warnings, failures, the receipt.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow what the project's file requests without asking.")
    ] = False,
    project: Annotated[
        Path | None, typer.Option("--project", "-C", metavar="DIR", help="The project folder; default: here.")
    ] = None,
) -> int:
    """Run a Compose file as it is; ends with one receipt for all.

    \b
    seatrial up                        every service of compose.yaml
    seatrial up train -f gpu.yaml      one service, and what it depends on
    """
    request = UpRequest(
        project=check_folder(project or Path.cwd()).absolute(),
        names=tuple(names or ()),
        files=tuple(files or ()),
        profiles=tuple(profiles or ()),
        name=group,
        plan_only=plan,
        detach=detach,
        gpus=gpus,
        backend=backend,
        as_json=as_json,
        notify=tuple(notify or ()),
    )
    console = front(trust=trust, as_json=as_json, whole=verbose, quiet=quiet and not verbose)
    return bring_up(request, console, dict(os.environ))
