"""``docker info``, ``podman info`` and ``inspect`` → facts and states, from recordings and, for later versions, from
what their API documentation names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
CLIENT = Path("/usr/bin/docker")


def recorded(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


@pytest.fixture
def engine_that(tmp_path, monkeypatch):
    """Makes a stand-in for an engine's program with the given shell script, where no engine is chosen."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def make(script):
        program = tmp_path / "engine"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return [str(program)]

    return make


def docker_info(**changes):
    return {**recorded("docker-info-20.10.24"), **changes}


def test_docker_desktop_has_no_use_for_the_hosts_hook():
    facts = docker_facts(docker_info(OperatingSystem="Docker Desktop"), hook=True, client=CLIENT)
    assert facts.desktop
    assert not facts.nvidia_hook
    assert "Desktop" in facts.reason


def test_podman_rootless():
    info = recorded("podman-info-4.3.1-rootless")
    info["host"]["idMappings"]["uidmap"].append({"container_id": 1, "host_id": 100000, "size": 65536})
    facts = podman_facts(info, ())
    assert (facts.available, facts.reason) == (True, "Podman 4.3.1 (rootless) responds")
    assert facts.rootless


def test_podman_rootless_without_ids_to_map_cannot_keep_the_callers():
    facts = podman_facts(recorded("podman-info-4.3.1-rootless"), ())
    assert not facts.available
    assert "no subordinate user IDs" in facts.reason
    assert "--add-subuids" in facts.fix


@cases("key", "reason", "fix")
def test_a_docker_that_does_not_answer_names_the_reason(engine_that, tmp_path, key, reason, fix):
    (tmp_path / "stderr").write_text(recorded("engine-errors")[key]["stderr"])
    facts = Docker(engine_that(f"echo '{{}}'; cat {tmp_path}/stderr >&2; exit 1")).facts()
    assert not facts.available
    assert reason in facts.reason
    assert fix in facts.fix


def test_an_engine_that_hangs_is_given_up(engine_that, monkeypatch):
    monkeypatch.setattr("seatrial.backends.containers.client.INFO_TIMEOUT_S", 0.2)
    facts = Docker(engine_that("exec sleep 60")).facts()
    assert not facts.available
    assert "did not respond within 0.2 s" in facts.reason
    assert facts.fix == "sudo systemctl restart docker"


def inspected(**state):
    return {"State": {"Status": "exited", "ExitCode": 0, "OOMKilled": False, "Error": "", **state}}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, State("exited", 0)),
        ({"ExitCode": 137, "OOMKilled": True}, State("exited", 137, oom_killed=True)),
        ({"Status": "running"}, State("running")),
        ({"Status": "paused"}, State("running")),
        ({"Status": "created"}, State("created")),
        ({"Status": "initialized"}, State("created")),
        ({"Status": "dead", "ExitCode": 1, "Error": "why"}, State("exited", 1, error="why")),
    ],
)
def test_container_state(state, expected):
    assert container_state(inspected(**state)) == expected


def test_image_facts():
    facts = image_facts(
        {
            "Id": "abc",
            "RepoDigests": ["localhost/x@sha256:1", "docker.io/library/x@sha256:2"],
            "Config": {"Env": ["PATH=/bin", "A=b=c"], "Entrypoint": ["/run"], "Cmd": None},
        }
    )
    assert (facts.id, facts.digest) == ("sha256:abc", "sha256:2")
    assert facts.env == {"PATH": "/bin", "A": "b=c"}
    assert (facts.entrypoint, facts.cmd, facts.workdir) == (("/run",), (), "")


# ---------------------------------------------------------------- no answer


@cases("exit_code", "stdout", "stderr", "words")
def test_no_answer(exit_code: int, stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(EngineUnavailableError) as caught:
        read_info("docker", Docker.dialect.info_key, Completed(("docker", "info"), exit_code, stdout, stderr), Host({}))
    assert caught.value.message == words and caught.value.cause and caught.value.run


def test_a_star_before_the_reason_is_left_out() -> None:
    ended = Completed(("docker", "info"), 1, "", "errors pretty printing info\n* speak TLS to me")
    with pytest.raises(EngineUnavailableError, match=r"^Docker does not respond: speak TLS to me$"):
        read_info("docker", Docker.dialect.info_key, ended, Host({}))
