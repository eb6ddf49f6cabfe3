"""Messages for an unusable cluster. Ray's own are those of version 2.60."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from seatrial.errors import CapacityError, EngineUnavailableError, UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import Job, Target
from seatrial.search.ray_tuner import RayNode, connect, connection_error, needs_of
from tables import cases

#: ray/_private/utils.py, check_version_info.
OTHER_RAY = """Version mismatch: The cluster was started with:
    Ray: 2.49.2
    Python: 3.11.7
This process on node 192.0.2.2 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""
OTHER_PYTHON = OTHER_RAY.replace("2.49.2", "2.60.0").replace("Python: 3.11.7\nThis", "Python: 3.12.4\nThis")
NO_TOKEN = (
    "RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Note: RAY_AUTH_MODE is currently "
    "'disabled' (not 'token'). Ensure that the token for the cluster is available in a local file"
)
NOT_STARTED = (
    "Could not find any running Ray instance. Please specify the one to connect to by setting `--address` flag or "
    "`RAY_ADDRESS` environment variable."
)


@pytest.mark.parametrize(
    ("reported", "where", "kind", "message", "run"),
    [
        (OTHER_RAY, "a:1", UsageError, "Ray 2.49.2 on Python 3.11.7, and here are Ray 2.60.0", "ray[tune]==2.49.2"),
        (OTHER_PYTHON, "a:1", UsageError, "on Python 3.12.4, and here are Ray 2.60.0 on Python 3.11.7", "3.12.4"),
        (NO_TOKEN, "a:1", UsageError, "requires a token that this machine does not have", "auth_token"),
        (NOT_STARTED, "auto", EngineUnavailableError, "Ray cannot be reached at auto: Could not", "ray start --head"),
        ("something new\nand more", "a:1", EngineUnavailableError, "reached at a:1: something new", "ray start"),
    ],
)
def test_rays_words_become_a_sentence_and_a_command(
    reported: str, where: str, kind: type, message: str, run: str
) -> None:
    error = connection_error(where, reported)
    assert type(error) is kind
    assert message in error.message
    assert "\n" not in error.message
    assert run in (error.run or "")


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


@cases("gpus", "needs", "room")
def test_what_a_trial_takes(gpus: str, needs: dict[str, float], room: int) -> None:
    assert needs_of(job(gpus), [HEAD, BIG]) == needs
    assert BIG.capacity(needs) == room
    assert bool(HEAD.capacity(needs)) == (gpus == "none")


def test_auto_is_the_cpu_where_no_node_has_a_gpu() -> None:
    assert needs_of(job("auto"), [HEAD]) == {"CPU": 1}


@pytest.mark.parametrize(
    ("gpus", "keys", "kind", "message"),
    [
        ("1", {}, CapacityError, "requires 1 CPUs and 1 GPUs, and no node"),
        ("none", {"cpus": 9.0}, CapacityError, "requires 9 CPUs and 0 GPUs, and no node"),
        ("device=0", {}, UsageError, "means GPUs of one machine"),
        ("mig-1g.10gb", {}, UsageError, "means GPUs of one machine"),
        ("all", {}, UsageError, "means GPUs of one machine"),
    ],
)
def test_what_no_node_can_give(gpus: str, keys: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message) as refused:
        needs_of(job(gpus, **keys), [HEAD])
    assert refused.value.run
