"""``seatrial top``: the loop of the terminal view, one plain screen, its keyboard, and log files."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from seatrial.errors import DiskError, UsageError
from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.monitor.reading import Read
from seatrial.monitor.top_screen import SORTS, History, TopOptions, render
from seatrial.system.files import in_the_way
from seatrial.system.text import as_typed

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
def keys() -> Iterator[Keyboard]:
    """Yield a keyboard; without a terminal on stdin, one that nobody types on."""
    if not sys.stdin.isatty():
        yield Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Keyboard:
    """Keys as they come. An escape sequence (an arrow) is one key."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> str | None:
        """Return the next key, or None after so many seconds. Raises EOFError when the terminal has gone."""
        readable = [] if self._descriptor is None else [self._descriptor]
        ready, _, _ = select.select(readable, [], [], max(0.0, seconds))
        if not ready or self._descriptor is None:
            return None
        data = os.read(self._descriptor, 64)
        if not data:
            raise EOFError
        return data.decode("utf-8", "replace")


#: Columns of CSV. A reading without GPUs is one row with the machine's columns.
COLUMNS = (
    "t", "index", "name", "mig", *GPU_SAMPLE_KEYS, "processes", "xid", "machine_cpu_cores", "machine_memory_used_bytes",
)  # fmt: skip


def open_sink(path: Path) -> ReadingLog:
    """Open a file by its suffix: .csv or .jsonl. An existing one is continued.

    Raises:
        UsageError: another suffix. DiskError: the file cannot be written.
    """
    kinds = {".csv": CsvLog, ".jsonl": ReadingLog}
    if path.suffix not in kinds:
        raise UsageError(
            f"{path.name}: a log file must end in .csv or .jsonl",
            run=f"seatrial top --log {as_typed(path.with_suffix('.csv'))}",
        )
    try:
        return kinds[path.suffix](path)
    except OSError as error:
        raise _disk(path, error) from error


def rows(reading: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield flat rows of a reading, with the keys of COLUMNS."""
    machine = {
        "t": round(reading["t"], 3),
        "machine_cpu_cores": reading["machine"]["cpu_cores"],
        "machine_memory_used_bytes": reading["machine"]["memory_used_bytes"],
    }
    for gpu in reading["gpus"] or [{"processes": []}]:
        row = {**dict.fromkeys(COLUMNS), **machine, **{key: gpu.get(key) for key in COLUMNS if key in gpu}}
        row["processes"] = len(gpu["processes"])
        row["throttle_reasons"] = " ".join(gpu.get("throttle_reasons") or [])
        yield row


class ReadingLog:
    """A file of readings as JSON lines. ``write`` raises DiskError."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, path.open("a", newline="", encoding="utf-8")

    def write(self, reading: Mapping[str, Any]) -> None:
        try:
            self._put(reading)
            self._file.flush()
        except OSError as error:
            raise _disk(self._path, error) from error

    def _put(self, reading: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(reading, separators=(",", ":")) + "\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # write has reported the error
            self._file.close()


class CsvLog(ReadingLog):
    """A file of readings as CSV, a row for each GPU."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._writer = csv.DictWriter(self._file, COLUMNS)
        if self._file.tell() == 0:
            self._writer.writeheader()

    def _put(self, reading: Mapping[str, Any]) -> None:
        self._writer.writerows(rows(reading))


def _disk(path: Path, error: OSError) -> DiskError:
    reason = error.strerror or str(error)
    return DiskError(f"Cannot write {path}: {reason}", run=in_the_way(path.absolute().parent, error))
