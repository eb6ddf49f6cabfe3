"""The exporter's HTTP server: /metrics for whoever may ask, and no client that stops it for others."""

from __future__ import annotations

import resource
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from seatrial.system.address import cannot_listen, is_loopback, names_this_machine
from seatrial.telemetry.exporter import Exporter
from seatrial.telemetry.metrics import CONTENT_TYPE

_INDEX = b"<!doctype html><title>seatrial metrics</title><a href=/metrics>metrics</a>\n"

#: A client that sends nothing, or reads nothing, is cut off after this, so that it cannot hold a thread for ever.
CLIENT_TIMEOUT_S = 10.0

#: Connections at a time. One more, and the oldest is closed: a scrape takes milliseconds, so the oldest is no scrape.
MOST_CLIENTS = 64


class Server(ThreadingHTTPServer):
    """Serves an Exporter's text at /metrics.

    On the loopback address the Host header must be a loopback name, as for the dashboard. Elsewhere Prometheus asks by
    any name, and whoever reaches the address may read.

    Raises:
        UsageError: the address cannot be bound; says what to run instead.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, exporter: Exporter) -> None:
        self.exporter = exporter
        self.local_only = is_loopback(host)
        self._open: dict[socket.socket, None] = {}  # in the order in which they came
        self._lock = threading.Lock()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(4, min(MOST_CLIENTS, descriptors // 4))
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise cannot_listen("dashboard --metrics-only", host, port, error) from error

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection. Without a free descriptor there is none for a moment, instead of a loop that burns a core."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.05)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, and close the oldest connection where there are too many."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > self._most else None
            if oldest is not None:
                del self._open[oldest]
                _hang_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news; anything else is a line, and never a traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            sys.stderr.write(f"seatrial metrics: a request failed: {type(error).__name__}: {error}\n")


def _hang_up(connection: socket.socket) -> None:
    """Its thread, which waits for it, goes on and closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has gone by itself
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "seatrial"
    sys_version = ""
    timeout = CLIENT_TIMEOUT_S
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms for the client's ACK

    def do_GET(self) -> None:
        server = cast(Server, self.server)
        if server.local_only and not names_this_machine(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.FORBIDDEN, "This page is served to localhost and 127.0.0.1 only")
            return
        path = self.path.partition("?")[0]
        if path == "/metrics":
            plain, zipped = server.exporter.text
            gzipped = "gzip" in self.headers.get("Accept-Encoding", "")
            self._answer(CONTENT_TYPE, zipped if gzipped else plain, gzipped=gzipped)
        elif path == "/":
            self._answer("text/html; charset=utf-8", _INDEX)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, content_type: str, body: bytes, *, gzipped: bool = False) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Scrapes are no news."""
