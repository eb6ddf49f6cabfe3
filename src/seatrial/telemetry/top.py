"""``seatrial top``: the loop of the terminal view, one plain screen, or a log file without a screen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live

from seatrial.telemetry.history import History
from seatrial.telemetry.keyboard import keys
from seatrial.telemetry.reading import Read
from seatrial.telemetry.screen import SORTS, Options, render
from seatrial.telemetry.sink import Sink

Runs = Callable[[], Sequence[Mapping[str, Any]]]

#: The first reading has no rates yet: CPU and GPM count between two.
WARM_UP_S = 1.0

_INTERVALS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def once(read: Read, runs: Runs, console: Console, options: Options, sink: Sink | None, *, as_json: bool) -> None:
    """One reading as a plain screen or as JSON, and into the sink."""
    read()
    time.sleep(WARM_UP_S)
    reading = read()
    if sink is not None:
        sink.write(reading)
    if as_json:
        console.out(json.dumps({**reading, "runs": list(runs())}, indent=1), highlight=False)
        return
    console.print(render(reading, runs(), None, options, console.width, None))


def log_only(read: Read, sink: Sink, interval_s: float) -> None:
    """Readings into a file until interrupted (or the disk is full: then DiskError)."""
    read()
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        sink.write(read())


def watch(read: Read, runs: Runs, console: Console, options: Options, sink: Sink | None) -> None:
    """The live view until q, Ctrl-C or the end of the terminal."""
    history, reading, listed = History(), read(), runs()
    due_s = time.monotonic() + min(options.interval_s, WARM_UP_S)
    with keys() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(render(reading, listed, history, options, console.width, console.height), refresh=True)
            try:
                key = keyboard.wait(due_s - time.monotonic())
            except EOFError:
                return
            if key is not None:
                if _press(key, options) == "quit":
                    return
                continue
            reading, listed = read(), runs()
            history.add(reading)
            if sink is not None:
                sink.write(reading)
            due_s = max(due_s + options.interval_s, time.monotonic())


def _press(key: str, options: Options) -> str | None:
    """Act on a key; ``quit`` when it asks for that."""
    if options.typing:
        _type(key, options)
    elif key in ("q", "Q", "\x03", "\x04"):
        return "quit"
    elif key == "s":
        names = list(SORTS)
        options.sort = names[(names.index(options.sort) + 1) % len(names)]
    elif key == "/":
        options.typing = True
    elif key in ("+", "=", "-"):
        at = min(range(len(_INTERVALS_S)), key=lambda i: abs(_INTERVALS_S[i] - options.interval_s))
        at += -1 if key == "-" else 1
        options.interval_s = _INTERVALS_S[min(max(at, 0), len(_INTERVALS_S) - 1)]
    elif key == "\x1b":
        options.filter = ""
    return None


def _type(key: str, options: Options) -> None:
    if key in ("\r", "\n"):
        options.typing = False
    elif key == "\x1b":
        options.typing, options.filter = False, ""
    elif key in ("\x7f", "\b"):
        options.filter = options.filter[:-1]
    elif key.isprintable():
        options.filter += key
