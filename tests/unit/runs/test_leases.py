"""Leases: held while the launcher or the run lives, void afterwards, without anybody cleaning up."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seatrial.backends.base import Handle
from seatrial.errors import UntrustedPathError
from seatrial.runs import leases as module
from seatrial.runs.leases import Lease, Leases
from seatrial.system.records import Process

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def live():
    """Return the IDs of running containers."""
    return set()


@pytest.fixture
def leases(tmp_path, live):
    return Leases(tmp_path / "leases", lambda handle: handle.id in live)


def take(leases, run_id="run-1", gpu=GPU, **more):
    with leases.locked():
        leases.take([gpu], run_id, **more)


def test_a_lease_holds_while_its_launcher_lives(leases):
    take(leases)
    assert leases.current() == {GPU: "run-1"}


def test_a_lease_is_void_once_its_launcher_died_before_the_start(leases):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    dead = Lease(gpu_uuid=GPU, run_id="run-1", launcher=Process(pid=child.pid, started_ticks=1))
    with leases.locked():
        (leases.folder / dead.name).write_text(dead.model_dump_json())
    assert leases.current() == {}


def test_a_lease_that_is_handed_over_lives_as_long_as_the_process_that_got_it(leases):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    take(leases)
    process = Process.of(child.pid)
    assert process is not None
    leases.change("run-1", launcher=process)
    assert leases.current() == {GPU: "run-1"}
    child.communicate(b"\n")
    assert leases.current() == {} and Process.of(child.pid) is None


def test_a_started_run_holds_its_lease_until_its_container_is_gone(leases, live):
    take(leases)
    live.add("container")
    leases.change("run-1", handle=Handle(backend="docker", id="container"))
    assert leases.current() == {GPU: "run-1"}
    live.clear()
    assert leases.current() == {}


def test_a_void_lease_of_another_run_is_never_in_the_way(leases, live):
    take(leases)
    leases.change("run-1", handle=Handle(backend="docker", id="ended"))
    take(leases, "run-2")
    assert leases.current() == {GPU: "run-2"}


def test_a_started_run_whose_launcher_could_not_report_it_is_requested(tmp_path, live):
    """Killed between the engine's start and its note: the backend knows, and gets what the lease keeps."""
    requested = []

    def find(lease):
        requested.append((lease.run_id, lease.backend, lease.record))
        return Handle(backend="docker", id="found") if lease.run_id == "run-1" else None

    leases = Leases(tmp_path / "leases", lambda handle: handle.id in live, find)
    for run_id, gpu in (("run-1", GPU), ("run-2", "GPU-2")):
        take(leases, run_id, gpu, backend="docker", record=tmp_path / "record")
    assert leases.current() == {GPU: "run-1", "GPU-2": "run-2"}
    assert requested == []  # its launcher lives: no backend is queried
    for path in leases.folder.glob("*.json"):
        lease = Lease.model_validate_json(path.read_text())
        dead = Process(pid=os.getpid(), started_ticks=1)
        path.write_text(lease.model_copy(update={"launcher": dead}).model_dump_json())
    assert leases.current() == {}
    live.add("found")
    assert leases.current() == {GPU: "run-1"}
    assert ("run-1", "docker", str(tmp_path / "record")) in requested


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "huge", "garbage", "wrong types"])
def test_what_others_put_into_the_folder_stops_nobody(leases, live, tmp_path, kind):
    """Every user of the machine may write there."""
    live.add("container")
    take(leases)
    mine = leases.folder / f"{GPU}--run-1.json"
    (tmp_path / "elsewhere.json").write_text(mine.read_text().replace("run-1", "run-9").replace(GPU, "GPU-9"))
    path = leases.folder / "GPU-9--run-9.json"
    {
        "link": lambda: path.symlink_to(tmp_path / "elsewhere.json"),
        "dangling": lambda: path.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "huge": lambda: (path.touch(), os.truncate(path, 2**40)),
        "garbage": lambda: path.write_bytes(b"\xff{" + b"[" * 5000),
        "wrong types": lambda: path.write_text('{"gpu_uuid": 7, "run_id": [], "launcher": null}'),
    }[kind]()
    assert leases.current() == {GPU: "run-1"}
    leases.change("run-9", handle=Handle(backend="docker", id="container"))
    leases.change("run-1", handle=Handle(backend="docker", id="container"))
    leases.release("run-1")
    assert leases.current() == {}
    theirs = (tmp_path / "elsewhere.json").read_text()
    assert "run-9" in theirs and "container" not in theirs


