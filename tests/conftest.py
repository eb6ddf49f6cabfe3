"""Every test has a state folder of its own session, never the developer's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

#: The real engines and the cluster, for tests/integration and tests/attacks.
pytest_plugins = ["engines"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The core tier runs a test of both engines on Docker; on Podman, too, where it is marked ``both_engines``."""
    for item in items:
        if item.get_closest_marker("podman") and _repeats_docker(item) and not item.get_closest_marker("both_engines"):
            item.add_marker(pytest.mark.slow)


def _repeats_docker(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and bool(
        {"podman", "podman_backend"} & {str(value) for value in callspec.params.values()}
    )


@pytest.fixture(scope="session", autouse=True)
def state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("SEATRIAL_STATE")
    os.environ["SEATRIAL_STATE"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["SEATRIAL_STATE"]
    else:
        os.environ["SEATRIAL_STATE"] = before
