"""Engines' outputs: facts, states, errors and the engine that answers, recorded or documented for later versions."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fakes import a_program
from seatrial import errors
from seatrial.backends.base import State
from seatrial.backends.containers import client
from seatrial.backends.containers.client import (
    ERRORS,
    addressed,
    container_state,
    docker_address,
    podman_address,
    pull_error,
    read_info,
    start_error,
    unavailable_error,
)
from seatrial.backends.containers.docker_and_podman import Docker, docker_facts, podman_facts
from seatrial.backends.containers.images import image_facts
from seatrial.errors import CommandError, EngineUnavailableError
from seatrial.findings.catalogue import LAYERS, by_id
from seatrial.findings.match import match_text
from seatrial.job.plan import EngineAddress
from seatrial.system.command import Completed
from seatrial.system.host import Host
from tables import cases, constant

RECORDINGS = Path(__file__).parents[3] / "recorded"


def recorded(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text())


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
    (tmp_path / "stderr").write_text(RECORDED[key]["stderr"])
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


RECORDED = recorded("engine-errors")

START = constant(__file__, "START")


@pytest.mark.parametrize("key", START)
def test_recorded_start_errors(key):
    name, message, fix = START[key]
    kind = getattr(errors, name)
    error = start_error(key.split("-")[0], ["x"], RECORDED[key]["exit_code"], RECORDED[key]["stderr"])
    assert type(error) is kind
    assert message in error.message
    assert fix in error.run


def test_what_nobody_knows_keeps_the_engines_own_words():
    error = start_error("docker", ["docker", "run"], 125, "docker: Error response from daemon: the moon is full\n\n")
    assert type(error) is CommandError
    assert error.message == "Docker could not start the container: the moon is full"
    assert error.exit_code_of_command == 125
    assert type(unavailable_error("podman", "Error: strange")) is EngineUnavailableError


def test_every_error_names_an_entry_of_the_catalogue():
    assert all(by_id(id) for id in ERRORS)


@pytest.mark.parametrize("key", RECORDED)
def test_explain_gives_the_same_advice(key):
    """Check an engine's refusal, and the cause and fix that explain gives for the same text."""
    stderr, engine = RECORDED[key]["stderr"], key.split("-")[0]
    if "-pull" in key:
        reported = pull_error(engine, "<reference>", stderr)
    else:
        reported = start_error(engine, ["x"], RECORDED[key]["exit_code"], stderr)
    found = match_text(stderr, LAYERS)
    found = [finding for finding in found if finding.id != "container-not-there"]  # it ended: no failure of a run
    assert bool(found) == (type(reported) is not CommandError)
    if found and key != "podman-pull-short-name":  # explain reads the image's name there, the caller knows it
        assert (reported.cause, reported.run) == (found[0].cause, found[0].fix)


@pytest.mark.parametrize(("engine", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")])
@pytest.mark.parametrize(
    "stderr", [RECORDED["docker-no-daemon"]["stderr"], "Get tcp://me:pa55word@box:1/info: EOF", ""]
)
def test_an_address_that_is_wrong_is_what_to_look_at(engine, variable, stderr):
    error = unavailable_error(engine, stderr, Host({variable: "tcp://me:pa55word@box:1"}))
    assert error.message == f"{engine.capitalize()} does not respond at {variable}=tcp://box:1"
    assert error.run.startswith(f"unset {variable} ") and "pa55word" not in f"{error.cause}"
    assert variable not in unavailable_error(engine, stderr, Host({})).message


@cases("engine", "printed", "finding")
@pytest.mark.parametrize("addressed", [False, True])
def test_why_an_engine_gave_no_answer_is_the_catalogues_entry(engine, printed, finding, addressed):
    environ = {"DOCKER_HOST": "tcp://box:1", "CONTAINER_HOST": "tcp://box:1"} if addressed else {}
    assert unavailable_error(engine, printed, Host(environ)).finding == finding


INFO = {"ID": "037572ac-04d6-49e1-af34-b80db855d761", "DockerRootDir": "/var/lib/docker"}


def context(host: str, **more: Any) -> dict[str, Any]:
    """Return the output of ``docker context inspect`` of 20.10 and 28.5, with ``more`` on top."""
    storage = {"MetadataPath": "<IN MEMORY>", "TLSPath": "<IN MEMORY>"}
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    return {"Name": "default", "Endpoints": endpoints, "TLSMaterial": {}, "Storage": storage, **more}


def test_docker_engine_with_its_data_elsewhere_is_another() -> None:
    """Docker 20.10 keeps its ID in /etc/docker/key.json, which two daemons of one machine share."""
    host = "unix:///var/run/docker.sock"
    one, two = (docker_address({**INFO, "DockerRootDir": root}, context(host), Host({})) for root in ("/a", "/b"))
    assert one.endpoint == two.endpoint == host and one.id != two.id and one.credentials is None


def test_docker_context_with_certificates_is_reached_with_them(tmp_path: Path) -> None:
    folder = tmp_path / "tls" / "docker"
    folder.mkdir(parents=True)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (folder / name).touch()
    reported = context("tcp://gpu:2376", TLSMaterial={"docker": ["ca.pem"]}, Storage={"TLSPath": str(tmp_path / "tls")})
    at = docker_address(INFO, reported, Host({}))
    keys = [f"--tlscacert={folder}/ca.pem", f"--tlscert={folder}/cert.pem", f"--tlskey={folder}/key.pem"]
    assert addressed(["docker"], at, tls=True) == ["docker", "--host", "tcp://gpu:2376", "--tlsverify", *keys]
    variables = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)}
    assert docker_address(INFO, context("tcp://gpu:2376"), Host(variables)) == at


