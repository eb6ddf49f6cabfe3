"""``/metrics``: the counts of all processes, and the GPUs, as Prometheus text.

The counts lie in common memory (counts.py), so that whichever front is scraped tells of all. The text is written
here, as in telemetry/exporter.py: prometheus-client would keep a second set of counts, and files for them where there
are several processes. Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from seatrial.serve.counts import PER_OCTAVE, Totals, upper_s
from seatrial.serve.gpu_reading import GpuReading

TYPE = "text/plain; version=0.0.4"

#: Histogram lines: batches up to these sizes.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Sample = tuple[str, dict[str, str], float]


def render(name: str, totals: Totals, *, ready: bool, gpus: Iterable[GpuReading] = ()) -> str:
    """The exposition."""
    model = {"model": name}
    lines: list[str] = []

    def family(metric: str, kind: str, help: str, samples: Iterable[Sample]) -> None:
        found = [
            f"seatrial_serve_{metric}{suffix}{_labels(model | more)} {_number(value)}"
            for suffix, more, value in samples
        ]
        if found:
            lines.append(f"# HELP seatrial_serve_{metric} {help}\n# TYPE seatrial_serve_{metric} {kind}")
            lines.extend(found)

    requests = [
        ("", {"kind": kind, "code": str(status or "other")}, count) for (kind, status), count in totals.requests.items()
    ]
    family("requests_total", "counter", "Requests answered.", requests)
    family(
        "latency_seconds",
        "histogram",
        "From a request's head to its answer; of those that reached the model.",
        _latency(totals),
    )
    family("batch_size", "histogram", "Rows of a batch.", _batches(totals))
    family("compute_seconds_total", "counter", "Time that the model computed.", [("", {}, totals.compute_s)])
    family("queue_rows", "gauge", "Rows that wait or are computed.", [("", {}, totals.in_flight)])
    family("queue_rows_peak", "gauge", "The most rows that waited at a time.", [("", {}, totals.queue_peak)])
    family(
        "abandoned_rows_total", "counter", "Rows not computed: nobody waited for them.", [("", {}, totals.abandoned)]
    )
    family("connections", "gauge", "Open connections.", [("", {}, totals.connections)])
    family("ready", "gauge", "1 when requests are answered.", [("", {}, float(ready))])
    readings = [({"gpu": gpu.uuid}, gpu) for gpu in gpus]
    family("gpu_utilization_percent", "gauge", "Share of time in which some kernel ran.",
           [("", label, gpu.utilization_pct) for label, gpu in readings])  # fmt: skip
    family("gpu_memory_used_bytes", "gauge", "Memory in use on the GPU.",
           [("", label, gpu.memory_used_bytes) for label, gpu in readings])  # fmt: skip
    return "\n".join(lines) + "\n"


def _latency(totals: Totals) -> Iterator[Sample]:
    """A line for each octave: bounds of the fine buckets, so that no request is in a wrong one."""
    below = 0
    for bucket, count in enumerate(totals.latencies):
        below += count
        if bucket % PER_OCTAVE == 0 or upper_s(bucket) == math.inf:
            yield "_bucket", {"le": _bound(upper_s(bucket))}, below
    yield "_sum", {}, totals.latency_sum_s
    yield "_count", {}, below


def _batches(totals: Totals) -> Iterator[Sample]:
    for size in _SIZES:
        yield "_bucket", {"le": str(size)}, sum(count for each, count in totals.batches.items() if each <= size)
    count = sum(totals.batches.values())
    yield "_bucket", {"le": "+Inf"}, count
    yield "_sum", {}, sum(size * times for size, times in totals.batches.items())
    yield "_count", {}, count


def _bound(value: float) -> str:
    return "+Inf" if value == math.inf else f"{value:.10g}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
