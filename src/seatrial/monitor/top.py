"""``seatrial top``: its loop and keyboard, and its screen, from 80 × 24 up or as plain text: GPUs, runs, containers."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from seatrial.job.units import format_bytes
from seatrial.monitor.reading import Read, ReadingLog
from seatrial.receipt.values import in_words

Runs = Callable[[], Sequence[Mapping[str, Any]]]

#: The first reading has no rates yet: CPU and GPM count between two.
WARM_UP_S = 1.0

_INTERVALS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def once(
    read: Read, runs: Runs, console: Console, options: TopOptions, sink: ReadingLog | None, *, as_json: bool
) -> None:
    """Print one reading as a plain screen or as JSON, and write it into the sink."""
    read()
    time.sleep(WARM_UP_S)
    reading = read()
    if sink is not None:
        sink.write(reading)
    if as_json:
        console.out(json.dumps({**reading, "runs": list(runs())}, indent=1), highlight=False)
        return
    console.print(render(reading, runs(), None, options, console.width, None))


def log_only(read: Read, sink: ReadingLog, interval_s: float) -> None:
    """Write readings into a file until interrupted. Raises DiskError if the disk is full."""
    read()
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        sink.write(read())


def watch(read: Read, runs: Runs, console: Console, options: TopOptions, sink: ReadingLog | None) -> None:
    """Show the live view until q, Ctrl-C or the end of the terminal."""
    history, reading, listed = History(), read(), runs()
    due_s = time.monotonic() + min(options.interval_s, WARM_UP_S)
    with _keys() as next_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(render(reading, listed, history, options, console.width, console.height), refresh=True)
            try:
                key = next_key(due_s - time.monotonic())
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


def _press(key: str, options: TopOptions) -> str | None:
    """Act on a key; return ``quit`` if it ends the view."""
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


def _type(key: str, options: TopOptions) -> None:
    if key in ("\r", "\n"):
        options.typing = False
    elif key == "\x1b":
        options.typing, options.filter = False, ""
    elif key in ("\x7f", "\b"):
        options.filter = options.filter[:-1]
    elif key.isprintable():
        options.filter += key


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Yield a function that waits the given seconds and returns the pressed key; None if no key was pressed.

    An arrow is one key. Raises EOFError: the terminal is gone. If stdin is not a terminal, it returns no key.
    """
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(max(0.0, seconds))
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str | None:
        if not select.select([descriptor], [], [], max(0.0, seconds))[0]:
            return None
        if not (data := os.read(descriptor, 64)):
            raise EOFError
        return data.decode("utf-8", "replace")

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# ---------------------------------------------------------------------------------------------------- the screen

#: Column to sort containers by → its key, and the key that cycles through them in the terminal.
SORTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "gpu": lambda row: (-(row["gpu_memory_bytes"] or 0), -(row["gpu_share_pct"] or 0), row["name"]),
    "cpu": lambda row: (-(row["cpu_cores"] or 0), row["name"]),
    "memory": lambda row: (-(row["memory_bytes"] or 0), row["name"]),
    "name": lambda row: row["name"],
}

#: Throttle reasons in a word each, for a narrow column.
_SHORT = {
    "sw_power_cap": "power cap",
    "hw_slowdown": "HW slow",
    "sw_thermal_slowdown": "hot",
    "hw_thermal_slowdown": "hot",
    "hw_power_brake_slowdown": "power brake",
}


@dataclass
class TopOptions:
    """The choices of the person at the terminal. ``filter`` keeps containers and runs that have it in a name."""

    sort: str = "gpu"
    filter: str = ""
    interval_s: float = 1.0
    unicode: bool = True
    typing: bool = False


#: Lines that runs and containers need at least; GPUs that leave less get one line instead of two.
_OTHERS = 10


