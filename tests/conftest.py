"""Every test has a state folder of its own session, never the developer's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

#: The real engines and the cluster, for tests/integration and tests/attacks.
pytest_plugins = ["engines"]


@pytest.fixture(scope="session", autouse=True)
def state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("SEATRIAL_STATE")
    os.environ["SEATRIAL_STATE"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["SEATRIAL_STATE"]
    else:
        os.environ["SEATRIAL_STATE"] = before
