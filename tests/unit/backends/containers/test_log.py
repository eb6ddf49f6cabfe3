"""A container's log in the record: followed, continued after a break, killed at any moment; Podman's file of it.

A shell script stands in for ``docker logs``: it prints a file, and with ``--follow`` goes on until a mark is there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import a_program
from seatrial import events, frames
from seatrial.backends.containers import log
from seatrial.backends.containers.log import K8sFile, collecting, text_of
from seatrial.errors import DiskError
from seatrial.system import command

LOGS = """# logs --follow ID | logs ID
echo "$*" >> {folder}/calls
if [ "$1" = --follow ]; then
    if [ -e {folder}/broken ]; then rm {folder}/broken; head -c 100 {folder}/log; exit 1; fi
    exec tail -n +1 -f {folder}/log --pid $(cat {folder}/pid) -s 0.05
fi
cat {folder}/log
"""


def opener(argv: list[str]) -> log.OpenLog:
    return lambda follow: command.Piped([argv[0], *(["--follow"] if follow else []), argv[1]])


class Container:
    """A log that grows, and a container that ends when ``end`` is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "engine"
        self.record = folder / "record"
        self.folder.mkdir()
        self.record.mkdir()
        self.argv = [a_program(self.folder / "logs", LOGS.format(folder=self.folder)), "ID"]
        self.log = self.folder / "log"
        self.log.touch()
        self._life = multiprocessing.get_context("fork").Process(target=time.sleep, args=(120,))
        self._life.start()
        (self.folder / "pid").write_text(str(self._life.pid))
        self.over = False

    def prints(self, data: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(data)

    def end(self) -> None:
        self.over = True
        self._life.kill()
        self._life.join()

    def collect(self, echo: Callable[[str], None] = lambda line: None) -> object:
        return collecting(opener(self.argv), self.record, lambda: self.over, echo)

    def collect_now(self) -> None:
        with self.collect():
            pass

    def out(self) -> bytes:
        path = self.record / "stdout.log"
        return path.read_bytes() if path.exists() else b""

    def numbers(self) -> list[int]:
        path = str(self.record / "events.jsonl")
        read, skipped = events.read(path)
        assert skipped == 0 and events.follow_chain(path).broken_at is None
        return [event["_seq"] for event in read]

    def index_holds(self) -> bool:
        lines = [line.split() for line in (self.record / "output.idx").read_text().splitlines()]
        return sum(int(size) for _, number, size in lines if number == "1") == len(self.out())


@pytest.fixture
def container(tmp_path: Path) -> object:
    made = Container(tmp_path)
    yield made
    made.end()


def step(seq: int) -> bytes:
    return frames.encode(frames.REPORT, b'%d 1.0 {"step": %d}' % (seq, seq))


def wait_for(condition: Callable[[], object], timeout_s: float = 300) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.02)


def test_it_comes_as_it_grows_and_whole_at_the_end(container: Container) -> None:
    container.prints(b"before\n" + step(1))
    with container.collect():
        wait_for(lambda: container.out() == b"before\n")
        container.prints(b"during\n" + step(2))
        wait_for(lambda: container.out() == b"before\nduring\n")
        container.prints(b"last\n" + step(3))
        container.end()
    assert container.out() == b"before\nduring\nlast\n"
    assert container.numbers() == [1, 2, 3] and container.index_holds()


def test_who_looks_in_later_takes_up_where_the_last_one_was(container: Container) -> None:
    container.prints(b"one\n" + step(1))
    container.collect_now()
    container.prints(b"two\n" + step(2))
    container.collect_now()
    container.collect_now()
    container.end()
    container.collect_now()
    assert container.out() == b"one\ntwo\n"
    assert container.numbers() == [1, 2] and container.index_holds()


def test_a_line_that_has_come_in_part_is_not_lost(container: Container) -> None:
    long = frames.encode(frames.EVIDENCE, b'{"t":1,"type":"note","_seq":1,"message":"' + b"x" * 20_000 + b'"}')
    container.prints(b"one\n" + long[:9000])
    container.collect_now()
    assert container.numbers() == []
    container.prints(long[9000:] + b"unfini")
    container.collect_now()
    assert container.numbers() == [1]
    container.prints(b"shed\n")
    container.end()
    container.collect_now()
    assert container.out() == b"one\nunfinished\n" and container.index_holds()


def test_two_who_follow_write_it_once(container: Container) -> None:
    def follow() -> None:
        with container.collect():
            wait_for(lambda: container.over)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 40):
        container.prints(b"line %d\n" % number + step(number))
        time.sleep(0.01)
    container.end()
    began_s = time.monotonic()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began_s < 120
    assert container.out() == b"".join(b"line %d\n" % number for number in range(1, 40))
    assert container.numbers() == list(range(1, 40)) and container.index_holds()


