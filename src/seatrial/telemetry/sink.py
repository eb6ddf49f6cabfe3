"""Sinks: readings into a file, one row a GPU (CSV) or one line a reading (JSON Lines)."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from seatrial.errors import DiskError, UsageError
from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.system.files import in_the_way
from seatrial.system.typed_path import as_typed

#: Columns of CSV. A reading without GPUs is one row with the machine's columns.
COLUMNS = (
    "t", "index", "name", "mig", *GPU_SAMPLE_KEYS, "processes", "xid", "machine_cpu_cores", "machine_memory_used_bytes",
)  # fmt: skip


class Sink(Protocol):
    """Where readings go. ``write`` and ``close`` raise DiskError."""

    def write(self, reading: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_sink(path: Path) -> Sink:
    """By the file's suffix: .csv or .jsonl. An existing CSV or JSONL file is continued.

    Raises:
        UsageError: another suffix. DiskError: the file cannot be written.
    """
    kinds: dict[str, Callable[[Path], Sink]] = {".csv": _Csv, ".jsonl": _JsonLines}
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
    """Flat rows of a reading, with the keys of COLUMNS."""
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


class _JsonLines:
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
        with contextlib.suppress(OSError):  # what could not be written was told by write
            self._file.close()


class _Csv(_JsonLines):
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
