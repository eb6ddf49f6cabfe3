"""Servers of serve/ for tests: started as a user starts them, queried over real sockets, ended for sure."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from here import free_ports

HERE = Path(__file__).parent


class Server:
    """A running ``python -m seatrial.serve`` of the model of served_echo.py, or of another command.

    Attributes:
        address: (host, port).
    """

    def __init__(
        self, *arguments: str, wait: bool = True, command: list[str] | None = None, **environment: str
    ) -> None:
        command = command or [sys.executable, str(HERE / "served_echo.py"), "--model", "echo"]
        self.address = ("127.0.0.1", *free_ports())
        path = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}{os.pathsep}{HERE.parent / 'src'}"
        self.process = subprocess.Popen(
            [*command, "--port", str(self.address[1]), *arguments],
            env={**os.environ, "PYTHONPATH": path, "SEATRIAL_SERVE_TOKEN": "", **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if wait:
            assert self._ready.wait(120), self.output
            assert self.process.poll() is None, self.output

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=300, trust_env=False, **settings)

    def predict(self, *numbers: float, **settings: Any) -> httpx.Response:
        with self.client() as client:
            return client.post("/predict", json={"input": numbers}, **settings)

    def raw(self, data: bytes, seconds: float = 60.0, until: bytes | None = None) -> bytes:
        """Return the answer, until the server closes, or this has come, or for so long."""
        with self.connect() as sock:
            sock.sendall(data)
            return read_all(sock, seconds, until)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 120)

    def children(self) -> list[int]:
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        self.process.send_signal(number)
        return self.process.wait(120)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if re.match("serving .* on http://.* ready after", line):
                self._ready.set()
        self._ready.set()


def read_all(sock: socket.socket, seconds: float = 60.0, until: bytes | None = None) -> bytes:
    """Until the end of the stream or of the time, or until this has come."""
    end, data = time.monotonic() + seconds, b""
    while (left := end - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            more = sock.recv(65536)
        except TimeoutError:
            break
        except ConnectionResetError:
            return data
        if not more:
            break
        data += more
        if until is not None and until in data:
            break
    return data


def request(body: Any = None, path: str = "/predict", more: str = "") -> bytes:
    """A POST of JSON as bytes."""
    data = json.dumps({"input": [1, 2]} if body is None else body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Return True if the process has ended, or does within so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
