"""The dashboard's server: clients that are slow, gone or malformed, readings that fail, runs that cannot be read."""

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest

from seatrial.system.host import Host

for needed in ("starlette", "uvicorn"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from fakes import a_plan  # noqa: E402
from pace import within  # noqa: E402
from seatrial.monitor.app import (  # noqa: E402
    Api,
    Feed,
    dashboard_app,
    metrics_app,
)
from seatrial.monitor.prometheus import Exposition  # noqa: E402
from seatrial.monitor.reading import unread  # noqa: E402
from seatrial.runs.store import Projects, RunStore  # noqa: E402
from seatrial.system.address import names_this_machine  # noqa: E402
from seatrial.system.names import Names  # noqa: E402
from seatrial.web import server  # noqa: E402

MACHINE = {**unread("")["machine"], "cpu_cores": 1.5}
READING = {**unread(""), "problems": [], "machine": MACHINE}
RUN = {"id": "r1", "name": None, "target": "t.py", "numbers": {"loss": 0.5}, "bound_by": None, "mfu": None}
PATIENCE_S = 0.5
MOST = 20


class Reads:
    """A reading that fails on request."""

    error: BaseException | None = None

    def __call__(self):
        if self.error:
            raise self.error
        return {**READING, "t": time.time()}


class Served:
    """The real application and server in a thread; with ``any_host`` the one of --metrics-only."""

    def __init__(self, store, tend=lambda: None, any_host=None):
        self.reads = Reads()
        exposition = Exposition(lambda: [RUN])
        feed = Feed(self.reads, interval_s=0.05, on_reading=exposition.renew, tend=tend)
        sock = server.listen("dashboard", "127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        if any_host is None:
            app = dashboard_app(Api(Projects(store), feed, Names()), feed, exposition, None)
        else:
            app = metrics_app(feed, exposition, None, any_host=any_host)
        started = threading.Event()
        self._server = server.Server(app, started.set, feed.stop, patience_s=PATIENCE_S, most=MOST)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [sock]})
        self._thread.start()
        assert started.wait(120)

    def get(self, path, host="127.0.0.1"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Host": host})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def connect(self, data=b""):
        made = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        made.sendall(data)
        return made

    def next_reading(self):
        """The newest, as the page gets it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/events", timeout=300) as stream:
            return json.loads(stream.readline().removeprefix(b"data: "))

    def close(self):
        self._server.should_exit = True
        self._thread.join(120)
        assert not self._thread.is_alive()


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path, Host({"SEATRIAL_STATE": str(tmp_path / "state")}))


@pytest.fixture
def served(store):
    made = Served(store)
    yield made
    made.close()


def wait_for(condition):
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


HOSTS = {
    "127.0.0.1:9400": True, "localhost": True, "localhost:1": True, "[::1]:9400": True, "127.9.9.9": True,
    "": False, "evil.example": False, "evil.example:9400": False, "127.0.0.1.evil.example": False,
    "localhost.evil.example:80": False, "0.0.0.0": False, "[::1].evil": False, "127.0.0.1@evil.example": False,
}  # fmt: skip


def test_another_sites_page_gets_no_answer(served):
    for host, local in HOSTS.items():
        assert names_this_machine(host) is local
        assert served.get("/api/runs", host=host)[0] == served.get("/metrics", host=host)[0] == (200 if local else 403)


def test_metrics_beyond_this_machine_are_served_by_any_name(store):
    made = Served(store, any_host=True)
    wait_for(lambda: b"seatrial_machine_cpu_cores 1.5" in made.get("/metrics", host="gpu-box.example:9400")[1])
    assert made.get("/", host="gpu-box.example")[0] == 200 and made.get("/api/runs")[0] == 404
    made.close()


def test_pages_and_metrics_are_compressed_and_readings_come_at_once(served):
    wait_for(lambda: has_values(served))
    for path, packed in (("/live.js", True), ("/metrics", True), ("/api/events", False)):
        made = served.connect(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        assert (b"content-encoding: gzip\r\n" in made.recv(65536)) is packed
        made.close()


def test_a_client_that_resets_its_connection_is_no_news(served, capfd):
    for request in (b"", b"G", b"GET / HTTP/1.1\r\n", b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n") * 5:
        made = served.connect(request)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.close()
    assert served.get("/")[0] == 200
    time.sleep(0.2)
    assert "Traceback" not in capfd.readouterr().err


MALFORMED = [
    b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" * 50,
    b"GET /metrics HTTP/1.1\r\n: x\r\n\r\n", b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_request_is_refused(served, capfd, data):
    made = served.connect(data)
    assert b"200 OK" not in made.recv(65536)
    made.close()
    assert served.get("/")[0] == 200 and "Traceback" not in capfd.readouterr().err


def test_a_request_that_trickles_in_is_cut_off(served):
    made, began = served.connect(b"GET / HTTP/1.1\r\n"), time.monotonic()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        while time.monotonic() - began < 240:
            made.sendall(b"A: b\r\n")
            time.sleep(0.05)
    assert PATIENCE_S * 0.5 < time.monotonic() - began < 200


def test_many_clients_that_send_nothing_do_not_stop_the_page(served):
    stream = served.connect(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    stream.recv(100)
    slow = [served.connect(b"GET") for _ in range(5 * MOST)]
    assert within(3.0, lambda: [served.get("/")[0] for _ in range(10)]) == [200] * 10
    assert b"data: " in stream.recv(1 << 20) and stream.recv(1 << 20)  # who waited for nothing was not closed
    for each in [stream, *slow]:
        each.close()


STREAM = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_new_client_is_served_where_every_connection_is_an_open_stream(served):
    streams = [served.connect(STREAM) for _ in range(2 * MOST)]
    assert within(3.0, lambda: [served.get("/")[0] for _ in range(10)]) == [200] * 10
    for each in streams:
        each.close()


def test_one_client_with_many_connections_closes_its_own_and_nobody_elses(served):
    other = socket.create_connection(("127.0.0.1", served.port), 120, source_address=("127.0.0.2", 0))
    other.sendall(STREAM)
    other.recv(100)
    streams = [served.connect(STREAM) for _ in range(3 * MOST)]
    for _ in range(5):
        assert b"data: " in other.recv(1 << 20)
    for each in [other, *streams]:
        each.close()


def has_values(served):
    text = served.get("/metrics")[1]
    ok = b"seatrial_exporter_reading_ok 1\n" in text
    assert ok == (b"seatrial_machine_cpu_cores" in text) == (b"seatrial_run_metric" in text)
    return ok


@pytest.mark.parametrize("error", [RuntimeError("x"), RecursionError(), MemoryError(), OSError(5, "I/O")])
def test_a_reading_that_fails_shows_the_reason_and_no_old_values(served, error):
    assert served.next_reading()["problems"] == []
    wait_for(lambda: has_values(served))
    served.reads.error = error
    wait_for(lambda: served.next_reading()["problems"])
    broken = served.next_reading()
    assert type(error).__name__ in broken["problems"][0] and broken["gpus"] == [] == broken["containers"]
    assert not has_values(served) and b"failed_readings_total 0\n" not in served.get("/metrics")[1]
    served.reads.error = None
    wait_for(lambda: not served.next_reading()["problems"])
    wait_for(lambda: has_values(served))


def test_housekeeping_that_fails_ends_no_reading(store):
    def broken():
        raise RecursionError

    made = Served(store, tend=broken)
    first = made.next_reading()["t"]
    wait_for(lambda: made.next_reading()["t"] > first)
    made.close()


def test_a_run_that_cannot_be_read_hides_no_other(served, store):
    ids = ["20261120-231501-k3f9", "20261120-231502-k3f9", "20261120-231503-k3f9"]
    runs = [store.create(run_id, None) for run_id in ids]
    runs[0].save_plan(a_plan(runs[0].folder, run_id=ids[0]))
    (runs[1].folder / "plan.json").write_text("[" * 100_000)
    (runs[2].folder / "summary.json").write_text('{"seconds":' + "[" * 100_000)
    (runs[2].folder / "plan.json").mkdir()
    status, body = served.get("/api/runs")
    lines = {line["id"]: line for line in json.loads(body)["runs"]}
    assert status == 200 and set(lines) == set(ids) and lines[ids[0]]["target"] == "train.py"
    for run_id in ids[1:]:
        status, body = served.get(f"/api/runs/{run_id}")
        assert status in (404, 409, 500) and json.loads(body)["error"]
        assert served.get(f"/receipts/{run_id}")[0] in (404, 500)
