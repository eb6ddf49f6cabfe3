"""``seatrial up``: bring up a Compose file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial.cli.options import (
    AS_JSON,
    RunReference,
    argument,
    check_folder,
    command,
    importing,
    option,
    project_option,
    this_host,
)
from seatrial.errors import UsageError


@command()
@argument("names", nargs=-1, metavar="NAME…", help="Services of the Compose file; default: all.")
@option("files", "--file", "-f", metavar="FILE", multiple=True, help="A Compose file; can be repeated.")
@option("profiles", "--profile", metavar="NAME", multiple=True, help="A profile of the Compose file; can be repeated.")
@option("plan_only", "--plan", is_flag=True, help="Show what would be done; change nothing.")
@option("target", "--target", metavar="MACHINE", help="With --plan: plan for h100, or driver=535.129,gpu=A4000.")
@option("--detach", "-d", is_flag=True, help="Run in the background.")
@option("--gpus", metavar="REQUEST", help="Replace the GPU request of each service that has one, e.g. none.")
@option("backend", "--on", metavar="BACKEND", help="auto, docker or podman.")
@option("--notify", metavar="COMMAND", multiple=True, help="A command to run here when all has ended.")
@option("name", "--name", metavar="TEXT", type=RunReference(new=True), help="A name for the group.")
@AS_JSON
@option("--verbose", "-v", is_flag=True, help="Print every line of a build; with --plan, the override file.")
@option("--quiet", "-q", is_flag=True, help="Print outputs, warnings, failures and the receipt alone.")
@option("--trust", is_flag=True, help="Allow what the project's file requests without asking.")
@project_option("The project folder; default: here.")
def up(
    files: tuple[str, ...], as_json: bool, verbose: bool, quiet: bool, trust: bool, project: Path | None, **request: Any
) -> int:
    """Run a Compose file as it is; ends with one receipt for all.

    \b
    seatrial up                        every service of compose.yaml
    seatrial up train -f gpu.yaml      one service, and the services it depends on
    seatrial up --plan                 what would be done
    seatrial runs stop GROUP           stop it
    """
    with importing():
        from seatrial.cli.screen import front
        from seatrial.compose import commands
        from seatrial.compose.request import UpRequest
        from seatrial.system.project_files import real_project

    if request["target"] and not request["plan_only"]:
        run = f"seatrial up --plan --target {request['target']}"
        raise UsageError("--target needs --plan: nothing starts on another machine", run=run)
    folder = real_project(check_folder(project or Path.cwd()))
    wanted = UpRequest(
        project=folder, files=tuple(Path(file) for file in files), as_json=as_json, whole=verbose, **request
    )
    person = front(trust=trust, as_json=as_json, whole=verbose, quiet=quiet and not verbose)
    return commands.up(wanted, person, this_host())
