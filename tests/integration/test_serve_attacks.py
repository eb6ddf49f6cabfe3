"""Requests made to keep a server busy: health answers meanwhile, and each is refused or read within limits."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "PIL"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from PIL import Image  # noqa: E402

from pace import slowness  # noqa: E402
from served import Server  # noqa: E402

pytestmark = pytest.mark.xdist_group("serve")

#: Of the answers of /v2/health/live, 99 of 100 come within this, in seconds.
HEALTH_S = 0.1


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--name", "net", "--fronts", "1", ECHO_KIND="pictures") as server:
        yield server


def png(size: int) -> bytes:
    """A white square, which compresses to a thousandth."""
    file = io.BytesIO()
    Image.new("L", (size, size), 255).save(file, "PNG", compress_level=9)
    return file.getvalue()


def many_images(count: int, size: int) -> bytes:
    return json.dumps({"inputs": [base64.b64encode(png(size)).decode()] * count}).encode()


def with_chunks(kind: bytes, data: bytes, count: int) -> bytes:
    """A small PNG with chunks that decompress to a megabyte each."""
    chunk = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    whole = png(28)
    return whole[:33] + chunk * count + whole[33:]


def text_bomb() -> bytes:
    return with_chunks(b"zTXt", b"key\0\0" + zlib.compress(b"a" * (1 << 20), 9), 60)


def frames() -> bytes:
    """A GIF of 100,000 frames."""
    file = io.BytesIO()
    one = [Image.new("L", (1, 1), level) for level in (0, 255)]
    one[0].save(file, "GIF", save_all=True, append_images=one[1:], duration=10)
    whole = file.getvalue()
    frame = whole[whole.index(b"\x21\xf9", whole.index(b"\x21\xf9") + 1) : -1]
    return whole[:-1] + frame * (3_000_000 // len(frame)) + b";"


def boundaries() -> bytes:
    """A form whose file almost ends with every line."""
    return (
        b'--b\r\ncontent-disposition: form-data; name="f"; filename="f"\r\n\r\n' + b"\r\n-" * 2_500_000 + b"\r\n--b--"
    )


def numbers(body: str) -> bytes:
    return (body * (8_000_000 // len(body)))[:-1].join(('{"inputs": [[', "]]}")).encode()


def tensor() -> bytes:
    data = ",".join(["1.5"] * 1_900_000)
    shape = '"name": "image", "datatype": "UINT8", "shape": [2400, 28, 28]'
    return f'{{"inputs": [{{{shape}, "data": [{data}]}}]}}'.encode()


JSON, FORM, IMAGE = "application/json", "multipart/form-data; boundary=b", "image/png"
INFER = "/v2/models/net/infer"
ATTACKS: dict[str, tuple[Callable[[], bytes], str, str, tuple[int, ...]]] = {
    "250 images of 4096²": (lambda: many_images(250, 4096), JSON, "/predict", (413,)),
    "4 images of 4096²": (lambda: many_images(4, 4096), JSON, "/predict", (200,)),
    "an image of 20000²": (lambda: png(20_000), IMAGE, "/predict", (413,)),
    "texts that decompress": (text_bomb, IMAGE, "/predict", (200, 400)),
    "100,000 frames": (frames, IMAGE, "/predict", (400,)),
    "almost a form's ends": (boundaries, FORM, "/predict", (400,)),
    "8 MB of whole numbers": (lambda: numbers("1,"), JSON, "/predict", (400,)),
    "8 MB of lists": (lambda: numbers("[],"), JSON, "/predict", (400,)),
    "8 MB with NaN": (lambda: numbers("1,")[:-3] + b",NaN]]}", JSON, "/predict", (400,)),
    "a tensor of 8 MB": (tensor, JSON, INFER, (400,)),
    "1,000 small images": (lambda: many_images(1000, 28), JSON, "/predict", (413,)),
    "200 small images": (lambda: many_images(200, 28), JSON, "/predict", (200,)),
}


@contextlib.contextmanager
def health(server: Server) -> Iterator[list[float]]:
    """Asks for health every 5 ms, of a connection of its own; the seconds of each answer."""
    took: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        with server.client() as client:
            while not ended.is_set():
                began_s = time.perf_counter()
                assert client.get("/v2/health/live").status_code == 200
                took.append(time.perf_counter() - began_s)
                time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()


def attack(server: Server, body: bytes, kind: str, path: str) -> tuple[list[httpx.Response], float]:
    """The answers, and health's 99th percentile meanwhile."""
    answers: list[httpx.Response] = []
    with health(server) as took, server.client() as client:
        end_s = time.monotonic() + 1.5
        while not answers or time.monotonic() < end_s:
            answers.append(client.post(path, content=body, headers={"content-type": kind}, timeout=300))
    p99_s = sorted(took)[int(len(took) * 0.99)]
    print(
        f"{len(body):,} bytes, {len(answers)} × {answers[0].status_code}, health p99 {p99_s:.4f} s, max {max(took):.4f}"
    )
    return answers, p99_s


@pytest.mark.parametrize("name", ATTACKS)
def test_health_answers_during_a_request_that_is_long_to_read(server: Server, name: str) -> None:
    make, kind, path, statuses = ATTACKS[name]
    body = make()
    for _ in range(3):
        answers, p99_s = attack(server, body, kind, path)
        assert {answer.status_code for answer in answers} <= set(statuses), answers[0].text
        if p99_s < HEALTH_S * slowness(time.monotonic):
            break
    else:
        pytest.fail(f"{name}: health took {p99_s:.3f} s at the 99th percentile")


def test_small_requests_are_answered_during_a_flood_of_files(server: Server) -> None:
    """Eight clients that send an image of 4096² again and again, and one that sends numbers."""
    body = many_images(1, 4096)
    ended = threading.Event()
    statuses: set[int] = set()

    def flood() -> None:
        with server.client() as client:
            while not ended.is_set():
                answer = client.post("/predict", content=body, headers={"content-type": JSON}, timeout=300)
                statuses.add(answer.status_code)

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        with server.client() as client:
            took = []
            for _ in range(100):
                began_s = time.perf_counter()
                assert client.post("/predict", json={"input": [[0] * 28] * 28}).status_code == 200
                took.append(time.perf_counter() - began_s)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert statuses <= {200, 504}
    assert sorted(took)[90] < HEALTH_S * slowness(time.monotonic)
