"""The program's options, the same for every process of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

TOKEN_VARIABLE = "SEATRIAL_SERVE_TOKEN"


@dataclass(frozen=True)
class Options:
    """See ``parse``.

    Attributes:
        fronts: 0 is HTTP in the process that computes. queue: rows that may wait, of all fronts together.
        token: asked of every request when not None.
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


def parse(argv: Sequence[str], token: str | None) -> Options:
    """The command line; exits with 2 for what is no option."""
    parser = argparse.ArgumentParser(prog="seatrial.serve", description="Serve a model over HTTP.")
    parser.add_argument("--model", required=True, help="a recipe's name, a model file, or file.py:Class")
    parser.add_argument("--name", help="in addresses: /v2/models/NAME; default: of the model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--fronts", type=int, help="processes that talk HTTP; default: by the number of cores")
    parser.add_argument("--max-batch", type=int, help="default: the model's own")
    parser.add_argument("--deadline-ms", type=float, default=2.0, help="the longest that a row waits for company")
    parser.add_argument("--queue", type=int, default=1024, help="rows that may wait; beyond them 429")
    parser.add_argument("--max-body", type=int, default=8 * 2**20, metavar="BYTES")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="for one request")
    given = parser.parse_args(argv)
    for option, low in (
        ("port", 0),
        ("fronts", 0),
        ("max_batch", 1),
        ("queue", 1),
        ("max_body", 1),
        ("deadline_ms", 0),
    ):
        value = getattr(given, option)
        if value is not None and value < low:
            parser.error(f"--{option.replace('_', '-')} must be at least {low}")
    if not 0 < given.timeout_s < float("inf"):
        parser.error("--timeout-s must be above 0")
    return Options(
        model=given.model,
        name=given.name or _name(given.model),
        host=given.host,
        port=given.port,
        fronts=default_fronts(len(os.sched_getaffinity(0))) if given.fronts is None else given.fronts,
        max_batch=given.max_batch,
        deadline_ms=given.deadline_ms,
        queue=given.queue,
        max_body_bytes=given.max_body,
        timeout_s=given.timeout_s,
        token=token or None,
    )


def default_fronts(cores: int) -> int:
    """One core is the model's; the others are for HTTP."""
    return max(1, min(16, cores - 2))


def _name(model: str) -> str:
    """Of ``models/net.onnx`` net, of ``serve.py:Model`` Model."""
    last = model.rpartition(":")[2].rpartition("/")[2]
    return last.rpartition(".")[0] or last
