"""The MLflow server of somebody: silent, refusing, pointing elsewhere, or none at all. Real sockets, no MLflow."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from seatrial.errors import EngineError
from seatrial.runs.mlflow_server import MlflowServer, authorization, require
from seatrial.runs.services import Service


class Odd(BaseHTTPRequestHandler):
    """Answers as its server's ``answers`` say, path by path; keeps what it was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append((self.command, self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        status, text, headers = self.server.answers.get(self.path.rpartition("/mlflow/")[2], (404, b"", {}))  # type: ignore[attr-defined]
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_POST

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    made.answers, made.asked = {}, []  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/"


def ok(body: Any) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(body).encode(), {}


def test_one_that_is_not_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    with pytest.raises(EngineError, match=r"MLFLOW_TRACKING_URI\) does not answer: .*refused") as raised:
        require(Service("mlflow", address), {})
    assert "seatrial up mlflow" in (raised.value.run or "")
    with pytest.raises(EngineError, match=r"MLflow at .* does not answer") as raised:
        require(Service("mlflow", address, "token", "docker", "0123"), {})
    assert (raised.value.run or "").startswith("seatrial up mlflow")


def test_one_that_refuses(server: Any) -> None:
    server.answers["experiments/search"] = (401, b"", {})
    with pytest.raises(EngineError, match="refuses the login: 401") as raised:
        require(Service("mlflow", url(server)), {})
    assert "MLFLOW_TRACKING_TOKEN" in (raised.value.run or "")


@pytest.mark.parametrize("text", [b"<html>a login page</html>", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_one_that_is_none(server: Any, text: bytes) -> None:
    server.answers["experiments/search"] = (200, text, {})
    with pytest.raises(EngineError, match="does not answer"):
        require(Service("mlflow", url(server)), {})


def test_a_login_goes_nowhere_else(server: Any) -> None:
    server.answers["experiments/search"] = (302, b"", {"location": url(server) + "elsewhere"})
    with pytest.raises(EngineError, match="302"):
        require(Service("mlflow", url(server)), {"MLFLOW_TRACKING_TOKEN": "word"})
    assert len(server.asked) == 1 and server.asked[0][2]["Authorization"] == "Bearer word"
    assert authorization({"MLFLOW_TRACKING_USERNAME": "a", "MLFLOW_TRACKING_PASSWORD": "b"}) == {
        "Authorization": "Basic YTpi"
    }


def test_runs_whose_answers_cannot_be_meant(server: Any) -> None:
    server.answers["experiments/search"] = ok({"experiments": [{"experiment_id": "1"}, {"experiment_id": "../x"}]})
    good = {"run_id": "ab12", "experiment_id": "1", "status": "RUNNING", "artifact_uri": "mlflow-artifacts:/1/ab12/a"}
    infos = [
        good,
        {**good, "run_id": "../../evil"},
        {**good, "run_id": "s3", "artifact_uri": "s3://bucket/1"},
        {**good, "run_id": "up", "artifact_uri": "mlflow-artifacts:/../../etc"},
    ]
    server.answers["runs/search"] = ok({"runs": [{"info": info} for info in infos]})
    asking = MlflowServer(url(server), {})
    found = list(asking.runs_of("20261122-1"))
    assert [(each.id, each.artifacts) for each in found] == [("ab12", "1/ab12/a"), ("s3", None), ("up", None)]
    assert json.loads(server.asked[1][3])["experiment_ids"] == ["1"]
    assert asking.page(found[0]) == url(server) + "#/experiments/1/runs/ab12?workflowType=machine_learning"
