"""``seatrial dashboard``: the web page over runs and live telemetry, and metrics for Prometheus."""

from __future__ import annotations

import os
import secrets
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from seatrial.errors import EXIT_DONE, UsageError
from seatrial.monitor.reading import Names, Reader
from seatrial.receipt.store import FIXED
from seatrial.runs.following.live import live_runs
from seatrial.runs.nearest import store_of
from seatrial.system import names
from seatrial.system.address import is_loopback, parse_address, url

app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: A token of the user's own; the command line would show it to every user of the machine.
TOKEN_VARIABLE = "SEATRIAL_DASHBOARD_TOKEN"

_CONFIGS = {"prometheus": "prometheus.yml", "grafana": "grafana.json"}


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def dashboard(
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on; default: 127.0.0.1:8765 (or 9400)."),
    ] = None,
    interval_s: Annotated[float, typer.Option("--interval", "-i", help="Seconds between samples.")] = 1.0,
    with_names: Annotated[bool, typer.Option("--with-names", help="Also show user and host names.")] = False,
    metrics_only: Annotated[
        bool,
        typer.Option("--metrics-only", help="No pages: /metrics for Prometheus, under dcgm-exporter names."),
    ] = False,
    print_config: Annotated[
        str | None,
        typer.Option("--print-config", metavar="KIND", help="Print a configuration (prometheus, grafana) and exit."),
    ] = None,
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
    """A web page: live GPUs, runs with logs, curves and receipts, runs side by side; /metrics for Prometheus.

    Beyond this machine (--listen 0.0.0.0:8765) a token is required: the printed one, or SEATRIAL_DASHBOARD_TOKEN.
    There it shows one project, unless --all-projects is given. --metrics-only needs no token, no DCGM and no root.
    """
    if print_config is not None:
        if print_config not in _CONFIGS:
            raise UsageError(
                f'There is no configuration "{print_config}"', run="seatrial dashboard --print-config grafana"
            )
        print(resources.files("seatrial.monitor").joinpath(_CONFIGS[print_config]).read_text(encoding="utf-8"), end="")
        return EXIT_DONE
    try:
        from seatrial.monitor.api import Api
        from seatrial.monitor.app import Housekeeping, dashboard_app, metrics_app
        from seatrial.monitor.feed import Feed
        from seatrial.monitor.prometheus import Exposition
        from seatrial.monitor.run_list import Projects
        from seatrial.web import server
    except ImportError as error:
        raise UsageError(
            f"The dashboard needs {error.name}, which is not installed", run="pip install 'seatrial[dashboard]'"
        ) from error
    verb, port = ("dashboard --metrics-only", 9400) if metrics_only else ("dashboard", 8765)
    _check_interval(interval_s, *((0.1, 3600) if metrics_only else (0.2, 60)), verb)
    host, port = parse_address(listen or f"127.0.0.1:{port}", verb, port)
    store, local = store_of(project), is_loopback(host)
    token = os.environ.get(TOKEN_VARIABLE) or (None if local or metrics_only else secrets.token_urlsafe(24))
    reader = Reader(Names(os.environ), service=True)
    if metrics_only:
        exposition = Exposition(lambda: live_runs(store), interval_s=interval_s)
        feed = Feed(reader.read, interval_s=interval_s, on_reading=exposition.renew)
        made = metrics_app(feed, exposition, token, any_host=not local)
    else:
        shows_all = (local and project is None) if all_projects is None else all_projects
        projects = Projects(store, os.environ if shows_all else None)
        shown = names.Names() if with_names else names.names_of(os.environ)
        exposition = Exposition(lambda: live_runs(store), interval_s=interval_s, hostname=None if with_names else "")
        feed = Feed(
            lambda: shown.scrub(reader.read(), keep=FIXED),
            interval_s=interval_s,
            on_reading=exposition.renew,
            tend=Housekeeping(projects, dict(os.environ)),
        )
        made = dashboard_app(Api(projects, feed, shown), feed, exposition, token)
    sock = server.listen(verb, host, port)
    address = url(host, sock.getsockname()[1]) + ("metrics" if metrics_only else f"?token={token}" if token else "")

    def announce() -> None:
        print(f"seatrial dashboard: {address}", file=sys.stderr, flush=True)

    server.Server(made, announce, feed.stop).serve_on(sock)
    return EXIT_DONE


def _check_interval(interval_s: float, least: float, most: float, verb: str) -> None:
    if not least <= interval_s <= most:
        raise UsageError(
            f"An interval of {interval_s:g} s is out of range: {least:g} to {most:g}", run=f"seatrial {verb} -i 1"
        )
