"""Clients that attack ``serve`` from a process of their own: during each a good client is answered, and health, too."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import multiprocessing
import os
import resource
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "PIL"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from PIL import Image  # noqa: E402

from pace import slowness  # noqa: E402
from served import Server  # noqa: E402

pytestmark = pytest.mark.xdist_group("serve")

#: Of a good client's answers, 99 of 100 come within this, in seconds.
GOOD_S = 0.1
#: Connections of the attacks that hold many.
MANY = 1500
#: Seconds of one attack.
LASTS_S = 3.0

PICTURE = {"input": [[0] * 28] * 28}
HEAD = b"POST /predict HTTP/1.1\r\nhost: localhost\r\n"
JSON = b"content-type: application/json\r\n"

Connect = Callable[[], socket.socket]
Attack = Callable[[Connect], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--name", "net", "--fronts", "1", ECHO_KIND="pictures") as server:
        yield server


def post(body: bytes, kind: bytes = b"application/json", path: bytes = b"/predict") -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: %s\r\n" % (path, kind)
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def held(connect: Connect, first: bytes, then: bytes = b"") -> None:
    """MANY connections that send the beginning of a request, and another byte now and then."""
    held = []
    for _ in range(MANY):
        with contextlib.suppress(OSError):
            held.append(connect())
            held[-1].sendall(first)
    while True:
        for each in held:
            with contextlib.suppress(OSError):
                each.sendall(then)
        time.sleep(0.5)


def again_and_again(*requests: bytes, clients: int = 4, reads: bool = True) -> Attack:
    """Clients that each send these on a new connection, read what comes or nothing, and begin again."""

    def one(connect: Connect) -> None:
        while True:
            for request in requests:
                with contextlib.suppress(OSError), connect() as sock:
                    sock.settimeout(5)
                    sender = threading.Thread(target=send, args=(sock, request))
                    sender.start()
                    while reads and sock.recv(65536):
                        pass
                    sender.join(1)
                    time.sleep(0.01)

    def send(sock: socket.socket, request: bytes) -> None:
        with contextlib.suppress(OSError):
            sock.sendall(request)
            if reads:
                sock.shutdown(socket.SHUT_WR)

    def attack(connect: Connect) -> None:
        for _ in range(clients):
            threading.Thread(target=one, args=(connect,), daemon=True).start()
        signal.pause()

    return attack


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header promises this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def jpeg(side: int) -> bytes:
    """A JPEG whose header promises this size."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    whole = bytearray(file.getvalue())
    at = whole.index(b"\xff\xc0") + 5
    whole[at : at + 4] = struct.pack(">HH", side, side)
    return bytes(whole)


def npy(elements: int) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def tensor(shape: Any, data: Any = (), name: str = "image", kind: str = "UINT8") -> bytes:
    body = {"inputs": [{"name": name, "datatype": kind, "shape": shape, "data": list(data)}]}
    return post(json.dumps(body).encode(), path=b"/v2/models/net/infer")


def keys(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":0' % number for number in range(count)) + b"}"


def chunked(data: bytes, size: int = 1, extension: bytes = b"") -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return HEAD + JSON + b"transfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


SMALL = post(json.dumps(PICTURE).encode())
FORM = b"multipart/form-data; boundary=b"
PART = b'--b\r\ncontent-disposition: form-data; name="f"; filename="f"\r\n\r\n'

