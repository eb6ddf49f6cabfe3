"""``seatrial top``: GPUs, containers and runs, live."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from seatrial.errors import EXIT_DONE, UsageError
from seatrial.monitor import top as view
from seatrial.monitor.reading import Names, Reader
from seatrial.monitor.top import open_sink
from seatrial.monitor.top_screen import SORTS, Options
from seatrial.runs.following.live import live_runs
from seatrial.runs.nearest import store_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one screen and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one sample as JSON and exit.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Also write to FILE: .csv or .jsonl.")
    ] = None,
    interval_s: Annotated[float, typer.Option("--interval", "-i", help="Seconds between samples.")] = 1.0,
    sort: Annotated[str, typer.Option("--sort", help=f"Sort containers by {', '.join(SORTS)}.")] = "gpu",
    filter: Annotated[str, typer.Option("--filter", help="Filter by name.")] = "",
    project: Annotated[
        Path, typer.Option("--project", "-C", metavar="DIR", help="Project whose runs to show.")
    ] = Path(),
) -> int:
    """GPUs, containers and runs on this machine, live. Keys: q quit, s sort, / filter, + and - interval."""
    if sort not in SORTS:
        raise UsageError(f'There is no column "{sort}"', run=f"seatrial top --sort {next(iter(SORTS))}")
    if not 0.1 <= interval_s <= 3600:
        raise UsageError(f"An interval of {interval_s:g} s is out of range: 0.1 to 3600", run="seatrial top -i 1")
    console = Console(highlight=False)
    on_terminal = console.is_terminal and sys.stdin.isatty()
    options = Options(sort, filter, interval_s, unicode=console.encoding.lower().startswith("utf"))
    names, store = Names(os.environ), store_of(project)
    sink = open_sink(log) if log is not None else None
    reader = Reader(names)
    try:
        if once or as_json or not (on_terminal or sink):
            names.look_up(["?"], wait=True)
            view.once(reader.read, lambda: live_runs(store), console, options, sink, as_json=as_json)
            return EXIT_DONE
        signal.signal(signal.SIGTERM, _interrupt)
        if on_terminal:
            view.watch(reader.read, lambda: live_runs(store), console, options, sink)
        elif sink is not None:
            view.log_only(reader.read, sink, interval_s)
    except KeyboardInterrupt:
        pass
    finally:
        if sink is not None:
            sink.close()
    return EXIT_DONE


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
