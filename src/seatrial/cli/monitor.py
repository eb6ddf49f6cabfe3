"""``seatrial top`` and ``seatrial dashboard``: this machine and its runs, live."""

from __future__ import annotations

import secrets
import signal
import sys
from importlib import resources
from pathlib import Path

import click

from seatrial.cli import terminal
from seatrial.cli.options import command, importing, option, project_option, this_host
from seatrial.errors import EXIT_DONE, UsageError

#: A token of one's own; an option would show it to every user of the machine.
TOKEN_VARIABLE = "SEATRIAL_DASHBOARD_TOKEN"

_CONFIGS = {"prometheus": "prometheus.yml", "grafana": "grafana.json"}

_INTERVAL = option(
    "interval_s", "--interval", "-i", type=float, default=1.0, metavar="N", help="Seconds between samples."
)


@command(examples=("seatrial top", "seatrial top --once"))
@option("--once", is_flag=True, help="Print one screen and exit.")
@option("as_json", "--json", is_flag=True, help="Print one sample as JSON and exit.")
@option("--log", metavar="FILE", type=click.Path(path_type=Path), help="Also write to FILE: .csv or .jsonl.")
@_INTERVAL
@project_option("Project with the runs.")
def top(once: bool, as_json: bool, log: Path | None, interval_s: float, project: Path | None) -> int:
    """GPUs, containers and runs on this machine, live, until Ctrl-C."""
    with importing():
        from seatrial.monitor import top as view
        from seatrial.monitor.reading import ContainerNames, MachineReader, open_sink
        from seatrial.runs.live import live_runs
        from seatrial.runs.store import store_of

    _check_interval(interval_s, 0.1, 3600, "seatrial top -i 1")
    console = terminal.console()
    on_terminal = console.is_terminal and sys.stdin.isatty()
    names, store = ContainerNames(this_host()), store_of(project)
    sink = open_sink(log) if log is not None else None
    reader = MachineReader(names)
    try:
        if once or as_json or not (on_terminal or sink):
            names.look_up(["?"], wait=True)
            view.once(reader.read, lambda: live_runs(store), console, sink, as_json=as_json)
            return EXIT_DONE
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        view.watch(reader.read, lambda: live_runs(store), console if on_terminal else None, sink, interval_s)
    except KeyboardInterrupt:
        pass
    finally:
        if sink is not None:
            sink.close()
    return EXIT_DONE


@command(examples=("seatrial dashboard", "seatrial dashboard --metrics-only --listen 127.0.0.1:9400"))
@option("--listen", metavar="HOST:PORT", help="Address; default: 127.0.0.1:8765, for --metrics-only port 9400.")
@_INTERVAL
@option("--with-names", is_flag=True, help="Also show user and host names.")
@option(
    "--all-projects/--one-project",
    default=None,
    help="Runs of every project of yours; default: on this machine's own address, without --project.",
)
@option("--metrics-only", is_flag=True, help="Serve /metrics for Prometheus alone; needs no DCGM and no root.")
@option("--print-config", type=click.Choice([*_CONFIGS]), help="Print a configuration and exit.")
@project_option("Show the runs of this project alone.")
def dashboard(
    listen: str | None,
    interval_s: float,
    with_names: bool,
    all_projects: bool | None,
    metrics_only: bool,
    print_config: str | None,
    project: Path | None,
) -> int:
    """A web page: live GPUs, runs with logs, curves and receipts, runs side by side.

    Beyond this machine (--listen 0.0.0.0:8765) a token is required: the printed one, or SEATRIAL_DASHBOARD_TOKEN.
    There it shows one project, unless --all-projects is given. --metrics-only needs no token, no DCGM and no root.
    """
    if print_config is not None:
        print(resources.files("seatrial.monitor").joinpath(_CONFIGS[print_config]).read_text(encoding="utf-8"), end="")
        return EXIT_DONE
    try:
        with importing():
            from seatrial.monitor.app import Api, Feed, Housekeeping, dashboard_app, metrics_app
            from seatrial.monitor.prometheus import Exposition
            from seatrial.web import server
    except ImportError as error:
        from seatrial.system.command import install_extra

        problem = f"The dashboard needs the extra seatrial[dashboard]: {error.name} is not installed"
        raise UsageError(problem, run=install_extra("dashboard")) from error
    from seatrial.monitor.reading import ContainerNames, MachineReader
    from seatrial.receipt.model import FIXED
    from seatrial.runs.live import live_runs
    from seatrial.runs.store import Projects, store_of
    from seatrial.system import names
    from seatrial.system.address import is_loopback, parse_address, url
    from seatrial.system.text import visible_in

    this = this_host()
    verb, port = ("dashboard --metrics-only", 9400) if metrics_only else ("dashboard", 8765)
    _check_interval(interval_s, *((0.1, 3600) if metrics_only else (0.2, 60)), f"seatrial {verb} -i 1")
    host, port = parse_address(listen or f"127.0.0.1:{port}", verb, port)
    store, local = store_of(project), is_loopback(host)
    token = this.env.get(TOKEN_VARIABLE) or (None if local or metrics_only else secrets.token_urlsafe(24))
    reader = MachineReader(ContainerNames(this), service=True)
    if metrics_only:
        exposition = Exposition(lambda: live_runs(store), interval_s=interval_s)
        feed = Feed(reader.read, interval_s=interval_s, on_reading=exposition.renew)
        made = metrics_app(feed, exposition, token, any_host=not local)
    else:
        shows_all = (local and project is None) if all_projects is None else all_projects
        projects = Projects(store, this if shows_all else None)
        shown = names.Names() if with_names else names.names_of(this)
        exposition = Exposition(lambda: live_runs(store), interval_s=interval_s, hostname=None if with_names else "")
        feed = Feed(
            lambda: visible_in(shown.scrub(reader.read(), keep=FIXED)),
            interval_s=interval_s,
            on_reading=exposition.renew,
            tend=Housekeeping(projects, this),
        )
        made = dashboard_app(Api(projects, feed, shown), feed, exposition, token)
    sock = server.listen(verb, host, port)
    address = url(host, sock.getsockname()[1]) + ("metrics" if metrics_only else f"?token={token}" if token else "")

    def announce() -> None:
        print(f"seatrial dashboard: {address}", file=sys.stderr, flush=True)

    server.Server(made, announce, feed.stop).serve_on(sock)
    return EXIT_DONE


def _check_interval(interval_s: float, least_s: float, most_s: float, run: str) -> None:
    if not least_s <= interval_s <= most_s:
        raise UsageError(f"An interval of {interval_s:g} s is out of range: {least_s:g} to {most_s:g}", run=run)