def test_a_link_in_place_of_the_folder_opens_nobodys_home(leases, tmp_path):
    (tmp_path / "home").mkdir(mode=0o700)
    leases.folder.symlink_to(tmp_path / "home")
    with pytest.raises(UntrustedPathError), leases.locked():
        pass
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700 and list((tmp_path / "home").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become two other users")
def test_two_users_share_the_folder():
    """Seen on a machine where root had leased first: another user could not open the lock."""
    program = (
        "import importlib.metadata, os, sys; from pathlib import Path; from seatrial.runs.leases import Leases\n"
        "os.umask(0o077); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "leases = Leases(Path(sys.argv[2]), lambda handle: True)\n"
        "with leases.locked(): leases.take([f'GPU-{sys.argv[1]}'], f'run-{sys.argv[1]}'); print(leases.current())"
    )
    with TemporaryDirectory() as folder:  # pytest makes its own folders unreadable for others
        Path(folder).chmod(0o1777)
        for uid in ("1001", "1002"):
            argv = [sys.executable, "-c", program, uid, folder]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert f"'GPU-{uid}': 'run-{uid}'" in done.stdout


def test_parts_of_a_gpu_are_held_until_they_are_one(leases):
    take(leases, share=0.5)
    assert leases.current(share=0.5) == {} and leases.current() == {GPU: "run-1"}
    take(leases, "run-2", share=0.3)
    assert leases.current(share=0.2) == {}
    assert set(leases.current(share=0.25)) == {GPU}
    leases.release("run-1")
    assert leases.current(share=0.7) == {} and leases.current() == {GPU: "run-2"}


def test_a_lock_that_somebody_keeps_ends_the_wait_with_the_holders_name(leases, monkeypatch):
    take(leases)
    program = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, 1); print(1, flush=True); input()"
    argv = [sys.executable, "-c", program, str(leases.folder / ".lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        monkeypatch.setattr(module, "_LOCK_S", 0.2)
        with (
            pytest.raises(UntrustedPathError, match=rf"locked for 0.2 s by python\S* \(PID {holder.pid}\) of"),
            leases.locked(),
        ):
            pass
        holder.stdin.close()
    with leases.locked():
        pass


def by_another(leases, run_id, gpu=GPU):
    """Plant a lease of another user, with a live process."""
    lease = Lease(gpu_uuid=gpu, run_id=run_id, launcher=Process.this())
    (leases.folder / lease.name).write_text(lease.model_dump_json())
    os.chown(leases.folder / lease.name, 4321, 4321)
    return leases.folder / lease.name


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_lease_that_another_user_made_for_our_run_is_not_touched(leases, live):
    take(leases)
    planted = by_another(leases, "run-1", "GPU-9")
    before = planted.read_bytes()
    live.add("container")
    leases.change("run-1", handle=Handle(backend="docker", id="container"))
    leases.release("run-1")
    assert planted.read_bytes() == before and leases.current() == {"GPU-9": "run-1 of another user"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_thousands_of_another_users_leases_take_a_while_at_most(leases, monkeypatch):
    take(leases)
    for number in range(50):
        by_another(leases, f"theirs-{number}", f"GPU-{number}")
    monkeypatch.setattr(module, "_OTHERS_S", 0.0)
    assert leases.current() == {GPU: "run-1"}