def render(
    reading: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    history: History | None,
    options: TopOptions,
    width: int,
    height: int | None,
) -> RenderableType:
    """Return the screen: with ``height``, as much as fits and how much does not; without, everything."""
    parts: list[RenderableType] = [_title(reading, width)]
    parts += [Text(problem, style="yellow", overflow="fold") for problem in reading["problems"]]
    if height is not None and history is not None and 2 * len(reading["gpus"]) > height - _OTHERS:
        names = [_gpu_name(gpu) + " " for gpu in reading["gpus"]]
        widest = max(map(len, names))
        rows_of = zip(names, reading["gpus"], strict=True)
        parts += [Text(name.ljust(widest)) + _graphs(gpu, history, options, width - widest) for name, gpu in rows_of]
    else:
        parts += [part for gpu in reading["gpus"] for part in _gpu(gpu, history, options, width)]
    kept_runs = [run for run in runs if _fits(options, run["id"], run["name"], run["target"])]
    kept = sorted(
        (row for row in reading["containers"] if _fits(options, row["name"], row["image"], row["run_name"])),
        key=SORTS[options.sort],
    )
    left = None if height is None else max(4, height - len(parts) - len(reading["problems"]) - 5)
    shown_runs = kept_runs if left is None else kept_runs[: max(1, min(left // 2, len(kept_runs)))]
    if shown_runs:
        parts += [Text(), _runs(shown_runs, width)]
    rows = None if left is None else max(1, left - 2 * len(shown_runs) - 1)
    parts += [Text(), _containers(kept[:rows], width)]
    if rows is not None and len(kept) > rows:
        parts.append(Text(f"  … {len(kept) - rows} more; / filters", style="dim"))
    if height is not None:
        parts.append(_help_line(options))
    return Group(*parts)


def _title(reading: Mapping[str, Any], width: int) -> Text:
    machine = reading["machine"]
    words = [
        f"CPU {_number(machine['cpu_cores'], '.1f')} of {machine['cpu_count']} cores",
        f"memory {_bytes(machine['memory_used_bytes'])} of {_bytes(machine['memory_total_bytes'])}",
    ]
    if reading["driver_version"]:
        words.append(f"driver {reading['driver_version']}")
    text = Text("seatrial top", style="bold cyan").append("  " + "  ".join(words), style="not bold default")
    text.truncate(width)
    return text


def _gpu(gpu: Mapping[str, Any], history: History | None, options: TopOptions, width: int) -> list[Text]:
    """Return two lines of a GPU: numbers, then utilisation and SM activity over time."""
    reasons = [_SHORT.get(reason, reason.replace("_", " ")) for reason in gpu["throttle_reasons"] or []]
    facts = [
        f"{_bytes(gpu['memory_used_bytes'])} of {_bytes(gpu['memory_total_bytes'])}",
        f"{_number(gpu['power_w'], '.0f')} W",
        f"{_number(gpu['temperature_c'], '.0f')} °C",
        f"{_number(gpu['sm_clock_mhz'], '.0f')} MHz",
    ]
    if gpu["xid"] is not None:
        reasons.append(f"Xid {gpu['xid']}")
    head = Text(f"{_gpu_name(gpu)} {gpu['name'].replace('NVIDIA ', '')}", style="bold").append(
        "  " + "  ".join(facts), style="not bold"
    )
    if reasons:
        head.append("  " + ", ".join(dict.fromkeys(reasons)), style="yellow")
    head.truncate(width)
    if history is None:
        busy = [f"{label} {_percent(gpu[key])}" for key, label in _BUSY]
        return [head, Text("      " + "  ".join(busy))]
    return [head, _graphs(gpu, history, options, width)]


#: Columns of a line of graphs that are not graphs: names, numbers, tensor and DRAM activity.
_NO_GRAPHS = len("  util  100%   SM  100%  T 100% D 100%")


def _graphs(gpu: Mapping[str, Any], history: History, options: TopOptions, width: int) -> Text:
    graph_width = max(4, (width - _NO_GRAPHS) // 2)
    line = Text("  util ").append(f"{_percent(gpu['utilization_pct']):>5} ", style="bold")
    graph = history.graph(gpu["uuid"], "utilization_pct", graph_width, unicode=options.unicode)
    line.append(graph, style="blue").append("  SM ").append(f"{_percent(gpu['sm_activity_pct']):>5} ", style="bold")
    graph = history.graph(gpu["uuid"], "sm_activity_pct", graph_width, unicode=options.unicode)
    line.append(graph, style="green")
    line.append(f" T {_percent(gpu['tensor_activity_pct']):>4} D {_percent(gpu['dram_activity_pct']):>4}", style="dim")
    line.truncate(width)
    return line


def _gpu_name(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['mig'] or gpu['index']}"


_BUSY = (
    ("utilization_pct", "utilisation"),
    ("sm_activity_pct", "SM activity"),
    ("tensor_activity_pct", "tensor"),
    ("dram_activity_pct", "DRAM"),
)


def _runs(runs: Sequence[Mapping[str, Any]], width: int) -> Table:
    table = _table(("RUN", "TARGET", "STEP", "BOUND BY"), width)
    for run in runs:
        numbers = "  ".join(
            f"{value:.4g} {words}" if "/s" in (words := in_words(key)) else f"{words} {value:.4g}"
            for key, value in run["numbers"].items()
        )
        step = "  ".join(filter(None, (run["progress"], numbers))) or "-"
        table.add_row(*map(_plain, (run["name"] or run["id"], run["target"], step, run["bound_by"] or "-")))
    return table


def _containers(rows: Sequence[Mapping[str, Any]], width: int) -> RenderableType:
    if not rows:
        return Text("no containers", style="dim")
    table = _table(("CONTAINER", "IMAGE", "CPU", "MEMORY", "/DEV/SHM", "GPU", "GPU MEM", "SHARE"), width)
    for row in rows:
        table.add_row(
            _plain(row["run_name"] or row["name"]),
            _plain(row["image"] or row["engine"]),
            _number(row["cpu_cores"], ".2f"),
            _bytes(row["memory_bytes"]),
            _bytes(row["shm_used_bytes"]),
            ",".join(map(str, row["gpus"])) or "-",
            _bytes(row["gpu_memory_bytes"]) if row["gpus"] else "-",
            _percent(row["gpu_share_pct"]) if row["gpus"] else "-",
        )
    return table


#: Columns of text and their share of the width; all others are as wide as their numbers.
_SHARES = {"RUN": 3, "TARGET": 3, "STEP": 5, "BOUND BY": 3, "CONTAINER": 1, "IMAGE": 1}


def _table(columns: Sequence[str], width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", width=width, padding=(0, 1, 0, 0))
    for name in columns:
        share = _SHARES.get(name)
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="left" if share else "right", ratio=share)
    return table


def _plain(words: str) -> Text:
    """Return a stranger's name as text without markup or escape sequences."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in words))


def _help_line(options: TopOptions) -> Text:
    if options.typing:
        return Text(f"filter: {options.filter}█  Enter keeps it, Esc clears it")
    chosen = f"  filter: {options.filter}" if options.filter else ""
    return Text(f"q quit  s sort ({options.sort})  / filter  + - interval ({options.interval_s:g} s){chosen}", "dim")


def _fits(options: TopOptions, *names: str | None) -> bool:
    return not options.filter or any(options.filter.lower() in name.lower() for name in names if name)


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(int(value))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


#: Readings kept: an hour at one a second would be more than any terminal is wide.
LENGTH = 512

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#@"

_GRAPHED = ("utilization_pct", "sm_activity_pct")


class History:
    """Last values of each (UUID, key), oldest first; None if a reading lacks the value."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], deque[float | None]] = {}

    def add(self, reading: Mapping[str, Any]) -> None:
        """Add the graphed values of each GPU in a reading."""
        for gpu in reading["gpus"]:
            for key in _GRAPHED:
                self._series(gpu["uuid"], key).append(gpu.get(key))

    def graph(self, uuid: str, key: str, width: int, *, unicode: bool) -> str:
        """Return the newest ``width`` percentages as bars of one line; the newest at the right."""
        bars = _BARS if unicode else _ASCII_BARS
        values = list(self._series(uuid, key))[-width:]
        cells = ["·" if unicode and value is None else _bar(value or 0.0, bars) for value in values]
        return "".join(cells).rjust(width)

    def _series(self, uuid: str, key: str) -> deque[float | None]:
        return self._values.setdefault((uuid, key), deque(maxlen=LENGTH))


def _bar(percent: float, bars: str) -> str:
    """Return the character that draws a percentage; any value above zero shows."""
    return bars[max(1, min(len(bars) - 1, round(percent / 100 * (len(bars) - 1))))] if percent > 0 else bars[0]
