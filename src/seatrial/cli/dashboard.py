"""``seatrial dashboard``: the web page over runs and live telemetry."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from seatrial.errors import EXIT_DONE, UsageError
from seatrial.receipt.store import FIXED
from seatrial.runs.nearest import store_of
from seatrial.system import names
from seatrial.system.address import is_loopback, parse_address, url
from seatrial.telemetry.engines import Names
from seatrial.telemetry.reading import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: A token of one's own; the command line would show it to every user of the machine.
TOKEN_VARIABLE = "SEATRIAL_DASHBOARD_TOKEN"


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def dashboard(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:8765",
    interval_s: Annotated[float, typer.Option("--interval", "-i", help="Seconds between samples.")] = 1.0,
    with_names: Annotated[bool, typer.Option("--with-names", help="Also show user and host names.")] = False,
    all_projects: Annotated[
        bool | None,
        typer.Option(
            "--all-projects/--one-project",
            help="Runs of every project of yours; default: on this machine's own address, without --project.",
        ),
    ] = None,
    project: Annotated[
        Path | None, typer.Option("--project", "-C", metavar="DIR", help="Show the runs of this project alone.")
    ] = None,
) -> int:
    """A web page: live GPUs, runs with logs, curves and receipts, runs side by side.

    Beyond this machine (--listen 0.0.0.0:8765) a token is required: the printed one, or SEATRIAL_DASHBOARD_TOKEN.
    There it shows one project, unless --all-projects is given.
    """
    try:
        from seatrial.dashboard import server
        from seatrial.dashboard.feed import Feed
        from seatrial.dashboard.projects import Projects
    except ImportError as error:
        raise UsageError(
            f"The dashboard needs {error.name}, which is not installed", run="pip install 'seatrial[dashboard]'"
        ) from error
    if not 0.2 <= interval_s <= 60:
        raise UsageError(f"An interval of {interval_s:g} s is out of range: 0.2 to 60", run="seatrial dashboard -i 1")
    host, port = parse_address(listen, "dashboard", 8765)
    token = os.environ.get(TOKEN_VARIABLE) or (None if is_loopback(host) else secrets.token_urlsafe(24))
    shows_all = (is_loopback(host) and project is None) if all_projects is None else all_projects
    projects = Projects(store_of(project), os.environ if shows_all else None)
    reader = Reader(Names(os.environ))
    shown = names.Names() if with_names else names.names_of(os.environ)
    feed = Feed(
        lambda: shown.scrub(reader.read(), keep=FIXED),
        interval_s=interval_s,
        tend=server.Housekeeping(projects, dict(os.environ)),
    )
    made = server.make_app(projects, feed, token, shown)
    sock = server.listen(host, port)
    address = url(host, sock.getsockname()[1]) + (f"?token={token}" if token else "")
    print(f"seatrial dashboard: {address}", file=sys.stderr, flush=True)
    server.serve(made, sock, feed)
    return EXIT_DONE
