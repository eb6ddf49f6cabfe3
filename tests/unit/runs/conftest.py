"""A project and its runs, with a state of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.runs.store import RunStore
from seatrial.system.host import Host


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"SEATRIAL_STATE": str(tmp_path / "state"), "SEATRIAL_LEASES": str(tmp_path / "leases")}


@pytest.fixture
def store(tmp_path: Path, environ: dict[str, str]) -> RunStore:
    (tmp_path / "project").mkdir()
    return RunStore(tmp_path / "project", Host(environ))
