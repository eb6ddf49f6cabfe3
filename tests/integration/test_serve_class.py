"""A class of the user's, served as a user serves it: what it returns, prints and breaks on, over HTTP."""

from __future__ import annotations

import sys
import threading
import time

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "httpx", "numpy", "torch"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

from pace import until  # noqa: E402
from served import Server  # noqa: E402

pytestmark = [pytest.mark.xdist_group("serve"), pytest.mark.torch]

SOURCE = """
import asyncio, sys, time

class Model:
    max_batch = 16
    seen = 0

    def load(self, device, folder):
        self.device, self.folder = str(device), str(folder)

    def predict(self, batch):
        print("predict was called with", len(batch))
        type(self).seen += 1
        if "slow" in batch: time.sleep(0.2)
        if "very slow" in batch: time.sleep(9)
        if "raise" in batch: raise ValueError("/home/somebody/secret")
        if "exit" in batch: sys.exit(3)
        if "cancel" in batch: raise asyncio.CancelledError
        if "fewer" in batch: return batch[1:]
        if "more" in batch: return batch + [1]
        if "none" in batch: return None
        return [object() if one == "object" else self.one(one) for one in batch]

    def one(self, one):
        if one == "where": return self.device
        if isinstance(one, bytes): return {"bytes": len(one)}
        return {"saw": one}

import time
class Broken:
    max_batch = 64
    def predict(self, batch):
        time.sleep(0.3)
        raise RuntimeError("always")
"""
BAD = ("raise", "exit", "cancel", "fewer", "more", "none", "object")


def started(folder, name="Model", *more):
    (folder / "serve.py").write_text(SOURCE)
    command = [sys.executable, "-m", "seatrial.serve", "--model", f"{folder}/serve.py:{name}", "--fronts", "1", *more]
    return Server(command=command)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with started(tmp_path_factory.mktemp("served"), "Model", "--timeout-s", "5") as server:
        yield server


def ask(server, one):
    with server.client() as client:
        return client.post("/predict", json={"input": one})


def together(server, inputs):
    """Asked by many clients while the model is busy, so that they are one batch."""
    answers = {}
    threads = [threading.Thread(target=lambda one=one: answers.update({one: ask(server, one)})) for one in inputs]
    busy = threading.Thread(target=ask, args=(server, "slow"))
    for thread in (busy, *threads):
        thread.start()
        time.sleep(0.01)
    for thread in (busy, *threads):
        thread.join()
    return answers


def test_values_lists_and_files(server):
    assert ask(server, {"a": [1, None]}).json() == {"saw": {"a": [1, None]}}
    assert ask(server, "where").json()["output"] in ("cpu", "cuda")
    with server.client() as client:
        assert client.post("/predict", json={"inputs": [1, "b"]}).json() == {"predictions": [{"saw": 1}, {"saw": "b"}]}
        assert client.post("/predict", json=[]).json() == {"saw": []}
        assert client.post("/predict", json=["a"]).json() == {"saw": ["a"]}
        assert client.post("/predict", files={"file": ("x.png", b"12345", "image/png")}).json() == {"bytes": 5}


@pytest.mark.parametrize("word", BAD)
def test_only_the_input_that_it_breaks_on_gets_the_500(server, word):
    answers = together(server, [*range(5), word, *range(5, 9)])
    assert {one: answer.status_code for one, answer in answers.items() if one != word} == dict.fromkeys(range(9), 200)
    assert answers[3].json() == {"saw": 3}
    assert answers[word].status_code == 500
    assert answers[word].json() == {"error": "The model failed on this request."}


def test_what_it_prints_is_in_the_log_and_in_no_answer(server):
    assert ask(server, 1).json() == {"saw": 1}
    until(lambda: "predict was called with 1\n" in server.output, "what it prints")
    assert "secret" in server.output  # the traceback is its owner's


def test_one_that_is_slower_than_the_timeout(server):
    began = time.monotonic()
    answer = ask(server, "very slow")
    assert answer.status_code == 504 and "5 s" in answer.json()["error"]
    assert time.monotonic() - began < 9
    until(lambda: ask(server, 2).status_code == 200, "the next answer")


def test_one_that_always_fails_holds_nobody_up_for_long(tmp_path):
    with started(tmp_path, "Broken") as server, server.client() as client:
        began = time.monotonic()
        answer = client.post("/predict", json={"inputs": list(range(64))})
        assert answer.status_code == 500 and answer.json()["error"].endswith(".")
        assert time.monotonic() - began < 30
        assert server.stop() == 0
