"""Rounds of rising concurrency from a few processes, and what each round gave."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from http_load.address import Address
from http_load.driving import Share, drive

#: Not counted, before each round: connections are accepted, and batches find their size.
WARM_S = 0.3
#: Between all processes being told and the first request.
LEAD_S = 0.15
#: Connections that one process can keep busy without being what is measured.
CONNECTIONS_A_PROCESS = 64
START_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Round:
    """One concurrency.

    Attributes:
        requests_per_s: answered with 2xx. p50_ms, p95_ms, p99_ms, most_ms: of those; 0 where there are none.
        refused: answers 429 and 503. failed: other answers that are not 2xx. broken: connections that ended early.
        client_cpu_us, server_cpu_us: CPU time for each answered request; the server's is None where it is not known.
    """

    concurrency: int
    requests_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    most_ms: float
    requests: int
    refused: int
    failed: int
    broken: int
    client_cpu_us: float
    server_cpu_us: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def levels(most: int) -> list[int]:
    """1, 2, 4 … and ``most``."""
    return [1 << bit for bit in range(most.bit_length()) if 1 << bit < most] + [most]


def measure(
    address: Address,
    requests: Sequence[bytes],
    concurrencies: Sequence[int],
    seconds: float,
    *,
    processes: int,
    server_cpu_s: Callable[[], float | None] = lambda: None,
) -> Iterator[Round]:
    """A round for each concurrency, in order. Raises OSError when the server cannot be reached at all."""
    with _workers(processes, address, requests) as links:
        for concurrency in concurrencies:
            used = links[: max(1, min(len(links), math.ceil(concurrency / CONNECTIONS_A_PROCESS)))]
            if concurrency > 1 and len(links) > 1:
                used = links[: min(len(links), concurrency)] if concurrency >= 16 else used
            begin_s = time.monotonic() + LEAD_S
            for place, link in enumerate(used):
                connections = concurrency // len(used) + (place < concurrency % len(used))
                link.send((connections, begin_s, WARM_S, seconds))
            time.sleep(max(0.0, begin_s + WARM_S - time.monotonic()))
            before_s = server_cpu_s()
            time.sleep(max(0.0, begin_s + WARM_S + seconds - time.monotonic()))
            after_s = server_cpu_s()
            shares = [_received(link) for link in used]
            yield _summed(concurrency, seconds, shares, before_s, after_s)


def _received(link: Connection) -> Share:
    if not link.poll(START_TIMEOUT_S):
        raise OSError("a process of the load generator did not answer")
    answer = link.recv()
    if isinstance(answer, OSError):
        raise answer
    assert isinstance(answer, Share)
    return answer


def _summed(
    concurrency: int, seconds: float, shares: Sequence[Share], before_s: float | None, after_s: float | None
) -> Round:
    latencies_s = sorted(latency for share in shares for latency in share.latencies_s)
    statuses: Counter[int] = Counter()
    for share in shares:
        statuses.update(share.statuses)
    count, answers = len(latencies_s), sum(statuses.values())
    refused = statuses[429] + statuses[503]

    def at(part: float) -> float:
        return latencies_s[min(count - 1, int(part * count))] * 1000 if count else 0.0

    known = before_s is not None and after_s is not None and answers
    return Round(
        concurrency,
        count / seconds,
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0),
        count,
        refused,
        answers - count - refused,
        sum(share.broken for share in shares),
        sum(share.cpu_s for share in shares) / max(1, answers) * 1e6,
        ((after_s or 0.0) - (before_s or 0.0)) / answers * 1e6 if known else None,
    )


@contextmanager
def _workers(count: int, address: Address, requests: Sequence[bytes]) -> Iterator[list[Connection]]:
    """Processes that wait for their part of a round; ended with the block, whatever happens in it."""
    context = multiprocessing.get_context("spawn")
    links, processes = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, address, list(requests)), daemon=True)
            process.start()
            theirs.close()
            links.append(ours)
            processes.append(process)
        for link in links:
            if not link.poll(START_TIMEOUT_S):
                raise OSError("a process of the load generator did not start")
            link.recv()
        yield links
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()


def _work(link: Connection, address: Address, requests: list[bytes]) -> None:
    link.send("started")
    while True:
        try:
            connections, begin_s, warm_s, seconds = link.recv()
        except EOFError:
            return
        try:
            link.send(drive(address, requests, connections, begin_s, warm_s, seconds))
        except OSError as error:
            link.send(error)
