"""The memory of what was allowed: exact, private, and worth nothing once it cannot be read."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seatrial.system.host import Host
from seatrial.system.records import MAX_ENTRIES, TrustStore

LINES = ["mounts /a read-only at /a", "gives the target your variable B"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"SEATRIAL_STATE": str(tmp_path / "state")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state" / "trust.json"


def test_exactly_these_lines_of_this_project_in_any_order(tmp_path: Path, environ: dict[str, str]) -> None:
    TrustStore(Host(environ)).allow(tmp_path, LINES)
    store = TrustStore(Host(environ))
    assert store.problem is None
    assert store.allows(tmp_path, LINES) and store.allows(tmp_path, LINES[::-1])
    assert not store.allows(tmp_path, LINES[:1])
    assert not store.allows(tmp_path, [*LINES, "runs on this machine"])
    assert not store.allows(tmp_path, ["".join(LINES)])
    assert not store.allows(tmp_path / "other", LINES)


def test_writers_at_once_lose_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    projects = [tmp_path / str(number) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda project: TrustStore(Host(environ)).allow(project, LINES), projects))
    assert all(TrustStore(Host(environ)).allows(project, LINES) for project in projects)


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path, environ: dict[str, str], file: Path) -> None:
    old = {str(number): {"project": "x", "at": "y"} for number in range(MAX_ENTRIES)}
    file.write_text(json.dumps({"allowed": old}))
    TrustStore(Host(environ)).allow(tmp_path, LINES)
    kept = json.loads(file.read_text())["allowed"]
    assert len(kept) == MAX_ENTRIES and "0" not in kept and "1" in kept
