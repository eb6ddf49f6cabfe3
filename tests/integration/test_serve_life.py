"""A server's life: ready only when warm, drained without losing a request, ended with all that it started."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "httpx", "numpy"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

import httpx  # noqa: E402

from pace import slowness, until  # noqa: E402
from served import Server, gone, read_all, request  # noqa: E402

pytestmark = pytest.mark.xdist_group("serve")

TRIES = int(os.environ.get("SEATRIAL_DRAIN_TRIES", "100"))
SOAK_LOOPS = int(os.environ.get("SEATRIAL_SOAK_LOOPS", "20000"))


class Clients:
    """Threads that ask as fast as they are answered, half of them on a new connection each time.

    Attributes:
        answered: statuses that came. lost: requests that were sent whole on a connection, and never answered.
    """

    def __init__(self, server: Server, threads: int = 8) -> None:
        self._server = server
        self.answered: dict[int, int] = {}
        self.lost: list[str] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n % 2 == 0,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _run(self, keep: bool) -> None:
        sock: socket.socket | None = None
        while True:
            if (
                sock is not None and select.select([sock], [], [], 0)[0]
            ):  # closed between requests: as HTTP libraries do
                sock.close()
                sock = None
            if sock is None:
                try:
                    sock = self._server.connect()
                except OSError:  # refused: the port is closed
                    return
            try:
                sock.sendall(request(more="" if keep else "connection: close\r\n"))
                answer = self._answer(sock)
            except OSError as error:
                answer, why = b"", repr(error)
            else:
                why = "closed"
            with self._lock:
                if not answer:
                    self.lost.append(why)
                else:
                    status = int(answer[9:12])
                    self.answered[status] = self.answered.get(status, 0) + 1
            if not answer or not keep or b"connection: close" in answer:
                sock.close()
                sock = None

    @staticmethod
    def _answer(sock: socket.socket) -> bytes:
        data = b""
        while b'"product":2.0}' not in data and b'"error"' not in data:
            more = sock.recv(65536)
            if not more:
                return b""
            data += more
        return data


def wait_for_output(server: Server, text: str) -> None:
    until(lambda: text in server.output, lambda: f"{text} in {server.output}")


def drain_under_load(fronts: int) -> None:
    with Server("--fronts", str(fronts)) as server:
        clients = Clients(server)
        time.sleep(0.3)
        began = time.monotonic()
        assert server.stop() == 0, server.output
        assert time.monotonic() - began < 8 * slowness(time.monotonic)
        clients.join()
        assert clients.lost == [], server.output
        assert set(clients.answered) == {200} and clients.answered[200] >= 8


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_drain_under_load_loses_no_request(fronts):
    drain_under_load(fronts)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_hundred_drains_lose_no_request():
    for number in range(TRIES):
        drain_under_load(1 + number % 2)


def test_requests_in_work_and_half_sent_are_answered():
    with Server("--fronts", "1") as server:
        slow, half, idle = server.connect(), server.connect(), server.connect()
        slow.sendall(request({"input": [-1, 3.0]}))
        half.sendall(request()[:-3])
        wait_for_output(server, "a slow row is computed")
        server.process.send_signal(signal.SIGTERM)
        with server.client() as client:
            deadline = time.monotonic() + 120  # the front checks for signals at intervals
            while client.get("/v2/health/ready").status_code == 200:
                assert time.monotonic() < deadline
            assert client.get("/v2/health/ready").status_code == 503
            assert client.get("/v2/health/live").status_code == 200
        half.sendall(request()[-3:])
        for sock in (slow, half):
            answer = read_all(sock)
            assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer
        assert server.process.wait(120) == 0
        assert read_all(idle) == b""


@pytest.mark.parametrize("fronts", [1, 2])
@pytest.mark.parametrize("first", [-1, -7], ids=["sleep", "one-call"])
def test_readiness_goes_at_once_while_a_batch_is_computed(fronts, first):
    """Check that readiness goes within seconds, while a batch takes ten."""
    with Server("--fronts", str(fronts)) as server:
        slow, half = server.connect(), server.connect()
        slow.sendall(request({"input": [first, 10.0]}))
        half.sendall(request()[:-3])
        wait_for_output(server, "a slow row is computed")
        time.sleep(0.1)  # for the half request, too
        server.process.send_signal(signal.SIGTERM)
        sent_s = time.monotonic()
        with server.client() as client:
            while client.get("/v2/health/ready").status_code == 200:
                assert time.monotonic() - sent_s < 4
        withdrawn_s = time.monotonic() - sent_s
        time.sleep(1.0)
        half.sendall(request()[-3:])
        for _ in range(6):  # nor does another front let anybody in; where Python can run, a client gets it at once
            with pytest.raises(ConnectionRefusedError if first == -1 else OSError):
                socket.create_connection(server.address, timeout=0.2)
        assert read_all(slow).startswith(b"HTTP/1.1 200") and time.monotonic() - sent_s > 5
        assert read_all(half).startswith(b"HTTP/1.1 200")
        assert server.process.wait(120) == 0 and withdrawn_s < 4
        assert server.output.count("draining") == 1


def test_ctrl_c_in_a_terminal_comes_to_every_process():
    with Server("--fronts", "2") as server, server.connect() as slow:
        slow.sendall(request({"input": [-1, 3.0]}))
        wait_for_output(server, "a slow row is computed")
        os.killpg(server.process.pid, signal.SIGINT)
        assert read_all(slow).startswith(b"HTTP/1.1 200")
        assert server.process.wait(120) == 0


def test_a_signal_while_the_model_is_loaded(tmp_path):
    with Server("--fronts", "1", wait=False, ECHO_WAITS_FOR=str(tmp_path / "never")) as server:
        fronts = until(server.children, "a front")
        assert server.stop() == 0 and all(gone(pid) for pid in fronts)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_batch_that_does_not_end_does_not_hold_the_end_up():
    with Server("--fronts", "1", "--timeout-s", "60") as server, server.connect() as slow:
        slow.sendall(request({"input": [-1, 60.0]}))
        wait_for_output(server, "a slow row is computed")
        for _ in range(2):  # the second is an engine's that repeats itself
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        assert read_all(slow, 28).startswith(b"HTTP/1.1 503")
        assert server.process.wait(3) == 0  # before the 30 s of the agent are over


def test_signals_of_the_models_own_code_end_nothing():
    with Server("--fronts", "1") as server:
        assert server.predict(-8, 0).status_code == 200
        time.sleep(0.3)
        with server.client() as client:
            assert client.get("/v2/health/ready").status_code == 200
        assert server.stop() == 0


def test_a_client_that_never_ends_does_not_hold_the_end_up_for_ever():
    with Server("--fronts", "1", "--timeout-s", "1") as server, server.connect() as sock:
        sock.sendall(request()[:-3])
        time.sleep(0.1)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 9 * slowness(time.monotonic)  # without a drain, a head may take ten


def test_not_ready_before_the_warm_up(tmp_path):
    go_on = tmp_path / "go-on"
    with Server("--fronts", "1", wait=False, ECHO_WAITS_FOR=str(go_on)) as server, server.client() as client:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                response = client.get("/v2/health/ready")
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        assert response.status_code == 503 and client.get("/v2/health/live").status_code == 200
        refused = client.post("/predict", json={"input": [1, 2]})
        assert refused.status_code == 503 and "loaded" in refused.json()["error"] and "retry-after" in refused.headers
        go_on.touch()
        while client.get("/v2/health/ready").status_code == 503:
            time.sleep(0.05)
        assert client.post("/predict", json={"input": [1, 2]}).status_code == 200
        assert "serving echo on http://127.0.0.1:" in server.output and "3 saved examples" in server.output


def test_a_model_that_cannot_be_served():
    with Server("--fronts", "1", wait=False, ECHO_DIFFERS="1") as server:
        assert server.process.wait(120) == 1
        wait_for_output(server, "the outputs differ")
        assert "fix: seatrial run echo" in server.output
        assert "Traceback" not in server.output


def test_a_port_that_is_taken():
    with Server("--fronts", "2") as server:
        for fronts in ("1", "2"):
            with Server("--fronts", fronts, "--port", str(server.address[1]), wait=False) as other:
                assert other.process.wait(120) == 1
                wait_for_output(other, "cannot listen")
                assert "Traceback" not in other.output


def test_the_gpu_is_lost():
    """The request that saw it, and those that wait, get 503; then the program ends with 1."""
    with Server("--fronts", "1") as server:
        waits = [server.connect() for _ in range(3)]
        waits[0].sendall(request({"input": [-1, 3.0]}))
        wait_for_output(server, "a slow row is computed")
        waits[1].sendall(request({"input": [-3, 0]}))
        waits[2].sendall(request())
        answers = [read_all(sock) for sock in waits]
        assert [answer[:12] for answer in answers[1:]] == [b"HTTP/1.1 503"] * 2
        assert server.process.wait(120) == 1
        wait_for_output(server, "the GPU was lost")
        assert "Traceback" not in server.output


def test_the_model_is_killed():
    with Server("--fronts", "2") as server:
        fronts = server.children()
        waiting = [server.connect() for _ in range(4)]
        for sock in waiting:
            sock.sendall(request({"input": [-1, 5]}))
        time.sleep(0.3)
        server.process.kill()
        for sock in waiting:
            assert read_all(sock).startswith(b"HTTP/1.1 503")
        assert server.process.wait(120) == -signal.SIGKILL
        assert all(gone(pid) for pid in fronts)


def test_a_front_that_dies_is_started_again():
    with Server("--fronts", "2") as server:
        for _ in range(4):
            server.predict(1, 2)
        first = server.children()
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(server.children()) == 2 and first[0] not in server.children(), "another front")
        wait_for_output(server, "another is started")
        for _ in range(8):
            assert server.predict(1, 2).status_code == 200
        with server.client() as client:
            assert 'kind="predict",code="200"} 12' in client.get("/metrics").text
        assert server.stop() == 0


def test_reports(tmp_path):
    events, began_s = tmp_path / "events.jsonl", time.monotonic()
    with Server("--fronts", "1", SEATRIAL_EVENTS=str(events)) as server:
        for _ in range(5):
            server.predict(1, 2)
        server.predict(1)
        assert server.stop() == 0
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    last = lines[-1]
    assert {line["type"] for line in lines} == {"served"}
    assert last["requests"] == 6 and last["errors"] == {"400": 1} and last["batches"] == {"1": 5}
    most_ms = 1000 * (time.monotonic() - began_s)
    assert 0 < last["p50_ms"] <= last["p95_ms"] <= last["p99_ms"] < most_ms and last["queue_peak"] == 1
    assert last["examples"] == 3 and last["largest_difference"] == 0.001 and last["seconds"] > 0


def test_half_sent_requests_are_ended():
    """The limits are ten and thirty seconds; here with shorter ones, in this process."""
    pytest.importorskip("uvloop")
    import asyncio

    import uvicorn

    from seatrial.serve.connections import protocol
    from seatrial.serve.counters import Counters

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass

    async def main() -> list[bytes]:
        kind = protocol(Counters.create(1), body_s=0.3, head_s=0.2)
        server = uvicorn.Server(uvicorn.Config(app, http=kind, lifespan="off", log_config=None, port=0))
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        answers = []
        for data in (b"", b"POST / HT", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            answers.append(await asyncio.wait_for(reader.read(), 120))
            writer.close()
        server.should_exit = True
        await task
        return answers

    silent, head, body = asyncio.run(main())
    assert silent == b"" and head.startswith(b"HTTP/1.1 408 ") and body.startswith(b"HTTP/1.1 408 ")


def rss_kb(pid: int) -> int:
    return int(
        next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line).split()[1]
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_stays_flat():
    """SEATRIAL_SOAK_LOOPS requests of every kind, a tenth of them by clients that leave."""
    with Server("--fronts", "1") as server:
        pids = [server.process.pid, *server.children()]

        def loops(count: int) -> None:
            with server.client() as client:
                for n in range(count):
                    if n % 10 == 0:
                        with server.connect() as sock:
                            sock.sendall(request()[: n % 90])
                    elif n % 10 == 1:
                        client.post("/predict", content=b"{", headers={"content-type": "application/json"})
                    else:
                        client.post("/predict", json={"inputs": [[1, 2]] * (n % 30 + 1)})

        loops(SOAK_LOOPS // 4)
        before = [rss_kb(pid) for pid in pids]
        loops(SOAK_LOOPS)
        after = [rss_kb(pid) for pid in pids]
        assert all(then - now < 4096 for now, then in zip(before, after, strict=True)), (before, after)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_connections():
    """Or as many as this process may open; among them a request is answered, and all are let go."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Server("--fronts", "1") as server:
            held = [server.connect() for _ in range(min(10_000, hard - 200))]
            assert server.predict(1, 2).status_code == 200
            for sock in held[::100]:
                sock.sendall(request())
                assert b"200 OK" in read_all(sock, until=b"}")
            for sock in held:
                sock.close()
            assert server.predict(1, 2).status_code == 200
            assert server.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
