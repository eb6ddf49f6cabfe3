"""Do exporter and dashboard keep their readings under load? Both as their commands run, at the same time.

    python benchmarks/telemetry_load.py [--seconds 30] [--scrapes 200] [--pages 50]

Scrapes come at an even rate over ten connections that stay open; pages hold a stream of server-sent events each. A
reading is due once a second; one is missed when the exporter's counter of readings, or the times in a page's stream,
skip a second. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from seatrial.probe import processes

CONNECTIONS = 10


def a_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


async def get(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open answer to a GET, headers read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def scrape(port: int, every_s: float, end_s: float, taken_ms: list[float], counts: list[float]) -> None:
    """One connection's scrapes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    due_s = time.monotonic()
    while time.monotonic() < end_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        due_s += every_s
        before_s = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        body = await reader.readexactly(length)
        taken_ms.append((time.perf_counter() - before_s) * 1e3)
        counts.append(float(body.split(b"\nseatrial_exporter_readings_total ")[1].split()[0]))
    writer.close()


async def look(port: int, end_s: float, times: list[float]) -> None:
    """One page's stream: the time of each reading."""
    reader, writer = await get(port, "/api/events")
    while time.monotonic() < end_s:
        try:
            line = await asyncio.wait_for(reader.readline(), 3)
        except asyncio.TimeoutError:
            continue
        if line.startswith(b"data: "):
            times.append(json.loads(line[6:])["t"])
    writer.close()


async def load(ports: dict[str, int], seconds: float, scrapes: int, pages: int) -> dict[str, Any]:
    end_s = time.monotonic() + seconds
    taken_ms: list[float] = []
    counts: list[float] = []
    times: list[list[float]] = [[] for _ in range(pages)]
    every_s = CONNECTIONS / scrapes
    tasks = [scrape(ports["exporter"], every_s, end_s, taken_ms, counts) for _ in range(CONNECTIONS)]
    await asyncio.gather(*tasks, *(look(ports["dashboard"], end_s, each) for each in times))
    gaps = [later - earlier for each in times for earlier, later in itertools.pairwise(each)]
    readings = max(counts) - min(counts)
    return {
        "seconds": seconds,
        "scrapes_per_s": round(len(taken_ms) / seconds, 1),
        "scrape_ms": {"median": round(median(taken_ms), 2), "p99": round(quantiles(taken_ms, n=100)[98], 2)},
        "exporter_readings": readings,
        "exporter_missed": max(0, round(seconds) - 1 - int(readings)),
        "pages": pages,
        "page_readings": {"fewest": min(map(len, times)), "most": max(map(len, times))},
        "page_gap_s": {"longest": round(max(gaps), 2)},
        "pages_missed": sum(round(gap) - 1 for gap in gaps if gap > 1.5),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--pages", type=int, default=50)
    options = parser.parse_args()
    ports = {"exporter": a_port(), "dashboard": a_port()}
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent / "src"))
    with tempfile.TemporaryDirectory() as folder:
        started = {
            verb: subprocess.Popen(
                [sys.executable, "-m", "seatrial", "dashboard", *flags, "--listen", f"127.0.0.1:{port}"],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for verb, port in ports.items()
            for flags in (["--metrics-only"] if verb == "exporter" else [],)
        }
        try:
            for verb, port in ports.items():
                while started[verb].poll() is None:
                    try:
                        socket.create_connection(("127.0.0.1", port), 1).close()
                        break
                    except OSError:
                        time.sleep(0.1)
            time.sleep(2.0)
            before = {verb: processes.read(process.pid) for verb, process in started.items()}
            began_s = time.monotonic()
            found = asyncio.run(load(ports, options.seconds, options.scrapes, options.pages))
            took_s = time.monotonic() - began_s
            for verb, process in started.items():
                now, earlier = processes.read(process.pid), before[verb]
                assert now is not None and earlier is not None, f"{verb} ended"
                found[f"{verb}_cpu_pct_of_a_core"] = round((now.cpu_seconds - earlier.cpu_seconds) / took_s * 100, 1)
                found[f"{verb}_rss_mb"] = round(now.rss_bytes / 1e6, 1)
            found["load_average"] = os.getloadavg()[0]
        finally:
            for process in started.values():
                process.terminate()
                process.wait(10)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