def test_an_engine_that_breaks_off_is_requested_again(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's daemon was restarted under ``logs --follow``."""
    monkeypatch.setattr(log, "_TURN_S", 0.05)
    container.prints(b"".join(b"line %d\n" % number + step(number) for number in range(1, 20)))
    (container.folder / "broken").touch()
    with container.collect():
        wait_for(lambda: container.out().endswith(b"line 19\n"))
        container.end()
    assert container.out() == b"".join(b"line %d\n" % number for number in range(1, 20))
    assert container.numbers() == list(range(1, 20)) and container.index_holds()


def _collect_for_ever(container_argv: list[str], record: str) -> None:
    with collecting(opener(container_argv), Path(record), lambda: False, lambda line: None):
        time.sleep(60)


@pytest.mark.parametrize("moment", range(8))
def test_a_collector_that_is_killed_loses_nothing_and_writes_nothing_twice(container: Container, moment: int) -> None:
    """At eight moments while a long log pours in: output exact to the byte, each line of evidence once."""
    whole = b"".join(b"line %d %s\n" % (number, b"x" * (number % 300)) + step(number) for number in range(1, 6001))
    container.prints(whole[: len(whole) // 2])
    process = multiprocessing.get_context("fork").Process(
        target=_collect_for_ever, args=(container.argv, str(container.record))
    )
    process.start()
    wait_for(lambda: container.out())
    time.sleep(0.004 * moment)
    container.prints(whole[len(whole) // 2 :])
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    container.end()
    container.collect_now()
    assert container.out() == b"".join(b"line %d %s\n" % (n, b"x" * (n % 300)) for n in range(1, 6001))
    assert container.numbers() == list(range(1, 6001)) and container.index_holds()


def test_a_full_disk_is_reported_and_the_engine_keeps_the_rest(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = threading.Event(), os.write

    def write(descriptor: int, data: bytes) -> int:
        if full.is_set() and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(container.record):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    printed: list[str] = []
    with pytest.raises(DiskError, match="No space left"), container.collect(printed.append):
        container.prints(b"one\n" + step(1))
        wait_for(lambda: container.out() == b"one\n")
        full.set()
        container.prints(b"two, longer\n" + step(2))
        wait_for(lambda: printed)
        container.end()
    assert "No space left" in printed[0]
    full.clear()
    container.collect_now()
    assert container.out() == b"one\ntwo, longer\n"
    assert container.numbers() == [1, 2] and container.index_holds()


STAMP = b"2026-11-21T22:51:00.268770506+00:00"


def line(text: bytes, stream: bytes = b"stdout", tag: bytes = b"F") -> bytes:
    return b" ".join([STAMP, stream, tag, text]) + b"\n"


def read(log: K8sFile) -> bytes:
    parts = []
    while data := log.read():
        parts.append(data)
    log.close()
    return b"".join(parts)


def test_parts_are_joined_and_other_streams_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(line(b"one") + line(b"tw", tag=b"P") + line(b"agent's own", b"stderr") + line(b"o") + line(b""))
    assert read(K8sFile(path, None)) == b"one\ntwo\n\n"


@pytest.mark.parametrize("text", [b"", b"x", STAMP, STAMP + b" stdout", STAMP + b" stdout X text", b"a b c d e"])
def test_a_line_that_conmon_does_not_write_reports_nothing(text: bytes) -> None:
    assert text_of(text) == b""


def test_a_line_that_is_half_written_is_waited_for(tmp_path: Path) -> None:
    """Reject text that imitates a line of the log where reading begins in the middle."""
    path, life = tmp_path / "ctr.log", threading.Event()
    whole = line(b"x" * 5000 + line(b"\x1eforged").rstrip())
    written = b""
    with path.open("wb", buffering=0) as file:
        log = K8sFile(path, lambda: not life.is_set())
        for at in range(0, len(whole), 700):
            file.write(whole[at : at + 700])
            time.sleep(0.01)
        deadline_s = time.monotonic() + 120
        while len(written) < 5000 and time.monotonic() < deadline_s:
            written += log.read()
        file.write(line(b"last"))
    life.set()
    assert written + read(log) == b"x" * 5000 + line(b"\x1eforged").rstrip() + b"\nlast\n"


def test_it_can_be_ended_while_nobody_reads_and_while_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(line(b"y" * 8000) * 100)
    unread, waiting = K8sFile(path, lambda: True), K8sFile(path, lambda: True)
    assert unread.end() == -1
    assert waiting.read()
    assert waiting.end() == -1
    unread.close()
    waiting.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user to whom a folder is closed")
def test_a_log_in_a_closed_folder_is_read_where_its_writer_has_it_open(tmp_path: Path) -> None:
    """Rootless, with keep-id, the folder belongs to the container's root: output came only at the end of a run."""
    path = tmp_path / "userdata" / "ctr.log"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(line(b"while it runs"))
    os.chown(path, 4321, 4321)
    path.chmod(0o600)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from seatrial.backends.containers import docker_and_podman as podman; os.setuid(4321)\n"
        "pid, path = int(sys.argv[1]), Path(sys.argv[2]); assert not os.access(path, os.R_OK)\n"
        "print(podman.K8sFile(podman._open_file(pid, path), None).read(), podman._open_file(1, path))"
    )
    with path.open("ab") as log, subprocess.Popen(["sleep", "60"], pass_fds=[log.fileno()], user=4321) as conmon:
        argv = [sys.executable, "-c", program, str(conmon.pid), str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        conmon.kill()
    assert done.stdout == "b'while it runs\\n' None\n", done.stderr
