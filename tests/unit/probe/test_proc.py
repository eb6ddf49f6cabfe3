"""/proc, read from the real one and from small trees."""

import os
import shutil
import signal
import subprocess
import sys
import time

from seatrial.probe import processes
from seatrial.probe.processes import Tree


def test_a_name_with_parentheses_and_spaces(tmp_path):
    (tmp_path / "7").mkdir()
    fields = "S 3 7 5 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 99 1000 11 0"
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {fields}\n")
    process = processes.read(7, str(tmp_path))
    assert (process.parent, process.session, process.started_ticks) == (3, 5, 99)
    assert process.cpu_seconds == 300 / os.sysconf("SC_CLK_TCK") and process.rss_bytes == 11 * os.sysconf(
        "SC_PAGE_SIZE"
    )


def test_a_gone_process_has_nothing():
    child = subprocess.Popen(["true"])
    child.wait()
    assert processes.read(child.pid) is None and processes.environment(child.pid) == [b""]
    assert not processes.has_cuda_context(child.pid) and processes.context_minors(child.pid) == []


def test_cuda_context_by_mapping_and_descriptors(tmp_path):
    """Counts as measured on an H200: NVML 3, cuInit 7, a context 23 descriptors and one mapping of nvidia-uvm."""
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    nodes = ["/dev/nvidia0"] * 7 + ["/dev/nvidia1"] * 23 + ["/dev/nvidiactl"] * 30 + ["/dev/nvidia-uvm"] * 2
    for number, node in enumerate(nodes):
        (folder / "fd" / str(number)).symlink_to(node)
    (folder / "maps").write_text("7f00-7f01 rw-s 0 00:06 479 /dev/nvidiactl\n")
    assert processes.context_minors(7, str(tmp_path)) == [1] and not processes.has_cuda_context(7, str(tmp_path))
    (folder / "maps").write_text("200000000-200200000 rw-s 0 00:06 479      /dev/nvidia-uvm\n")
    assert processes.has_cuda_context(7, str(tmp_path))


def wait_for(condition, seconds=120.0):
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
        [grandchild] = [one.pid for one in processes.descendants(child.pid)]
        wait_for(lambda: processes.command_line(grandchild) == b"sleep\x0060\x00")
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
