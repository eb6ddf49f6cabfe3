"""The arena: on each engine a project to attack from, and around it what no attack may touch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from attacks_harness import Arena

ENGINES = [
    pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.xdist_group("attacks-docker")]),
    pytest.param("podman", marks=[pytest.mark.podman, pytest.mark.xdist_group("attacks-podman")]),
]


@pytest.fixture(scope="session", params=ENGINES)
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """On Docker, then on Podman: one for all tests, so that containers are shared and bystanders stay throughout."""
    engine = request.getfixturevalue(f"{request.param}_backend").call
    environ = dict(request.getfixturevalue("environ"))
    environ[f"SEATRIAL_{request.param.upper()}"] = shlex.join(engine)
    made = Arena(tmp_path_factory.mktemp(f"arena-{request.param}"), request.param, engine, environ)
    yield made
    made.close()


@pytest.fixture
def docker_arena(arena: Arena) -> Arena:
    """Where one engine is enough: what is tried meets seatrial before any engine, or is the same to both."""
    if arena.backend != "docker":
        pytest.skip("the same on every engine")
    return arena
