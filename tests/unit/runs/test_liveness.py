"""Engines that are queried for a lease, and the state of a run whose engine cannot be reached."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import a_program
from seatrial.backends.base import Handle
from seatrial.job.plan import EngineAddress
from seatrial.runs.leases import leases
from seatrial.system.host import Host
from seatrial.system.records import Process
from tables import cases

CLIENT = """echo "$*" >> {called}
case "$*" in
*" ps "*) ;;
*"container inspect"*) echo "Error: No such container" >&2; exit 1 ;;
*info*) echo '{{"ID": "7c2e", "DockerRootDir": "/var/lib/docker", "ServerVersion": "99"}}' ;;
*) echo '{{"Endpoints": {{"docker": {{"Host": "unix:///run/engine.sock"}}}}}}' ;;
esac
"""


class Leased:
    """A GPU leased to a run whose engine is a stand-in that has no container, and the calls made to it."""

    def __init__(self, folder: Path, engine: EngineAddress, record: Path | None = None) -> None:
        self.calls = folder / "called"
        a_program(folder / "docker", CLIENT.format(called=self.calls))
        names = {"SEATRIAL_DOCKER": "docker", "SEATRIAL_LEASES": "l", "SEATRIAL_STATE": "."}
        self.leases = leases(Host({variable: str(folder / name) for variable, name in names.items()}))
        with self.leases.locked():
            self.leases.take(["GPU-1"], "run-1", "docker", record, engine)


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        yield tmp_path / "s"


@cases("endpoint", "id", "held", "called")
def test_lease_is_void_only_by_the_answer_of_its_own_local_engine(
    tmp_path: Path, socket_path: Path, endpoint: str, id: str, held: bool, called: bool
) -> None:
    """Anybody writes leases: no client is led to another machine by one."""
    engine = EngineAddress(endpoint=endpoint.format(socket=socket_path), id=id)
    leased = Leased(tmp_path, engine)
    assert '"engine":{"endpoint":' in next((tmp_path / "l").glob("*.json")).read_text()
    leased.leases.change("run-1", handle=Handle(backend="docker", id="a" * 64, engine=engine))
    assert bool(leased.leases.current()) is held and leased.calls.exists() is called


@pytest.mark.parametrize(("id", "held"), [("another", True), ("7c2e /var/lib/docker", False)])
def test_lease_of_a_killed_launcher_is_held_while_another_engine_answers(
    tmp_path: Path, socket_path: Path, id: str, held: bool
) -> None:
    record = tmp_path / "projects" / "p" / "runs" / "run-1"
    record.mkdir(parents=True)
    leased = Leased(tmp_path, EngineAddress(endpoint=f"unix://{socket_path}", id=id), record)
    leased.leases.change("run-1", launcher=Process(pid=1, started_ticks=1))
    assert bool(leased.leases.current()) is held
