"""The backend that is taken, and the reason given for the others."""

import pytest

from fakes import AbsentBackend, FakeBackend
from seatrial.backends import table
from seatrial.backends.base import EngineFacts
from seatrial.errors import EngineUnavailableError
from seatrial.system.host import Host


def with_backends(monkeypatch, *backends):
    monkeypatch.setattr(table, "BACKENDS", {fake.name: lambda environ, fake=fake: fake for fake in backends})


def test_auto_takes_the_first_that_works_and_names_the_reason(monkeypatch):
    with_backends(monkeypatch, AbsentBackend("docker"), FakeBackend("podman"), FakeBackend("local"))
    backend, facts, choice = table.choose("auto", Host({}))
    assert backend.name == facts.name == choice.value == "podman"
    assert choice.reason == "first available: podman 99 responds; not docker: docker is not installed"


def test_one_requested_is_taken_or_refused(monkeypatch):
    with_backends(monkeypatch, AbsentBackend("docker"), FakeBackend("podman"))
    assert table.choose("podman", Host({}))[0].name == "podman"
    with pytest.raises(EngineUnavailableError, match="Docker is not installed") as caught:
        table.choose("docker", Host({}))
    assert caught.value.run == "install docker"


def test_docker_desktop_is_passed_over_for_gpus_only(monkeypatch):
    desktop = EngineFacts("docker", available=True, reason="Docker Desktop responds", desktop=True)
    with_backends(monkeypatch, FakeBackend("docker", desktop), FakeBackend("local"))
    monkeypatch.setattr(table.platform, "release", lambda: "6.8.0-generic")
    assert table.choose("auto", Host({}))[0].name == "docker"
    assert table.choose("auto", Host({}), gpus_wanted=True)[0].name == "local"
    monkeypatch.setattr(table.platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert table.choose("auto", Host({}), gpus_wanted=True)[0].name == "docker"
