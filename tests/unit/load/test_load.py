"""Load on a real server of the standard library, and what is refused."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from seatrial.errors import UsageError
from seatrial.load.address import Address, loopback
from seatrial.load.driving import drive
from seatrial.load.rounds import Round, levels, measure
from seatrial.load.samples import NoServerError, samples
from seatrial.load.table import HEAD, line
from seatrial.load.wire import answered, request
from seatrial.reports.load_page import write


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = 0

    def do_GET(self):
        inputs = [{"name": "image", "datatype": "UINT8", "shape": [-1, 4, 4]}]
        found = {
            "/metrics": b'seatrial_serve_ready{model="toy"} 1\n',
            "/v2/models/toy": json.dumps({"inputs": inputs}).encode(),
        }
        self._answer(200, found[self.path])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Handler.seen += 1
        if Handler.seen % 10 == 0:  # leaves in the middle
            self.close_connection = True
            return
        self._answer(429 if Handler.seen % 5 == 0 else 200, json.dumps({"rows": len(body["input"])}).encode())

    def _answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield Address("127.0.0.1", made.server_address[1])
    made.shutdown()
    made.server_close()
    thread.join()


def test_answers_refusals_and_broken_connections_are_counted_apart(server):
    requests = samples(server)
    assert len({*requests}) > 1
    share = drive(server, requests, 4, 0.0, 0.0, 0.0)
    assert not share.latencies_s
    (found,) = measure(server, requests, [4], 0.4, processes=1)
    assert found.requests and found.refused and found.broken
    assert not found.failed
    assert 0 < found.p50_ms <= found.p95_ms <= found.p99_ms <= found.most_ms
    assert found.client_cpu_us > 0


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1:80",
        "http://0.0.0.0:80",
        "https://127.0.0.1",
        "ftp://localhost",
        "http://",
        "http://a:b",
        "http://[::1",
    ],
)
def test_only_loopback_is_loaded(url):
    with pytest.raises(UsageError) as caught:
        loopback(url)
    assert caught.value.run


@pytest.mark.parametrize("url", ["http://localhost:8000", "127.0.0.1:8000", "http://127.1.2.3:8000/x"])
def test_loopback_in_every_spelling(url):
    assert loopback(url).port == 8000


def test_nobody_there():
    with pytest.raises(NoServerError):
        samples(Address("127.0.0.1", 1))
    with pytest.raises(ConnectionRefusedError):
        list(measure(Address("127.0.0.1", 1), [b"x"], [1], 0.1, processes=1))


def test_answers_are_read_however_they_are_cut():
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nserver: x\r\n\r\nok"
    assert answered(whole) == (200, len(whole))
    assert answered(whole.lower().replace(b"http", b"HTTP")) == (200, len(whole))
    for cut in range(len(whole) - 6):
        assert answered(whole[:cut]) is None
    for wrong in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"):
        with pytest.raises(ValueError, match=r"."):
            answered(wrong)
    assert request(Address("::1", 5), "POST", "/p", b"{}", token="t").endswith(b"\r\n\r\n{}")


def test_a_page_and_a_table(tmp_path):
    rounds = [Round(n, 100.0 * n, 1.0, 2.0, 3.0 * n, 9.0, 50, 1, 0, 0, 30.0, 50.0) for n in levels(8)]
    page = write(tmp_path / "load", "<digits>", rounds)
    text = page.read_text()
    assert "&lt;digits&gt;" in text
    assert text.count('role="img"') == 2
    assert len(json.loads((page.parent / "results.json").read_text())) == 4
    assert [len(line(each)) for each in rounds] == [len(HEAD)] * 4
    nothing = Round(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 5, 0, 0, 1.0)
    assert 'role="img"' not in write(tmp_path / "none", "none", [nothing]).read_text()
