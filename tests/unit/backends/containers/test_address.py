"""Which engine answers, as real clients print it, and the options that lead back to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from seatrial.backends.containers.client import addressed, docker_address, podman_address
from seatrial.job.plan import EngineAddress
from seatrial.system.command import Completed
from seatrial.system.host import Host

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
