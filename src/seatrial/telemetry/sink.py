"""Sinks: readings into a file, one row a GPU (CSV, Parquet) or one line a reading (JSON Lines)."""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from seatrial.errors import DiskError, UsageError
from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.system.files import in_the_way
from seatrial.system.typed_path import as_typed

#: Columns of CSV and Parquet. A reading without GPUs is one row with the machine's columns.
COLUMNS = (
    "t", "index", "name", "mig", *GPU_SAMPLE_KEYS, "processes", "xid", "machine_cpu_cores", "machine_memory_used_bytes",
)  # fmt: skip
_TEXTS = {"name", "mig", "uuid", "throttle_reasons"}

#: Rows that a Parquet file takes at once: a row group each would be larger than its data.
_ROWS = 600


class Sink(Protocol):
    """Where readings go. ``write`` and ``close`` raise DiskError."""

    def write(self, reading: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_sink(path: Path) -> Sink:
    """By the file's suffix: .csv, .jsonl or .parquet. An existing CSV or JSONL file is continued.

    Raises:
        UsageError: another suffix, or Parquet without pyarrow. DiskError: the file cannot be written.
    """
    kinds: dict[str, Callable[[Path], Sink]] = {".csv": _Csv, ".jsonl": _JsonLines, ".parquet": _Parquet}
    if path.suffix not in kinds:
        raise UsageError(
            f"{path.name}: a log file must end in .csv, .jsonl or .parquet",
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


class _Parquet:
    """Written aside and renamed at the end: half a Parquet file cannot be read at all."""

    def __init__(self, path: Path) -> None:
        try:
            self._arrow, self._parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow, which is not installed", run="pip install 'seatrial[parquet]'"
            ) from None
        self._path, self._aside = path, path.with_name(f".{path.name}.part")
        arrow = self._arrow
        types = {name: arrow.string() if name in _TEXTS else arrow.float64() for name in COLUMNS}
        self._schema = arrow.schema(list(types.items()))
        self._writer = self._parquet.ParquetWriter(self._aside, self._schema)
        self._pending: list[dict[str, Any]] = []

    def write(self, reading: Mapping[str, Any]) -> None:
        for row in rows(reading):
            self._pending.append({k: v if k in _TEXTS or v is None else float(v) for k, v in row.items()})
        if len(self._pending) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        try:
            self._writer.write_table(self._arrow.Table.from_pylist(self._pending, schema=self._schema))
        except OSError as error:
            raise _disk(self._path, error) from error
        self._pending = []

    def close(self) -> None:
        try:
            if self._pending:
                self._flush()
            self._writer.close()
            self._aside.replace(self._path)
        except OSError as error:
            raise _disk(self._path, error) from error


def _disk(path: Path, error: OSError) -> DiskError:
    reason = error.strerror or str(error)
    return DiskError(f"Cannot write {path}: {reason}", run=in_the_way(path.absolute().parent, error))
