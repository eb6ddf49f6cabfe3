"""``seatrial exporter``: readings served to Prometheus. Scrapes get the last reading; only the clock makes new ones."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from seatrial.system.address import cannot_listen
from seatrial.telemetry.metrics import CONTENT_TYPE, render
from seatrial.telemetry.reading import Read

Runs = Callable[[], Sequence[Mapping[str, Any]]]

_INDEX = b"<!doctype html><title>seatrial exporter</title><a href=/metrics>metrics</a>\n"

#: A client that sends nothing, or reads nothing, is cut off after this, so that it cannot hold a thread for ever.
_CLIENT_TIMEOUT_S = 10.0


class Exporter:
    """Reads once an interval in a thread of its own and keeps the text.

    Args:
        read: one reading. runs: the live runs.
    """

    def __init__(self, read: Read, runs: Runs, *, interval_s: float = 1.0) -> None:
        self._read, self._runs, self._interval_s = read, runs, interval_s
        self._hostname = socket.gethostname()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="readings", daemon=True)
        self.readings = 0
        self._renew()

    def start(self) -> None:
        """Begin to read once an interval."""
        self._thread.start()

    def stop(self) -> None:
        """End reading; a reading that hangs in NVML is not waited for."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    @property
    def text(self) -> tuple[bytes, bytes]:
        """The exposition, plain and gzipped."""
        return self._text

    def _go_on(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while not self._done.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._interval_s, time.monotonic())
            self._renew()

    def _renew(self) -> None:
        before = time.process_time()
        body = render(self._read(), self._runs(), self._hostname)
        self.readings += 1
        own = (
            "# HELP seatrial_exporter_readings_total Readings since the start.\n"
            "# TYPE seatrial_exporter_readings_total counter\n"
            f"seatrial_exporter_readings_total {self.readings}\n"
            "# HELP seatrial_exporter_reading_cpu_seconds CPU time of the last reading.\n"
            "# TYPE seatrial_exporter_reading_cpu_seconds gauge\n"
            f"seatrial_exporter_reading_cpu_seconds {time.process_time() - before:.6f}\n"
        )
        body += own.encode()
        self._text = (body, gzip.compress(body, 1))


class Server(ThreadingHTTPServer):
    """Serves an Exporter's text at /metrics.

    Raises:
        UsageError: the address cannot be bound; says what to run instead.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, exporter: Exporter) -> None:
        self.exporter = exporter
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise cannot_listen("exporter", host, port, error) from error


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _CLIENT_TIMEOUT_S
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms for the client's ACK

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            plain, zipped = cast(Server, self.server).exporter.text
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
        try:
            self.wfile.write(body)
        except OSError:  # the client has gone
            self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Scrapes are no news."""
