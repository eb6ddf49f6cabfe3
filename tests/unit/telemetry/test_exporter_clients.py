"""Clients of the exporter that are hostile, slow or gone, and readings that fail, hang or come back."""

import http.client
import resource
import socket
import struct
import threading
import time

import pytest

from pace import within
from seatrial.system.address import names_this_machine
from seatrial.telemetry import exporter as exporter_module
from seatrial.telemetry import http_server
from seatrial.telemetry.exporter import Exporter
from seatrial.telemetry.http_server import Server
from seatrial.telemetry.metrics import render
from seatrial.telemetry.reading import unread

READING = {**unread(""), "problems": [], "machine": {**unread("")["machine"], "cpu_cores": 1.5, "memory_used_bytes": 7}}
RUN = {"id": "r1", "name": None, "target": "t.py", "numbers": {"loss": 0.5}, "bound_by": None, "mfu": None}


class Served:
    """A server in a thread; ``host`` is where it listens."""

    def __init__(self, host="127.0.0.1"):
        self.server = Server(host, 0, Exporter(lambda: READING, lambda: [RUN]))
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def connect(self, data=b""):
        made = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        made.sendall(data)
        return made

    def status(self, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status != 200 or b"seatrial_machine_cpu_cores 1.5" in body
        return answer.status

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def served():
    made = Served()
    yield made
    made.close()


HOSTS = {
    "127.0.0.1:9400": True, "localhost": True, "localhost:1": True, "[::1]:9400": True, "127.9.9.9": True,
    "": False, "evil.example": False, "evil.example:9400": False, "127.0.0.1.evil.example": False,
    "localhost.evil.example:80": False, "0.0.0.0": False, "[::1].evil": False, "127.0.0.1@evil.example": False,
}  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_another_sites_page_gets_no_answer(served, host):
    assert names_this_machine(host) is HOSTS[host]
    assert served.status(Host=host) == (200 if HOSTS[host] else 403)


def test_elsewhere_prometheus_may_ask_by_any_name():
    made = Served("0.0.0.0")
    assert made.status(Host="gpu-box.example:9400") == 200
    made.close()


def test_a_client_that_resets_its_connection_is_no_news(served, capfd):
    requests = [b"", b"G", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50]
    for request in requests * 5:
        made = served.connect(request)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() then sends RST
        made.close()
    assert served.status() == 200
    time.sleep(0.2)
    assert capfd.readouterr() == ("", "")


MALFORMED = [
    b"\r\n\r\n", b"\0" * 100, b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /metrics HTTP/1.1\r\n: x\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 200,
    b"GET /metrics HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", b"GET /\x1b]0;title\x07 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("request_", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_request_is_refused_in_silence(served, capfd, request_):
    made = served.connect(request_)
    made.shutdown(socket.SHUT_WR)
    answer = b""
    try:
        while data := made.recv(65536):
            answer += data
    except ConnectionResetError:  # it was closed with some of ours unread
        pass
    made.close()
    assert b"200 OK" not in answer and b"\x1b" not in answer and b"Traceback" not in answer
    assert served.status() == 200 and capfd.readouterr() == ("", "")


def test_many_clients_that_send_nothing_do_not_stop_a_scrape(served):
    slow = [served.connect(b"GET /metrics HTTP/1.1\r\n") for _ in range(3 * http_server.MOST_CLIENTS)]
    assert within(3.0, lambda: [served.status() for _ in range(20)]) == [200] * 20
    assert len([thread for thread in threading.enumerate() if "process_request" in thread.name]) <= (
        http_server.MOST_CLIENTS + 5
    )
    for each in slow:
        each.close()


def test_few_descriptors_are_not_used_up(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    made = Served()
    slow = [made.connect(b"GET") for _ in range(60)]
    assert made.status() == 200 and len(made.server._open) <= 17
    for each in slow:
        each.close()
    made.close()


class Reads:
    """A reading that can be told to fail or to hang."""

    def __init__(self):
        self.error, self.gate = None, threading.Event()
        self.gate.set()

    def __call__(self):
        self.gate.wait()
        if self.error:
            raise self.error
        return READING


def wait_for(condition):
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def reads():
    return Reads()


@pytest.fixture
def going(reads, monkeypatch):
    monkeypatch.setattr(exporter_module, "STALE_S", 0.2)
    made = Exporter(reads, lambda: [RUN], interval_s=0.02)
    made.start()
    yield made
    reads.gate.set()
    made.stop()


def has_values(exporter):
    text = exporter.text[0]
    ok = b"seatrial_exporter_reading_ok 1\n" in text
    assert ok == (b"seatrial_machine_cpu_cores" in text) == (b"seatrial_run_metric" in text)
    assert ok or b"seatrial_exporter_reading_ok 0\n" in text
    return ok


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), RecursionError(), MemoryError(), KeyError("t"), OSError(5, "I/O")]
)
def test_a_reading_that_fails_leaves_its_series_out_and_comes_back(going, reads, error):
    assert has_values(going)
    reads.error = error
    wait_for(lambda: not has_values(going))
    reads.error = None
    wait_for(lambda: has_values(going))
    assert b"seatrial_exporter_failed_readings_total 0\n" not in going.text[0]


def test_a_reading_that_hangs_leaves_its_series_out(going, reads):
    assert has_values(going)
    reads.gate.clear()
    wait_for(lambda: not has_values(going))
    reads.gate.set()
    wait_for(lambda: has_values(going))


def test_runs_that_cannot_be_read_take_nothing_from_the_machine():
    def broken():
        raise RecursionError

    text = Exporter(lambda: READING, broken).text[0]
    assert b"seatrial_machine_cpu_cores 1.5" in text and b"seatrial_run" not in text
    assert b"seatrial_exporter_failed_readings_total 1\n" in text and b"seatrial_exporter_reading_ok 1\n" in text


def test_half_a_character_in_a_label_is_no_end():
    run = {**RUN, "numbers": {"\ud800": 1.0}}
    assert b'metric="?"' in render(READING, [run], "hal")
