"""Engines that are queried for a lease, and the state of a run whose engine cannot be reached."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from seatrial.backends.base import Handle
from seatrial.job.plan import EngineAddress
from seatrial.runs.leases import leases
from seatrial.system.host import Host
from seatrial.system.records import Process
from tables import cases

CLIENT = """#!/bin/sh
echo "$*" >> {called}
case "$*" in
*" ps "*) ;;
*"container inspect"*) echo "Error: No such container" >&2; exit 1 ;;
*info*) echo '{{"ID": "7c2e", "DockerRootDir": "/var/lib/docker", "ServerVersion": "99"}}' ;;
*) echo '{{"Endpoints": {{"docker": {{"Host": "unix:///run/engine.sock"}}}}}}' ;;
esac
"""


@cases("endpoint", "id", "held", "called")
def test_lease_is_void_only_by_the_answer_of_its_own_local_engine(
    tmp_path: Path, endpoint: str, id: str, held: bool, called: bool
) -> None:
    """Anybody writes leases: no client is led to another machine by one."""
    program, calls = tmp_path / "docker", tmp_path / "called"
    program.write_text(CLIENT.format(called=calls))
    program.chmod(0o755)
    environ = {"SEATRIAL_DOCKER": str(program), "SEATRIAL_LEASES": str(tmp_path / "l"), "SEATRIAL_STATE": str(tmp_path)}
    engine = EngineAddress(endpoint=endpoint.format(socket=tmp_path / "s"), id=id)
    found = leases(Host(environ))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with found.locked():
            found.take(["GPU-1"], "run-1", "docker", engine=engine)
        assert '"engine":{"endpoint":' in next((tmp_path / "l").glob("*.json")).read_text()
        found.bind("run-1", Handle(backend="docker", id="a" * 64, engine=engine))
        assert bool(found.current()) is held
    assert calls.exists() is called


@pytest.mark.parametrize(("id", "held"), [("another", True), ("7c2e /var/lib/docker", False)])
def test_lease_of_a_killed_launcher_is_held_while_another_engine_answers(tmp_path: Path, id: str, held: bool) -> None:
    program = tmp_path / "docker"
    program.write_text(CLIENT.format(called=tmp_path / "called"))
    program.chmod(0o755)
    environ = {"SEATRIAL_DOCKER": str(program), "SEATRIAL_LEASES": str(tmp_path / "l"), "SEATRIAL_STATE": str(tmp_path)}
    record = tmp_path / "projects" / "p" / "runs" / "run-1"
    record.mkdir(parents=True)
    found = leases(Host(environ))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        engine = EngineAddress(endpoint=f"unix://{tmp_path / 's'}", id=id)
        with found.locked():
            found.take(["GPU-1"], "run-1", "docker", record, engine)
        found.hand_over("run-1", Process(pid=1, started_ticks=1))
        assert bool(found.current()) is held
