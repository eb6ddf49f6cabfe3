"""What a tracker's container is told, by its environment."""

from __future__ import annotations

import os

from .guard import App, Guard

#: SHA-256 of the token. Without one nothing matches, and nobody gets in.
DIGEST = os.environ.get("SEATRIAL_TOKEN_SHA256", "")

#: HOST:PORT to listen on inside, and the names (without and with ports) under which browsers and runs come.
LISTEN = os.environ.get("SEATRIAL_LISTEN", "127.0.0.1:8000")
HOSTS = tuple(os.environ.get("SEATRIAL_HOSTS", "localhost,127.0.0.1").split(","))


def serve(app: App, name: str) -> None:
    """Behind the guard, until SIGTERM. The access log would keep tokens."""
    import uvicorn

    host, _, port = LISTEN.rpartition(":")
    guarded = Guard(app, DIGEST, name)
    uvicorn.run(guarded, host=host, port=int(port), access_log=False, log_level="warning", timeout_graceful_shutdown=1)
