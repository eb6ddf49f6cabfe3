"""Run ``seatrial top``: its loop, and its screen of GPUs, runs and containers as plain text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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


def once(read: Read, runs: Runs, console: Console, sink: ReadingLog | None, *, as_json: bool) -> None:
    """Print one reading as a plain screen or as JSON, and write it into the sink."""
    read()
    time.sleep(WARM_UP_S)
    reading = read()
    if sink is not None:
        sink.write(reading)
    if as_json:
        console.out(json.dumps({**reading, "runs": list(runs())}, indent=1), highlight=False)
        return
    console.print(render(reading, runs(), console.width))


def watch(read: Read, runs: Runs, console: Console | None, sink: ReadingLog | None, interval_s: float) -> None:
    """Show readings on the console, if any, and write them into a file, until interrupted. Raises DiskError."""
    with Live(console=console, screen=True, auto_refresh=False) if console else nullcontext() as live:
        reading, due_s = read(), time.monotonic() + min(interval_s, WARM_UP_S)
        while True:
            if console is not None and live is not None:
                live.update(render(reading, runs(), console.width), refresh=True)
            time.sleep(max(0.0, due_s - time.monotonic()))
            reading = read()
            if sink is not None:
                sink.write(reading)
            due_s = max(due_s + interval_s, time.monotonic())


# ---------------------------------------------------------------------------------------------------- the screen

#: Throttle reasons in a word each, for a narrow column.
_SHORT = {
    "sw_power_cap": "power cap",
    "hw_slowdown": "HW slow",
    "sw_thermal_slowdown": "hot",
    "hw_thermal_slowdown": "hot",
    "hw_power_brake_slowdown": "power brake",
}


def render(reading: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], width: int) -> RenderableType:
    """Return the screen; a terminal cuts the lines below its height."""
    parts: list[RenderableType] = [_title(reading, width)]
    parts += [Text(problem, style="yellow", overflow="fold") for problem in reading["problems"]]
    parts += [part for gpu in reading["gpus"] for part in _gpu(gpu, width)]
    if runs:
        parts += [Text(), _runs(runs, width)]
    return Group(*parts, Text(), _containers(reading["containers"], width))


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


def _gpu(gpu: Mapping[str, Any], width: int) -> list[Text]:
    """Return two lines of a GPU: its numbers, then its utilisation."""
    reasons = [_SHORT.get(reason, reason.replace("_", " ")) for reason in gpu["throttle_reasons"] or []]
    facts = [
        f"{_bytes(gpu['memory_used_bytes'])} of {_bytes(gpu['memory_total_bytes'])}",
        f"{_number(gpu['power_w'], '.0f')} W",
        f"{_number(gpu['temperature_c'], '.0f')} °C",
        f"{_number(gpu['sm_clock_mhz'], '.0f')} MHz",
    ]
    if gpu["xid"] is not None:
        reasons.append(f"Xid {gpu['xid']}")
    name = f"GPU {gpu['mig'] or gpu['index']} {gpu['name'].replace('NVIDIA ', '')}"
    head = Text(name, style="bold").append("  " + "  ".join(facts), style="not bold")
    if reasons:
        head.append("  " + ", ".join(dict.fromkeys(reasons)), style="yellow")
    head.truncate(width)
    return [head, Text("      " + "  ".join(f"{label} {_percent(gpu[key])}" for key, label in _BUSY))]


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
        names = _plain(row["run_name"] or row["name"]), _plain(row["image"] or row["engine"])
        host = _number(row["cpu_cores"], ".2f"), _bytes(row["memory_bytes"]), _bytes(row["shm_used_bytes"])
        gpus = ",".join(map(str, row["gpus"])), _bytes(row["gpu_memory_bytes"]), _percent(row["gpu_share_pct"])
        table.add_row(*names, *host, *(gpus if row["gpus"] else ["-"] * len(gpus)))
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


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"
