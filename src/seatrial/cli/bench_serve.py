"""``seatrial bench serve``: load on a server of this machine, its throughput against its latency."""

from __future__ import annotations

import os
import time
from pathlib import Path

from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED, UsageError
from seatrial.load.address import Address, loopback
from seatrial.load.rounds import Round, levels, measure
from seatrial.load.samples import NoServerError, of_file, samples
from seatrial.load.table import HEAD, line
from seatrial.pipelines.find import find_run
from seatrial.reports.load_page import write
from seatrial.runs.nearest import store_of
from seatrial.runs.run import Run
from seatrial.runs.serving import serving_of
from seatrial.system.typed_path import from_here

TOKEN = "SEATRIAL_SERVE_TOKEN"
#: All rounds together take no longer than this.
MOST_SECONDS = 600.0


def bench_serve(where: str | None, *, clients: int, seconds: float, body: Path | None, project: Path | None) -> int:
    """Rounds of 1, 2, 4 … ``clients`` connections for ``seconds`` each; table, page and results.json."""
    if where is None:
        raise UsageError(
            "bench serve needs a run that serves, or an address", run="seatrial bench serve http://127.0.0.1:8000"
        )
    rounds = levels(clients)
    if seconds * len(rounds) > MOST_SECONDS:
        raise UsageError(
            f"{len(rounds)} rounds of {seconds:g} s are more than {MOST_SECONDS:.0f} s",
            run=f"seatrial bench serve {where} --seconds {MOST_SECONDS / len(rounds):.0f}",
        )
    store = store_of(project)
    address = loopback(where) if "://" in where or ":" in where else _of_run(find_run(store, where))
    token = os.environ.get(TOKEN, "")
    requests = of_file(address, body, token) if body else samples(address, token)
    processes = max(1, min(8, len(os.sched_getaffinity(0)) // 2))
    print(HEAD, flush=True)
    found: list[Round] = []
    try:
        for measured in measure(address, requests, rounds, seconds, processes=processes):
            found.append(measured)
            print(line(measured), flush=True)
    except OSError as error:
        raise NoServerError(f"{address} no longer answers: {error}", run="seatrial runs ls") from error
    except KeyboardInterrupt:
        if not found:
            raise
    folder = store.project / ".seatrial" / "load" / time.strftime("%Y%m%d-%H%M%S")
    page = write(folder, f"{where}: latency over throughput", found)
    print(f"The curve is in {from_here(page)}", flush=True)
    return EXIT_DONE if any(each.requests for each in found) else EXIT_TARGET_FAILED


def _of_run(run: Run) -> Address:
    """Where a run serves. Raises UsageError: it serves nothing, or no longer."""
    serving = serving_of(run)
    if serving is None:
        raise UsageError(f"Run {run.id} serves nothing", run="seatrial serve last")
    if run.ended:
        raise UsageError(f"Run {run.id} no longer serves: it has ended", run=f"seatrial serve {serving.typed}")
    return loopback(serving.url)
