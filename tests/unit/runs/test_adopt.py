"""A launcher that was killed between the start and its note of it: with a real agent, and a real receipt at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import a_local_job, untold
from seatrial import events
from seatrial.backends.local import Local
from seatrial.runs import leases, run_actions
from seatrial.runs.build import make_ready
from seatrial.runs.launch import prepare
from seatrial.runs.leases import handle_of
from seatrial.runs.run import Run
from seatrial.runs.status import finalise, line_of
from seatrial.runs.store import RunStore
from seatrial.system.records import Process

#: Ends cleanly on SIGTERM.
SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.05)
"""


class Killed:
    """A run of the local backend whose launcher was killed at some moment of its start."""

    def __init__(self, folder: Path) -> None:
        self.job, self.host = a_local_job(folder, SCRIPT)
        self.store = RunStore(self.job.project, self.host)

    def prepare(self, *, dies: bool = True) -> Run:
        prepared = prepare(self.job, self.host, building=untold)
        make_ready(prepared.plan, prepared.backend, prepared.run, prepared.host, lambda line: None)
        self.plan = prepared.plan
        if dies:
            prepared.run.hand_over(Process(pid=2**22 - 1, started_ticks=1))
        return prepared.run

    def start(self, run: Run) -> None:
        """Record the engine's action without writing it down."""
        Local().start(self.plan, run.folder)
        deadline_s = time.monotonic() + 240
        while b"ready" not in _bytes(run.folder / "stdout.log"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def clean(self) -> None:
        for run in self.store.all():
            if (handle := Local().find(run.id, run.folder)) is not None:
                Local().kill(handle)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    made = Killed(tmp_path)
    yield made
    made.clean()


def test_it_is_found_and_lives_on(killed: Killed) -> None:
    run = killed.prepare()
    killed.start(run)
    assert run.handle() is None
    [line] = [line_of(run, killed.host) for run in killed.store.all()]
    assert (line.id, line.status) == (run.id, "running")
    assert run.handle() is not None and run_actions.is_live(run, killed.host)
    launched = list(events.of_type(events.read(str(run.events_path))[0], events.HostLaunched))
    assert len(launched) == 1
    receipt = run_actions.stop(run, killed.host)
    assert (receipt.exit_cause.id, receipt.exit_code) == ("stopped", 0)
    assert events.follow_chain(str(run.events_path)).broken_at is None


def test_while_its_launcher_lives_nobody_steps_in(killed: Killed) -> None:
    run = killed.prepare(dies=False)
    killed.start(run)
    assert handle_of(run, killed.host) is None and run.handle() is None
    assert finalise(run, killed.host) is None


def test_two_who_look_at_once_write_it_down_once(killed: Killed) -> None:
    run = killed.prepare()
    killed.start(run)
    program = """
import sys
from pathlib import Path
from seatrial.runs.leases import handle_of
from seatrial.runs.store import RunStore
from seatrial.system.host import Host
run = RunStore(Path(sys.argv[1]), Host()).find("last")
print(handle_of(run, Host()).id)
"""
    argv = [sys.executable, "-c", program, str(killed.job.project)]
    both = [subprocess.Popen(argv, env=killed.host.env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate()[0] for process in both}
    assert len(answers) == 1 and answers != {""}
    assert len(list(events.of_type(events.read(str(run.events_path))[0], events.HostLaunched))) == 1


def test_its_gpu_is_not_given_away_meanwhile(killed: Killed) -> None:
    run = killed.prepare()
    held = leases.leases(killed.host)
    with held.locked():
        held.take(["GPU-0"], run.id, "local", run.folder)
    held.change(run.id, launcher=Process(pid=2**22 - 1, started_ticks=1))
    assert held.current() == {}  # nothing of it runs
    killed.start(run)
    assert held.current() == {"GPU-0": run.id}
    run_actions.remove(killed.store, run, killed.host, force=True)
    assert held.current() == {} and not list(held.folder.glob("*.json"))
