"""Rounds as a table of plain text."""

from __future__ import annotations

from http_load.rounds import Round

HEAD = (
    f"{'clients':>7} {'requests/s':>11} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'refused':>8} {'errors':>7} "
    f"{'CPU µs':>12}"
)


def line(measured: Round) -> str:
    """One round; CPU is the client's and the server's for each request."""
    server = "" if measured.server_cpu_us is None else f" + {measured.server_cpu_us:.0f}"
    return (
        f"{measured.concurrency:7} {measured.requests_per_s:11,.0f} {measured.p50_ms:8.2f} {measured.p95_ms:8.2f} "
        f"{measured.p99_ms:8.2f} {measured.refused:8} {measured.failed + measured.broken:7} "
        f"{f'{measured.client_cpu_us:.0f}{server}':>12}"
    )
