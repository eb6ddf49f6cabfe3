"""The server over real HTTP: its answers, and its refusals."""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "httpx", "numpy"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from pace import until  # noqa: E402
from served import HERE, Server, read_all, request  # noqa: E402

pytestmark = pytest.mark.xdist_group("serve")


@pytest.fixture(scope="module")
def server():
    with Server("--name", "net", "--fronts", "2", "--max-body", "100000", "--timeout-s", "2") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with server.client() as client:
        yield client


def error_of(response) -> str:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"] and body["error"].endswith(".") and "Traceback" not in body["error"]
    return body["error"]


def test_one_input_and_several(client):
    assert client.post("/predict", json={"input": [2, 3]}).json() == {"sum": 5, "product": 6}
    many = client.post("/predict", json={"inputs": [[n, n] for n in range(100)]}).json()["predictions"]
    assert [each["product"] for each in many] == [n * n for n in range(100)]


def test_files_and_text(client):
    assert client.post("/predict", content=b"2 3", headers={"content-type": "text/plain"}).json()["sum"] == 5
    image = b"x" * 70_000  # beyond what is read in the loop itself
    assert client.post("/predict", content=image, headers={"content-type": "image/png"}).json()["sum"] == 70_000
    form = client.post("/predict", files={"other": (None, b"no file"), "file": ("x.png", b"12345", "image/png")})
    assert form.json()["sum"] == 5
    typed = client.post(
        "/predict", content=b'{"input": [2, 3]}', headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert typed.json()["sum"] == 5


BAD = [
    (b"", "application/json", 400, "empty"),
    (b"{", "application/json", 400, "not JSON"),
    (b'{"input": [1, NaN]}', "application/json", 400, "NaN"),
    (b'{"input": [1, -Infinity]}', "application/json", 400, "Infinity"),
    (b'{"input": [1, 1e999]}', "application/json", 400, "pair"),
    (b'{"input": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", "application/json", 400, "nested"),
    (b"\xff\xfe", "application/json", 400, "not JSON"),
    (b'{"input": [1' + b"0" * 5000 + b", 2]}", "application/json", 400, "."),
    (b'{"input": [1, 2, 3]}', "application/json", 400, "pair"),
    (b'{"inputs": []}', "application/json", 400, "no input"),
    (b'"text"', "application/json", 400, "object"),
    (json.dumps({"inputs": [[1, 2]] * 300}).encode(), "application/json", 413, "at most"),
    (b" " * 100_001, "application/json", 413, "larger than 100000"),
    (b"x", "application/pdf", 400, "application/pdf"),
    (b"", "image/png", 400, "empty"),
    (b"a=1", "application/x-www-form-urlencoded", 415, "JSON"),
    (b"x", "multipart/form-data", 400, "boundary"),
    (b"--b\r\nno end", "multipart/form-data; boundary=b", 400, "form"),
    (b"--b\r\ncontent-disposition: form-data", "multipart/form-data; boundary=b", 400, "form"),
    (b'{"input": [-4, 1]}', "application/json", 400, "must not be -4"),
    (b'{"input": [-2, 1]}', "application/json", 500, "failed"),
    (b'{"input": [-5, 1]}', "application/json", 500, "number"),
    (b'{"input": [-1, 2.3]}', "application/json", 504, "2 s"),
]


@pytest.mark.parametrize(
    ("body", "kind", "status", "sentence"), BAD, ids=[f"{n}-{row[2]}" for n, row in enumerate(BAD)]
)
def test_what_cannot_be_answered(client, body, kind, status, sentence):
    response = client.post("/predict", content=body, headers={"content-type": kind})
    assert response.status_code == status
    assert sentence in error_of(response)
    assert "server" not in response.headers


def test_a_compressed_body_is_no_broken_json(client):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = client.post("/predict", content=b"\x1f\x8b\x08\x00", headers=headers)
    assert response.status_code == 415 and "compressed" in error_of(response)
    plain = {"content-type": "application/json", "content-encoding": "identity"}
    assert client.post("/predict", content=b'{"input": [1, 2]}', headers=plain).status_code == 200


def test_a_bad_row_spoils_no_other(server):
    """Rows of many clients are computed together; the one that the model refuses, or breaks on, stands alone."""
    answers = {}

    def ask(n):
        answers[n] = server.predict(-4 if n == 3 else n, 1)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: answer.status_code for n, answer in answers.items()} == {n: 400 if n == 3 else 200 for n in range(8)}


def test_addresses_and_methods(client):
    assert error_of(client.get("/nowhere")) == "There is nothing at this address."
    for method, path in (("GET", "/predict"), ("DELETE", "/"), ("POST", "/v2"), ("GET", "/v2/models/net/infer")):
        response = client.request(method, path)
        assert response.status_code == 405 and error_of(response)
    assert client.post("/v2/models/other/infer", json={}).status_code == 404
    assert "net" in error_of(client.get("/v2/models/other"))


def test_the_open_inference_protocol(client):
    assert client.get("/v2").json()["name"] == "seatrial"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/net/ready").json() == {"name": "net", "ready": True}
    model = client.get("/v2/models/net").json()
    assert model["inputs"] == [{"name": "numbers", "datatype": "FP32", "shape": [-1, 2]}]
    tensor = {"name": "numbers", "datatype": "FP32", "shape": [2, 2]}
    flat = client.post("/v2/models/net/infer", json={"id": "7", "inputs": [{**tensor, "data": [1, 2, 3.5, 4]}]}).json()
    results = {"name": "results", "datatype": "FP32", "shape": [2, 2], "data": [3, 2, 7.5, 14]}
    assert flat == {"model_name": "net", "id": "7", "outputs": [results]}
    nested = {"inputs": [{**tensor, "data": [[1, 2], [3.5, 4]]}], "outputs": [{"name": "results"}]}
    assert client.post("/v2/models/net/infer", json=nested).json()["outputs"] == [results]


GOOD = {"name": "numbers", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
WRONG = [
    {"name": "other"}, {"datatype": "INT64"}, {"shape": [1, 3]}, {"shape": [2]}, {"shape": "x"}, {"shape": [-1, 2]},
    {"shape": [0, 2], "data": []}, {"data": [1]}, {"data": ["a", "b"]}, {"data": None}, {"data": [[1], [2, 3]]},
    {"data": [1e300, 1]}, {"shape": [2**40, 2]}, {"shape": [True, 2]},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_a_wrong_tensor(client, change):
    response = client.post("/v2/models/net/infer", json={"inputs": [{**GOOD, **change}]})
    assert response.status_code == 400 and error_of(response)


def test_wrong_requests_of_the_protocol(client):
    for body in ({}, {"inputs": {}}, {"inputs": []}, {"inputs": [GOOD, GOOD]}, {"inputs": [GOOD], "id": 7},
                 {"inputs": [GOOD], "outputs": [{"name": "x"}]}, {"inputs": [1]}):  # fmt: skip
        response = client.post("/v2/models/net/infer", json=body)
        assert response.status_code == 400 and error_of(response), body


def parse_metrics(text):
    """Every line is of the format, each family has its type before its samples."""
    values, families = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            families.add(line.split()[2])
        elif not line.startswith("#"):
            found = re.fullmatch(r"([a-z_]+)(\{[^}]*\}) (\S+)", line)
            assert found, line
            assert any(found[1].startswith(family) for family in families), line
            values[found[1] + found[2]] = float(found[3])
    return values


def test_metrics_are_of_all_fronts(server):
    def scrape():
        with server.client() as fresh:  # of one front or the other
            return parse_metrics(fresh.get("/metrics").text)

    before = scrape()
    for _ in range(12):  # each on a connection of its own
        assert server.predict(1, 2).status_code == 200
    key = 'seatrial_serve_requests_total{model="net",kind="predict",code="200"}'
    after = [scrape() for _ in range(4)]
    assert {each[key] - before.get(key, 0) for each in after} == {12}
    last = after[-1]
    count = last['seatrial_serve_latency_seconds_count{model="net"}']
    assert last['seatrial_serve_latency_seconds_bucket{model="net",le="+Inf"}'] == count > 0
    assert last['seatrial_serve_batch_size_count{model="net"}'] > 0
    assert last['seatrial_serve_queue_rows{model="net"}'] == 0
    assert last['seatrial_serve_ready{model="net"}'] == 1
    buckets = [value for name, value in last.items() if "latency_seconds_bucket" in name]
    assert buckets == sorted(buckets) and len(buckets) > 10


def test_openapi_is_valid_and_complete(client):
    described = client.get("/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    schemas = described["components"]["schemas"]
    operations = [operation for path in described["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for reference in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(described)):
        assert reference in schemas
    example = described["paths"]["/v2/models/net/infer"]["post"]["requestBody"]["content"]["application/json"][
        "example"
    ]
    assert client.post("/v2/models/net/infer", json=example).status_code == 200
    example = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client.post("/predict", json=example).status_code == 200
    for path, methods in described["paths"].items():
        if "get" in methods:
            assert client.get(path).status_code == 200, path


def test_no_http_and_too_long_a_head(server):
    for data, status in (
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\x00: b\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n", 400),
        (b"GET /" + b"a" * 300_000, 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000, 431),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", 400),
    ):
        answer = server.raw(data)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (data[:40], answer[:200])
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_head_of_too_many_and_too_long_headers_is_refused_by_the_limit_that_its_pieces_reach_first(server):
    answer = server.raw(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 60_000)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")), answer[:200]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_pipelined_and_chunked(server):
    answer = server.raw(request() * 3 + request({"input": [2, 2]}, more="connection: close\r\n"))
    assert answer.count(b"HTTP/1.1 200") == 4 and answer.endswith(b'{"sum":4.0,"product":4.0}')
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert b'"sum":3.0' in server.raw(head + b"c\r\n" + b'{"input": [1' + b"\r\n4\r\n,2]}\r\n0\r\n\r\n")
    assert (
        b"413" in server.raw(head + b"".join(b"8000\r\n" + b" " * 0x8000 + b"\r\n" for _ in range(8)), until=b"}")[:20]
    )


def test_requests_in_too_many_pieces_are_refused(server):
    """Thousands of requests, or chunks of a byte, cost the loop a tenth of a second and more at once."""
    assert b"HTTP/1.1 400" in server.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"input": [1,2]}'
    in_bytes = b"".join(b"1\r\n%c\r\n" % each for each in body)
    assert b'"sum":3.0' in server.raw(head + in_bytes + b"0\r\n\r\n")
    assert b"HTTP/1.1 400" in server.raw(head + b"1\r\n \r\n" * 1100)
    trailers = b"host: evil.example\r\nauthorization: x\r\n"
    assert b'"sum":3.0' in server.raw(head + in_bytes + b"0\r\n" + trailers + b"\r\n")
    assert b"HTTP/1.1 400" in server.raw(head + in_bytes + b"0\r\n" + b"a: b\r\n" * 1100)


def test_a_client_that_reads_no_answers_is_cut_off(server):
    """Its answers would fill the memory."""
    with server.connect() as sock:
        sock.settimeout(120)
        page = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while True:
                sock.sendall(page * 8)
                time.sleep(0.001)
    assert server.predict(1, 2).status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_there(server):
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 999999999999\r\n\r\n"
    assert server.raw(head, until=b"}").startswith(b"HTTP/1.1 413 ")
    with server.connect() as sock:  # a client that reads only when all is sent: nothing is reset under it
        sock.sendall(request().replace(b"content-length: 17", b"content-length: 5000000") + b" " * 4_999_983)
        assert read_all(sock, until=b"}").startswith(b"HTTP/1.1 413 ")


def test_clients_that_leave(server, client):
    """In the middle of a body, and while the model computes: nothing is left behind."""
    for _ in range(20):
        with server.connect() as sock:
            sock.sendall(request({"input": [-1, 0.05]}))
            time.sleep(0.01)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leaves with a reset
        with server.connect() as sock:
            sock.sendall(request()[:-5])

    def numbers():
        return parse_metrics(client.get("/metrics").text)

    until(lambda: not numbers()['seatrial_serve_queue_rows{model="net"}'], "the end of all rows")
    assert numbers()['seatrial_serve_abandoned_rows_total{model="net"}'] > 0
    assert client.post("/predict", json={"input": [1, 2]}).status_code == 200


def test_full_queue_is_429_at_once():
    with Server("--queue", "4", "--fronts", "1") as server, server.client() as client:
        waiting = [server.connect() for _ in range(4)]
        for sock in waiting:
            sock.sendall(request({"input": [-1, 3.0]}))
        while 'queue_rows{model="echo"} 4' not in client.get("/metrics").text:
            time.sleep(0.02)
        response = client.post("/predict", json={"input": [1, 2]})
        assert response.status_code == 429 and response.headers["retry-after"] == "1" and error_of(response)
        assert not select.select(waiting, [], [], 0)[0]  # it was refused before any of those before it was answered
        for sock in waiting:
            answer = b""
            while b"sum" not in answer:
                answer += sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            sock.close()
        assert client.post("/predict", json={"input": [1, 2]}).status_code == 200


def test_the_token():
    with Server(SEATRIAL_SERVE_TOKEN="hello-there", ECHO_KIND="image") as server, server.client() as client:
        assert client.post("/predict", json={"input": [1, 2]}).status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/v2/models/echo").status_code == 401
        assert client.get("/v2/health/ready").status_code == 200
        wrong = client.post("/predict", json={"input": [1, 2]}, headers={"authorization": "Bearer hello-therE"})
        assert wrong.status_code == 401 and wrong.headers["www-authenticate"] == "Bearer" and error_of(wrong)
        bearer = {"authorization": "Bearer hello-there", "host": "example.com"}
        assert client.post("/predict", json={"input": [1, 2]}, headers=bearer).status_code == 200
        assert "password" in client.get("/", headers={"accept": "text/html"}).text
        assert client.get("/?token=wrong").status_code == 401
        answer = client.get("/?token=hello-there&a=1")
        assert answer.status_code == 303 and answer.headers["location"] == "/?a=1"
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        client.cookies.clear()
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert client.get("/", headers=cookie).status_code == 200
        assert client.post("/predict", json={"input": [1, 2]}, headers=cookie).status_code == 200
        foreign = {**cookie, "origin": "http://127.0.0.1:1"}
        assert client.post("/predict", json={"input": [1, 2]}, headers=foreign).status_code == 403
        assert server.children()
        for pid in server.children():
            for file in ("cmdline", "environ"):
                assert "hello-there" not in Path(f"/proc/{pid}/{file}").read_text()


def test_other_sites_pages(client):
    """A page whose own name points here (DNS rebinding), and one that sends a request across."""
    own = f"{socket.gethostname().partition('.')[0]}.local"
    hosts = {"evil.example": 403, "127.0.0.1.evil.example:80": 403, "": 403, "server:8000": 200, "10.1.2.3": 200,
             "[::1]:9": 200, "127.0.0.1": 200, "localhost:8000": 200, own: 200, f"evil.{own}": 403, "evil.local": 403,
             "evil.local:8000": 403, "EVIL.LOCAL": 403, "local": 200, ".local": 403, "evil.localhost": 403,
             "evil.internal": 403, "net.ns.svc": 403, "net.ns.svc.cluster.local": 403, "localhost.": 403,
             "evil.example:٨٠": 403}  # fmt: skip
    for host, status in hosts.items():
        response = client.post("/predict", json={"input": [1, 2]}, headers={"host": host.encode()})
        assert response.status_code == status, host
    page = client.get("/", headers={"host": "evil.example"})
    assert page.status_code == 403 and error_of(page)
    origin = {"origin": "https://evil.example"}
    assert client.post("/predict", json={"input": [1, 2]}, headers=origin).status_code == 403


def test_names_that_the_server_is_given_are_answered():
    names = "net.ns.svc, Net.ns.svc.cluster.local"
    with Server(SEATRIAL_SERVE_HOSTS=names) as server, server.client() as client:
        for host, status in {"net.ns.svc:8000": 200, "net.ns.svc.cluster.local": 200, "x.net.ns.svc": 403}.items():
            answer = client.post("/predict", json={"input": [1, 2]}, headers={"host": host})
            assert answer.status_code == status, host


def test_connections_beyond_what_may_be_open():
    command = ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh"]
    command += [sys.executable, str(HERE / "served_echo.py"), "--model", "echo", "--fronts", "1"]
    with Server(command=command) as server:
        held = [server.connect() for _ in range(230)]
        time.sleep(0.3)
        more = [server.connect() for _ in range(50)]
        answers = [read_all(sock, 0.05) for sock in more]
        assert any(answer.startswith(b"HTTP/1.1 503 ") for answer in answers)
        held[0].sendall(request(more="connection: close\r\n"))
        assert b"sum" in read_all(held[0])
        for sock in (*held, *more):
            sock.close()
        time.sleep(0.2)
        assert server.predict(1, 2).status_code == 200