ATTACKS: dict[str, Attack] = {
    "1,500 silent connections": lambda connect: held(connect, b""),
    "1,500 heads that trickle": lambda connect: held(connect, HEAD, b"a: b\r\n"),
    "1,500 bodies that trickle": lambda connect: held(connect, HEAD + JSON + b"content-length: 900\r\n\r\n", b" "),
    "1,500 that wait for 100": lambda connect: held(
        connect, HEAD + JSON + b"expect: 100-continue\r\ncontent-length: 8000000\r\n\r\n"
    ),
    "connections that close at once": again_and_again(b"", b"G", HEAD, clients=8),
    "a PNG of 10^10 pixels": again_and_again(post(png(100_000, 100_000, zlib.compress(bytes(1 << 20))), b"image/png")),
    "a PNG of 2^62 pixels": again_and_again(post(png(2**31 - 1, 2**31 - 1), b"image/png")),
    "a JPEG of 65,500²": again_and_again(post(jpeg(65_500), b"image/jpeg")),
    "a gzipped gigabyte": again_and_again(
        HEAD + JSON + b"content-encoding: gzip\r\n" + post(gzip.compress(bytes(50 << 20), 9)).split(b"json\r\n", 1)[1]
    ),
    "an array of 10^10 numbers": again_and_again(
        post(npy(10**10), b"application/x-npy"), post(npy(10**10), b"application/octet-stream"),
        tensor([10**10, 28, 28]), tensor([2**31 - 1, 28, 28]), tensor([0, 28, 28]),
    ),
    "tensors of wrong shapes": again_and_again(
        tensor([1, 28, 27], [0] * 756), tensor([-1, 28, 28]), tensor([]), tensor([1] * 5000), tensor([True, 28, 28]),
        tensor([1, 28, 28], [0] * 783), tensor([1, 28, 28], [[0] * 784]), tensor(["١", 28, 28]), tensor({}, kind="٣"),
        tensor([1, 28, 28], [1e308] * 784), tensor([1, 28, 28], [10**400] * 784),
    ),
    "deep JSON": again_and_again(
        post(b"[" * 60_000), post(b'{"input":' * 6000), post(b"[" * 4_000_000), post(b"[" * 30_000 + b"]" * 30_000)
    ),
    "JSON of 10^6 keys": again_and_again(post(keys(700_000)), post(b'{"inputs":[%s]}' % keys(600_000))),
    "forms": again_and_again(
        post(PART + b"x" * 8_000_000, FORM), post(PART * 100_000, FORM), post(b"--b\r\n" * 1_000_000, FORM),
        post(b"--b\r\n" + b"a: b\r\n" * 1_000_000, FORM), post(PART, b"multipart/form-data; boundary=" + b"b" * 9000),
    ),
    "bodies beyond the limit": again_and_again(
        post(b" " * 9_000_000), HEAD + JSON + b"content-length: 99999999999\r\n\r\n"
    ),
    "many small requests": again_and_again(SMALL * 50, clients=4),
    "pipelined requests": again_and_again(SMALL * 5000, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 100_000, clients=2),
    "pipelined requests, unread": again_and_again(SMALL * 5000, reads=False),
    "half-closed connections": again_and_again(SMALL, SMALL[:-10], HEAD, clients=8),
    "wrong lengths": again_and_again(
        *(HEAD + JSON + b"content-length: " + each + b"\r\n\r\n{}" for each in
          (b"9", b"1", b"-1", b"+2", b"0x2", "٢".encode(), b"2\r\ncontent-length: 3", b"1" * 4000, b"2, 2", b""))
    ),
    "chunks": again_and_again(
        chunked(SMALL, extension=b";a=" + b"b" * 1000), chunked(b" " * 400_000),
        HEAD + JSON + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200_000,
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ),
    "heads": again_and_again(
        HEAD + b"a: b\r\n" * 10_000 + b"\r\n", HEAD + b"cookie: " + b"a=b; " * 12_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x" * 8_000_000,
        HEAD + b"x-\xff\xfe: \x00\r\n\r\n",
    ),
    "other protocols": again_and_again(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(1000), b"\x16\x03\x01" * 3000, b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", os.urandom(60_000),
    ),
    "pages": again_and_again(
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20,
        b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20,
        b"GET /static/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20,
    ),
}  # fmt: skip


@contextlib.contextmanager
def attacked(server: Server, attack: Attack) -> Iterator[None]:
    """Start a process that may open many connections."""

    def begin() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        attack(server.connect)

    process = multiprocessing.get_context("fork").Process(target=begin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def good_client(server: Server, lasts_s: float) -> dict[str, list[float]]:
    """Seconds of each answer of a small request, and of health."""
    took: dict[str, list[float]] = {"/predict": [], "/v2/health/live": []}
    end_s = time.monotonic() + lasts_s
    with server.client() as client:
        while time.monotonic() < end_s or len(took["/predict"]) < 100:
            for path, seconds in took.items():
                began_s = time.perf_counter()
                answer = client.post(path, json=PICTURE) if path == "/predict" else client.get(path)
                assert answer.status_code == 200, answer.text
                seconds.append(time.perf_counter() - began_s)
            time.sleep(0.005)
    return took


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_good_client_and_health_are_answered_next_to_it(server: Server, name: str) -> None:
    for _ in range(3):
        with attacked(server, ATTACKS[name]):
            took = good_client(server, LASTS_S)
        slow = {path: p99(seconds) for path, seconds in took.items()}
        print(f"{name}:", {path: f"{1000 * each:.0f} ms" for path, each in slow.items()}, len(took["/predict"]))
        if max(slow.values()) < GOOD_S * slowness(time.monotonic):
            break
    else:
        pytest.fail(f"{name}: {slow}")
    with httpx.Client(base_url=server.url, trust_env=False) as fresh:
        assert fresh.post("/predict", json=PICTURE, timeout=5).status_code == 200
    assert server.process.poll() is None and "Traceback" not in server.output
