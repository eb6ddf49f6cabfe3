"""Rounds of load as one HTML file: latency over throughput, and the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from seatrial.load.rounds import Round
from seatrial.receipt.look.pages import render_page
from seatrial.receipt.model import Line, Plot
from seatrial.system.files import make_folder, write_atomically

HEAD = ("clients", "requests/s", "p50 ms", "p95 ms", "p99 ms", "refused", "errors", "client CPU µs")


def write(folder: Path, title: str, rounds: Sequence[Round]) -> Path:
    """index.html and results.json; the page's path. Raises DiskError."""
    make_folder(folder)
    results = [measured.as_dict() for measured in rounds]
    write_atomically(folder / "results.json", json.dumps(results, indent=1).encode())
    write_atomically(folder / "index.html", page(title, rounds).encode())
    return folder / "index.html"


def page(title: str, rounds: Sequence[Round]) -> str:
    """The page's text."""
    rows = [
        (
            str(each.concurrency),
            f"{each.requests_per_s:,.0f}",
            *(f"{ms:.2f}" for ms in (each.p50_ms, each.p95_ms, each.p99_ms)),
            str(each.refused),
            str(each.failed + each.broken),
            f"{each.client_cpu_us:.0f}",
        )
        for each in rounds
    ]
    return render_page("seatrial.reports", "load.html", title=title, head=HEAD, rows=rows, plots=_plots(rounds))


def _plots(rounds: Sequence[Round]) -> list[Plot]:
    answered = [each for each in rounds if each.requests]
    if not answered:
        return []
    latencies = (
        Line(name="p99", points=tuple((each.requests_per_s, each.p99_ms) for each in answered)),
        Line(name="p95", points=tuple((each.requests_per_s, each.p95_ms) for each in answered)),
        Line(name="p50", points=tuple((each.requests_per_s, each.p50_ms) for each in answered)),
    )
    return [Plot(id="latency", title="Latency over throughput", unit="ms", x="rate", lines=latencies)]
