"""/proc, read from the real one and from small trees."""

import os
import subprocess
import sys

from seatrial.probe import processes


def test_this_process():
    me = processes.read(os.getpid())
    assert me.parent == os.getppid() and me.rss_bytes > 1_000_000 and me.cpu_seconds > 0


def test_a_name_with_parentheses_and_spaces(tmp_path):
    (tmp_path / "7").mkdir()
    fields = "S 3 7 5 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 99 1000 11 0"
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {fields}\n")
    process = processes.read(7, str(tmp_path))
    assert (process.parent, process.session, process.started_ticks) == (3, 5, 99)
    assert process.cpu_seconds == 300 / os.sysconf("SC_CLK_TCK") and process.rss_bytes == 11 * os.sysconf(
        "SC_PAGE_SIZE"
    )


def test_descendants_are_all_below_and_only_those():
    script = "import subprocess,sys; subprocess.run(['sleep', '30'])"
    parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        for _ in range(200):
            below = processes.descendants(parent.pid)
            if below and processes.command_line(below[0].pid).startswith(b"sleep"):
                break
            subprocess.run(["sleep", "0.02"], check=True)
        assert [process.parent for process in below] == [parent.pid]
        assert processes.command_line(below[0].pid) == b"sleep\x0030\x00"
        assert parent.pid in [process.pid for process in processes.descendants(os.getpid())]
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()


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