def never(*words: str) -> Completed:
    raise AssertionError(words)


def test_podman_service_is_reached_at_the_url_it_was_requested_at() -> None:
    info = {"host": {"serviceIsRemote": True, "hostname": "gpu"}, "store": {"graphRoot": "/var/lib/containers/storage"}}
    host = Host({"CONTAINER_HOST": "ssh://ada@gpu/run/podman.sock", "CONTAINER_SSHKEY": "/k"})
    words = ["podman", "--url", "ssh://ada@gpu/run/podman.sock", "--identity", "/k"]
    assert addressed(["podman"], podman_address(info, never, host), tls=False) == words
    listing = '[{"Name": "gpu", "URI": "ssh://ada@gpu/p.sock", "Identity": "", "Default": true}]'
    found = podman_address(info, lambda *words: Completed(words, 0, listing), Host({}))
    assert found.endpoint == "ssh://ada@gpu/p.sock"


@pytest.mark.parametrize("endpoint", ["--config=/tmp/evil", "-H", "", "unix:///a b"])
def test_endpoint_that_a_client_would_read_as_an_option_is_refused(endpoint: str) -> None:
    """A lease is a file that any user may write."""
    with pytest.raises(ValidationError):
        EngineAddress(endpoint=endpoint, id="1")


@pytest.mark.parametrize(
    ("environ", "context", "script", "server", "used"),
    [
        ({}, "", False, "Docker/28.5", True),
        ({}, "", False, "Libpod/5.0", False),
        ({}, "", True, "Docker/28.5", False),
        ({"DOCKER_HOST": ""}, "rootless", False, "Docker/28.5", False),
        ({"DOCKER_CONTEXT": "far"}, "", False, "Docker/28.5", False),
        ({"DOCKER_HOST": "tcp://box:1"}, "", False, "Docker/28.5", False),
    ],
)
def test_dockers_socket_is_used_only_where_its_client_would_use_it(
    environ, context, script, server, used, tmp_path, monkeypatch
):
    (tmp_path / "docker").write_bytes(b"#!/bin/sh" if script else b"\x7fELF")
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": context}))
    there = {"DOCKER_HOST": f"unix://{tmp_path}/s", "DOCKER_CONFIG": str(tmp_path), "PATH": str(tmp_path), **environ}
    for name, value in there.items():
        monkeypatch.setenv(name, value)

    def answer() -> None:
        with suppress(OSError), listening.accept()[0] as peer:
            peer.recv(100)
            peer.sendall(f'HTTP/1.0 200 OK\r\nServer: {server}\r\n\r\n{{"ServerVersion": "28"}}'.encode())

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/s")
        listening.listen()
        threading.Thread(target=answer, daemon=True).start()
        found = client._docker_answer("/info")
    assert (found is not None) == used


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"Id": "sha256:1", "Size": 5}, {"Id": "sha256:1", "Size": 5}),
        ({"message": "No such image: box/a b?:1"}, None),
        ({"message": "page not found"}, OSError),
    ],
)
def test_image_is_looked_up_at_dockers_socket_and_by_its_client_where_that_has_no_answer(
    answer, found, tmp_path, monkeypatch
):
    (tmp_path / "docker").write_bytes(b"\x7fELF")
    (tmp_path / "docker").chmod(0o755)
    for name, value in {"DOCKER_HOST": f"unix://{tmp_path}/s", "PATH": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    requests = []

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as peer:
            requests.append(peer.recv(100))
            peer.sendall(f"HTTP/1.0 404 X\r\nServer: Docker/28.5\r\n\r\n{json.dumps(answer)}".encode())

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/s")
        listening.listen()
        threading.Thread(target=serve, daemon=True).start()
        docker = client.EngineClient(Docker.dialect)
        if found is OSError:
            with pytest.raises(OSError, match="'docker'"):  # the program, which is none, was called
                docker.inspect("image", "box/a b?:1")
        else:
            assert docker.inspect("image", "box/a b?:1") == found
    assert requests == [b"GET /images/box/a%20b%3F:1/json HTTP/1.0\r\n\r\n"]
