"""The program's options, the same for every process of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TOKEN_VARIABLE = "SEATRIAL_SERVE_TOKEN"
#: Names of the server besides the machine's own, with commas: of a Kubernetes service, for example.
HOSTS_VARIABLE = "SEATRIAL_SERVE_HOSTS"
#: Lowest values.
_LOWEST = {"port": 0, "fronts": 1, "max_batch": 1, "queue": 1, "max_body": 1, "deadline_ms": 0}


class Options(NamedTuple):
    """The options that ``parse`` reads.

    ``queue``: rows that may wait, of all fronts. ``token``: required if set. ``hosts``: further names it answers to.
    """

    model: str
    name: str
    host: str
    port: int
    fronts: int
    max_batch: int | None
    deadline_ms: float
    queue: int
    max_body_bytes: int
    timeout_s: float
    token: str | None
    hosts: tuple[str, ...] = ()


def parse(argv: Sequence[str], token: str | None, hosts: str = "") -> Options:
    """Read the command line; exit with 2 for a wrong option."""
    parser = argparse.ArgumentParser(prog="seatrial.serve", description="Serve a model over HTTP.")
    parser.add_argument("--model", required=True, help="a recipe's name, or a model file")
    parser.add_argument("--name", help="in addresses: /v2/models/NAME; default: of the model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--fronts", type=int, help="HTTP processes; default: by the number of cores")
    parser.add_argument("--max-batch", type=int, help="default: the model's own")
    parser.add_argument(
        "--deadline-ms", type=float, default=2.0, help="the longest that a row waits for a fuller batch"
    )
    parser.add_argument("--queue", type=int, default=1024, help="rows that may wait; beyond them 429")
    parser.add_argument("--max-body", type=int, default=8 * 2**20, metavar="BYTES")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="for one request")
    given = vars(parser.parse_args(argv))
    for option, lowest in _LOWEST.items():
        if given[option] is not None and given[option] < lowest:
            parser.error(f"--{option.replace('_', '-')} must be at least {lowest}")
    if not 0 < given["timeout_s"] < float("inf"):
        parser.error("--timeout-s must be above 0")
    given["max_body_bytes"] = given.pop("max_body")
    given["name"] = given["name"] or Path(given["model"]).stem
    cores = len(os.sched_getaffinity(0))
    given["fronts"] = given["fronts"] or max(1, min(16, cores - 2))  # HTTP processes; the model has two cores
    return Options(**given, token=token or None, hosts=tuple(filter(None, hosts.split(","))))
