"""Podman's log file, read while it grows: whole lines alone, of stdout alone, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from seatrial.backends.containers.log import K8sFile, text_of

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
        "import os, sys; from pathlib import Path; from seatrial.backends.containers import podman; os.setuid(4321)\n"
        "pid, path = int(sys.argv[1]), Path(sys.argv[2]); assert not os.access(path, os.R_OK)\n"
        "print(podman.K8sFile(podman._open_file(pid, path), None).read(), podman._open_file(1, path))"
    )
    with path.open("ab") as log, subprocess.Popen(["sleep", "60"], pass_fds=[log.fileno()], user=4321) as conmon:
        argv = [sys.executable, "-c", program, str(conmon.pid), str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        conmon.kill()
    assert done.stdout == "b'while it runs\\n' None\n", done.stderr
