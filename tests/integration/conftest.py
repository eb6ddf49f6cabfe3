"""The real engines, each skipped with the reason when it cannot run a container here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from seatrial.backends.docker import Docker
from seatrial.backends.podman import Podman

IMAGE = "python:3.11-slim-bookworm"

#: For virtual machines whose own limits are below Podman's defaults and that cannot make network namespaces.
LOW_LIMITS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
"""


def _why_not(backend: Docker | Podman) -> str | None:
    """What stops this engine from running a container of the base image, or None."""
    facts = backend.facts()
    if not facts.available:
        return facts.reason
    if backend.image(IMAGE) is None:
        return f"{backend.name} has no image {IMAGE}"
    argv = [*backend.call, "run", "--rm", "--pull", "never", IMAGE, "true"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return None if ended.returncode == 0 else f"{backend.name} runs no container: {ended.stderr.strip()[-300:]}"


@pytest.fixture(scope="session")
def docker_backend() -> Docker:
    if reason := _why_not(Docker()):
        pytest.skip(reason)
    return Docker()


@pytest.fixture(scope="session")
def podman_backend(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    if _why_not(Podman()) is None:
        return Podman()
    settings = Path(tmp_path_factory.mktemp("podman")) / "containers.conf"
    settings.write_text(LOW_LIMITS)
    call = ["env", f"CONTAINERS_CONF={settings}", "podman"]
    if reason := _why_not(Podman(call)):
        pytest.skip(reason)
    return Podman(call)


@pytest.fixture(
    params=[
        pytest.param("docker_backend", marks=pytest.mark.docker),
        pytest.param("podman_backend", marks=pytest.mark.podman),
    ]
)
def engine(request: pytest.FixtureRequest) -> Docker | Podman:
    """Docker, then Podman."""
    backend: Docker | Podman = request.getfixturevalue(request.param)
    return backend
