"""An API server that answers with constructed objects: clusters of odd versions, installations and rights."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from seatrial.system.host import Host

#: An answer that is a refusal.
FORBIDDEN, MISSING = 403, 404
_WORDS = {FORBIDDEN: "Forbidden", MISSING: "NotFound"}


@contextmanager
def cluster_api(folder: Path, answers: Mapping[str, Any]) -> Iterator[tuple[Any, list[str]]]:
    """Yield a ``Cluster`` whose API has these answers, and the requests that it receives."""
    from seatrial.backends.kubernetes.client import Cluster

    with api_server(folder, answers) as (kubeconfig, requested):
        yield Cluster(Host({"KUBECONFIG": str(kubeconfig)})), requested


@contextmanager
def api_server(folder: Path, answers: Mapping[str, Any]) -> Iterator[tuple[Path, list[str]]]:
    """Yield the path of a kubeconfig for a server with these answers, and the requests that it receives.

    Args:
        answers: path, or path and query, or ``METHOD path`` → object, or a status. Anything else is not found.
    """
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            whole = unquote(self.path).replace("/?", "?")
            path = urlsplit(whole).path.rstrip("/")
            self.rfile.read(int(self.headers.get("content-length") or 0))
            requested.append(f"{self.command} {path}")
            found = next((answers[key] for key in (whole, requested[-1], path) if key in answers), MISSING)
            status = found if isinstance(found, int) else 200
            words = {"kind": "Status", "code": status, "reason": _WORDS.get(status, ""), "message": f"{path}: {status}"}
            body = json.dumps(words if isinstance(found, int) else found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = do_PATCH = _answer

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "ada", "namespace": "team"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "ada", "user": {"token": "x"}}],
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield kubeconfig, requested
    finally:
        server.shutdown()
        server.server_close()


def version(minor: int) -> dict[str, Any]:
    """The answer of ``/version``."""
    return {"major": "1", "minor": f"{minor}+", "gitVersion": f"v1.{minor}.2-gke.100"}


def group(name: str, *versions: str) -> dict[str, Any]:
    """Discovery of a group of the API."""
    served = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"kind": "APIGroup", "name": name, "versions": served, "preferredVersion": served[0]}
