"""Messages for an unusable cluster. Ray's own are those of version 2.60."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from seatrial import errors
from seatrial.errors import EngineUnavailableError, UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import Job, Target
from seatrial.search.ray_cluster import RayNode, _node_check, connect, connection_error, needs_of
from tables import cases


@cases("reported", "where", "kind", "message", "run")
def test_rays_words_become_a_sentence_and_a_command(
    reported: str, where: str, kind: str, message: str, run: str
) -> None:
    error = connection_error(where, reported)
    assert type(error) is getattr(errors, kind) and "\n" not in error.message
    assert message in error.message and run in (error.run or "")


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_cluster_that_is_not_there_is_reported_at_once(closed_port: int) -> None:
    with pytest.raises(EngineUnavailableError, match=f"No Ray cluster answers at 127.0.0.1:{closed_port}") as refused:
        connect(f"127.0.0.1:{closed_port}")
    assert f"ray start --head --port {closed_port}" in (refused.value.run or "")


@pytest.mark.parametrize("address", ["10.0.0.1", "head:port", ":6379", "ray://10.0.0.1:10001"])
def test_an_address_that_cannot_be_intended(address: str) -> None:
    with pytest.raises(UsageError) as refused:
        connect(address)
    assert ":6379" in (refused.value.run or "")


def job(gpus: str, **keys: Any) -> Job:
    target = Target(kind="script", value="train.py")
    return Job(project=Path("/project"), target=target, gpus=GpuRequest.parse(gpus), **keys)


HEAD = RayNode("1", "head", {"CPU": 8.0})
BIG = RayNode("2", "big", {"CPU": 64.0, "GPU": 8.0})


@cases("gpus", "needs", "capacity")
def test_what_a_trial_takes(gpus: str, needs: dict[str, float], capacity: int) -> None:
    assert needs_of(job(gpus), [HEAD, BIG]) == needs
    assert BIG.capacity(needs) == capacity
    assert bool(HEAD.capacity(needs)) == (gpus == "none")


def test_auto_is_the_cpu_where_no_node_has_a_gpu() -> None:
    assert needs_of(job("auto"), [HEAD]) == {"CPU": 1}


@cases("gpus", "keys", "kind", "message")
def test_what_no_node_can_give(gpus: str, keys: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises(getattr(errors, kind), match=message) as refused:
        needs_of(job(gpus, **keys), [HEAD])
    assert refused.value.run


#: Stands for a node without this package.
ON_A_NODE = """
import json, sys
sys.modules["seatrial"] = None
from ray import cloudpickle
print(json.dumps(cloudpickle.loads(sys.stdin.buffer.read())("docker", False, "/nowhere", "")))
"""


def test_a_node_without_seatrial_answers_that_it_has_none() -> None:
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    sent = cloudpickle.dumps(_node_check())
    done = subprocess.run([sys.executable, "-c", ON_A_NODE], input=sent, capture_output=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["version"] == "none" and "seatrial" in answer["problem"]
