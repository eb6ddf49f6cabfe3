"""``seatrial exporter``: GPUs, containers and runs for Prometheus."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from seatrial.errors import EXIT_DONE, UsageError
from seatrial.runs.following.live import live_runs
from seatrial.runs.nearest import store_of
from seatrial.system.address import parse_address, url
from seatrial.telemetry.engines import Names
from seatrial.telemetry.exporter import Exporter
from seatrial.telemetry.http_server import Server
from seatrial.telemetry.reading import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_CONFIGS = {"prometheus": "prometheus.yml", "grafana": "grafana.json"}


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def exporter(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:9400",
    interval_s: Annotated[float, typer.Option("--interval", "-i", help="Seconds between samples.")] = 1.0,
    print_config: Annotated[
        str | None,
        typer.Option("--print-config", metavar="KIND", help="Print a configuration (prometheus, grafana) and exit."),
    ] = None,
    project: Annotated[
        Path, typer.Option("--project", "-C", metavar="DIR", help="Project whose runs to show.")
    ] = Path(),
) -> int:
    """Serve metrics at /metrics: dcgm-exporter's names and seatrial_*. Needs no DCGM and no root."""
    if print_config is not None:
        if print_config not in _CONFIGS:
            raise UsageError(
                f'There is no configuration "{print_config}"', run="seatrial exporter --print-config grafana"
            )
        name = _CONFIGS[print_config]
        print(resources.files("seatrial.telemetry").joinpath(name).read_text(encoding="utf-8"), end="")
        return EXIT_DONE
    if not 0.1 <= interval_s <= 3600:
        raise UsageError(f"An interval of {interval_s:g} s is out of range: 0.1 to 3600", run="seatrial exporter -i 1")
    host, port = parse_address(listen, "exporter", 9400)
    reader, store = Reader(Names(os.environ), service=True), store_of(project)
    readings = Exporter(reader.read, lambda: live_runs(store), interval_s=interval_s)
    server = Server(host, port, readings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    readings.start()
    print(f"seatrial exporter: {url(host, server.server_address[1])}metrics", file=sys.stderr, flush=True)
    server.serve_forever(poll_interval=0.2)
    server.server_close()
    readings.stop()
    return EXIT_DONE
