"""The incremental tree against the full reading: children that come and go, strangers, PIDs given again."""

import os
import shutil
import signal
import subprocess
import sys
import time

from seatrial.probe import processes
from seatrial.probe.processes import Tree


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_children_and_grandchildren_come_and_go():
    looked_at = Tree(os.getpid(), with_root=False)
    wait_for(lambda: looked_at.read().keys() == {process.pid for process in processes.descendants(os.getpid())})
    code = "import subprocess; subprocess.run(['sleep', '60'])"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(lambda: any(one.parent == child.pid for one in looked_at.read().values()))
        assert list(looked_at.read()) == [process.pid for process in processes.descendants(os.getpid())]
        [grandchild] = [one.pid for one in looked_at.read().values() if one.parent == child.pid]
        os.kill(grandchild, signal.SIGKILL)
        wait_for(lambda: grandchild not in looked_at.read())
    finally:
        child.kill()
        child.wait()
    assert child.pid not in looked_at.read()


def a_process(folder, pid, parent, state="S", started=1):
    (folder / str(pid)).mkdir(exist_ok=True)
    (folder / str(pid) / "stat").write_text(
        f"{pid} (x) {state} {parent} 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {started} 1000 11 0\n"
    )


def test_strangers_are_read_once_and_a_pid_given_again_is_found_by_the_full_reading(tmp_path, monkeypatch):
    for pid, parent in ((1, 0), (5, 1), (6, 5), (9, 1)):
        a_process(tmp_path, pid, parent)
    read = []
    real = processes.read
    monkeypatch.setattr(processes, "read", lambda pid, folder="/proc": read.append(pid) or real(pid, folder))
    looked_at = Tree(5, with_root=True, proc_folder=str(tmp_path))
    assert list(looked_at.read()) == [5, 6] and set(read) == {1, 5, 6, 9}
    read.clear()
    a_process(tmp_path, 7, 6)
    assert list(looked_at.read()) == [5, 6, 7] and set(read) == {5, 6, 7}
    a_process(tmp_path, 9, 6, started=2)
    assert 9 not in looked_at.read()
    monkeypatch.setattr(processes, "RESCAN_S", 0.0)
    looked_at._rescan_at_s = 0.0
    assert list(looked_at.read()) == [5, 6, 7, 9]


def test_a_zombie_does_not_count_and_its_children_do_after_they_are_inherited(tmp_path):
    for pid, parent in ((5, 1), (6, 5), (7, 6)):
        a_process(tmp_path, pid, parent)
    looked_at = Tree(5, with_root=False, proc_folder=str(tmp_path))
    assert list(looked_at.read()) == [6, 7]
    a_process(tmp_path, 6, 5, state="Z")
    a_process(tmp_path, 7, 5)
    assert list(looked_at.read()) == [7]


def test_while_no_pid_is_given_nobody_is_looked_for(tmp_path):
    for pid, parent in ((5, 1), (6, 5)):
        a_process(tmp_path, pid, parent)
    (tmp_path / "loadavg").write_text("0.1 0.2 0.3 1/80 6\n")
    looked_at = Tree(5, with_root=False, proc_folder=str(tmp_path))
    assert list(looked_at.read()) == [6]
    a_process(tmp_path, 7, 5)
    assert list(looked_at.read()) == [6]
    (tmp_path / "loadavg").write_text("0.1 0.2 0.3 1/80 7\n")
    assert list(looked_at.read()) == [6, 7]
    shutil.rmtree(tmp_path / "6")
    assert list(looked_at.read()) == [7]
    (tmp_path / "loadavg").write_text("0.00 0.00 0.00 0/0 0\n")  # a kernel that does not report
    a_process(tmp_path, 8, 5)
    assert list(looked_at.read()) == [7, 8]
