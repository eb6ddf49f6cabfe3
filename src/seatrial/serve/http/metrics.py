"""``/metrics``: the counts of all processes as Prometheus text.

The counts are in common memory (counters.py), so that every front gives those of all. prometheus-client would keep a
second set of counts, and files for them, with several processes.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from seatrial.serve.counters import PER_OCTAVE, CounterTotals, upper_s

TYPE = "text/plain; version=0.0.4"

#: Histogram lines: batches up to these sizes.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Sample = tuple[str, dict[str, str], float]


def render(name: str, totals: CounterTotals, *, ready: bool) -> str:
    """Return the exposition."""
    requests = [
        ("", {"kind": kind, "code": str(status or "other")}, count) for (kind, status), count in totals.requests.items()
    ]
    families: tuple[tuple[str, str, str, Iterable[Sample]], ...] = (
        ("requests_total", "counter", "Requests answered.", requests),
        ("latency_seconds", "histogram", "From a request's head to its answer; of those that reached the model.",
         _latency(totals)),
        ("batch_size", "histogram", "Rows of a batch.", _batches(totals)),
        ("compute_seconds_total", "counter", "Time that the model computed.", [("", {}, totals.compute_s)]),
        ("queue_rows", "gauge", "Rows that wait or are computed.", [("", {}, totals.in_flight)]),
        ("queue_rows_peak", "gauge", "The most rows that waited at a time.", [("", {}, totals.queue_peak)]),
        ("abandoned_rows_total", "counter", "Rows not computed: nobody waited for them.", [("", {}, totals.abandoned)]),
        ("connections", "gauge", "Open connections.", [("", {}, totals.connections)]),
        ("ready", "gauge", "1 when requests are answered.", [("", {}, float(ready))]),
    )  # fmt: skip
    lines: list[str] = []
    for metric, kind, help, samples in families:
        if not (found := list(samples)):
            continue
        full = f"seatrial_serve_{metric}"
        lines.append(f"# HELP {full} {help}\n# TYPE {full} {kind}")
        lines += [f"{full}{suffix}{_labels({'model': name, **more})} {_number(value)}" for suffix, more, value in found]
    return "\n".join(lines) + "\n"


def _latency(totals: CounterTotals) -> Iterator[Sample]:
    """Yield a line for each octave: bounds of the fine buckets, so that no request is in a wrong one."""
    below = 0
    for bucket, count in enumerate(totals.latencies):
        below += count
        if bucket % PER_OCTAVE == 0 or upper_s(bucket) == math.inf:
            bound = "+Inf" if upper_s(bucket) == math.inf else f"{upper_s(bucket):.10g}"
            yield "_bucket", {"le": bound}, below
    yield "_sum", {}, totals.latency_sum_s
    yield "_count", {}, below


def _batches(totals: CounterTotals) -> Iterator[Sample]:
    for size in _SIZES:
        yield "_bucket", {"le": str(size)}, sum(count for each, count in totals.batches.items() if each <= size)
    count = sum(totals.batches.values())
    yield "_bucket", {"le": "+Inf"}, count
    yield "_sum", {}, sum(size * times for size, times in totals.batches.items())
    yield "_count", {}, count


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _labels(labels: dict[str, str]) -> str:
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "{" + ",".join(f'{key}="{value.translate(escaped)}"' for key, value in labels.items()) + "}"
