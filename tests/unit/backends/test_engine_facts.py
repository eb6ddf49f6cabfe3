"""``docker info``, ``podman info`` and ``inspect`` → facts and states, from recordings and, for later versions, from
what their API documentation names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import a_program
from seatrial.backends.base import State
from seatrial.backends.containers.client import container_state, read_info
from seatrial.backends.containers.docker import Docker, docker_facts
from seatrial.backends.containers.images import image_facts
from seatrial.backends.containers.podman import podman_facts
from seatrial.errors import EngineUnavailableError
from seatrial.system.command import Completed
from seatrial.system.host import Host
from tables import cases

RECORDED = Path(__file__).parents[2] / "recorded"


def recorded(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


@pytest.fixture
def engine_that(tmp_path, monkeypatch):
    """Makes a stand-in for an engine's program with the given shell script, where no engine is chosen."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return lambda script: [a_program(tmp_path / "engine", script)]


def test_docker_desktop_has_no_use_for_the_hosts_hook():
    info = {**recorded("docker-info-20.10.24"), "OperatingSystem": "Docker Desktop"}
    facts = docker_facts(info, hook=True, client=Path("/usr/bin/docker"))
    assert facts.desktop and not facts.nvidia_hook and "Desktop" in facts.reason


def test_podman_rootless_needs_ids_to_map():
    info = recorded("podman-info-4.3.1-rootless")
    facts = podman_facts(info, ())
    assert not facts.available and "no subordinate user IDs" in facts.reason and "--add-subuids" in facts.fix
    info["host"]["idMappings"]["uidmap"].append({"container_id": 1, "host_id": 100000, "size": 65536})
    facts = podman_facts(info, ())
    assert (facts.available, facts.rootless, facts.reason) == (True, True, "Podman 4.3.1 (rootless) responds")


@cases("key", "reason", "fix")
def test_a_docker_that_does_not_answer_names_the_reason(engine_that, tmp_path, key, reason, fix):
    (tmp_path / "stderr").write_text(recorded("engine-errors")[key]["stderr"])
    facts = Docker(engine_that(f"echo '{{}}'; cat {tmp_path}/stderr >&2; exit 1")).facts()
    assert not facts.available and reason in facts.reason and fix in facts.fix


def test_an_engine_that_hangs_is_given_up(engine_that, monkeypatch):
    monkeypatch.setattr("seatrial.backends.containers.client.INFO_TIMEOUT_S", 0.2)
    facts = Docker(engine_that("exec sleep 60")).facts()
    assert not facts.available and "did not respond within 0.2 s" in facts.reason
    assert facts.fix == "sudo systemctl restart docker"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, State("exited", 0)),
        ({"ExitCode": 137, "OOMKilled": True}, State("exited", 137, oom_killed=True)),
        ({"Status": "running"}, State("running")),
        ({"Status": "paused"}, State("running")),
        ({"Status": "initialized"}, State("created")),
        ({"Status": "dead", "ExitCode": 1, "Error": "why"}, State("exited", 1, error="why")),
        (
            {"StartedAt": "2026-11-20T10:00:00.123456789Z", "FinishedAt": "2026-11-20T12:00:01.6+02:00"},
            State("exited", 0, seconds=1.476543211),
        ),
    ],
)
def test_container_state(state, expected):
    inspected = {"Status": "exited", "ExitCode": 0, "OOMKilled": False, "Error": "", **state}
    assert container_state({"State": inspected}) == expected


def test_image_facts():
    config = {"Env": ["PATH=/bin", "A=b=c"], "Entrypoint": ["/run"], "Cmd": None}
    digests = ["localhost/x@sha256:1", "docker.io/library/x@sha256:2"]
    facts = image_facts({"Id": "abc", "RepoDigests": digests, "Config": config})
    assert (facts.id, facts.digest, facts.env) == ("sha256:abc", "sha256:2", {"PATH": "/bin", "A": "b=c"})
    assert (facts.entrypoint, facts.cmd, facts.workdir) == (("/run",), (), "")


@cases("exit_code", "stdout", "stderr", "words")
def test_no_answer(exit_code: int, stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(EngineUnavailableError) as caught:
        read_info("docker", Docker.dialect.info_key, Completed(("docker", "info"), exit_code, stdout, stderr), Host({}))
    assert words == caught.value.message and caught.value.cause and caught.value.run
