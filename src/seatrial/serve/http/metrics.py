"""``/metrics``: the counts of all processes as Prometheus text."""

from __future__ import annotations

from seatrial.serve.counts import Totals

TYPE = "text/plain; version=0.0.4"


def render(name: str, totals: Totals, ready: bool) -> str:
    """The exposition."""
    return ""
