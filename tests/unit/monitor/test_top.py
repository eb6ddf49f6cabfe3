"""Readings from a fake NVML and the real /proc, the screen at 80 × 24, log files, the view on a real terminal."""

import csv
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from fakes import FakeGpu, FakeNvml, a_program
from seatrial.errors import DiskError, UsageError
from seatrial.monitor import reading as reading_module
from seatrial.monitor.reading import COLUMNS, ContainerNames, MachineReader, Named, ReadingLog, open_sink
from seatrial.monitor.top import render
from seatrial.probe.processes import Owner
from seatrial.system.host import Host

NO_ENGINES = {"SEATRIAL_DOCKER": "/no/docker", "SEATRIAL_PODMAN": "/no/podman"}
RUN = {"id": "20261121-000000-abcd", "name": "base", "target": "train.py", "bound_by": "launch-bound",
       "progress": "", "numbers": {"epoch": 3.0, "loss": 0.25}}  # fmt: skip


def a_reader(gpus=None, **options):
    return MachineReader(ContainerNames(Host(NO_ENGINES)), pynvml=FakeNvml(gpus, **options))


def a_container(**changes):
    row = dict.fromkeys(["pod_uid", "run_id", "run_name", "cpu_quota_cores", "memory_limit_bytes", "shm_total_bytes"])
    row.update(id="f" * 64, engine="docker", name="web", image="nginx:1", cpu_cores=0.5, memory_bytes=2 * 10**9,
               shm_used_bytes=10**6, processes=2, gpus=[0], gpu_memory_bytes=10**9, gpu_share_pct=12.0)  # fmt: skip
    return {**row, **changes}


def shown(reading, runs=(), width=80):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(render(reading, runs, width))
    return console.file.getvalue()


def test_a_process_of_ours_on_a_gpu():
    gpu = FakeGpu(processes=[(os.getpid(), 5 * 10**9)], shares={os.getpid(): 60})
    [read] = a_reader([gpu]).read()["gpus"]
    [process] = read["processes"]
    assert process["memory_bytes"] == 5 * 10**9 and process["share_pct"] == 60.0 and "python" in process["command"]
    assert read["index"] == 0 and read["temperature_c"] == 40


def test_no_gpu_still_shows_the_machine_and_the_reason():
    reading = a_reader(init_error=9).read()
    assert reading["gpus"] == [] and reading["machine"]["memory_total_bytes"] > 0
    assert reading["problems"] == ["No GPU: the NVIDIA kernel driver is not loaded"]
    assert "No GPU: the NVIDIA kernel driver is not loaded" in shown(reading)


def test_driver_that_vanishes_is_reported_and_found_again(monkeypatch):
    gpu = FakeGpu()
    reader = a_reader([gpu])
    reader.read()
    gpu.failing = True
    assert reader.read()["problems"] == [f"{gpu.uuid} no longer responds to NVML"]
    gpu.failing = False
    monkeypatch.setattr(reading_module, "REOPEN_S", 0.0)
    reader.read()
    assert reader.read()["problems"] == []


def test_mig_slices_are_shown_instead_of_their_gpu():
    parent = FakeGpu(uuid="GPU-a")
    parent.slices = [FakeGpu(uuid="MIG-a", parent=parent), FakeGpu(uuid="MIG-b", parent=parent)]
    reading = a_reader([parent]).read()
    assert [gpu["mig"] for gpu in reading["gpus"]] == ["0:0", "0:1"] and "GPU 0:1" in shown(reading)


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("width", [80, 200])
def test_it_fits(gpus, width):
    reading = a_reader([FakeGpu(uuid=f"GPU-{n}", minor=n) for n in range(gpus)]).read()
    reading["containers"] = [a_container(name=f"web-{n}") for n in range(40)]
    for gpu in reading["gpus"]:
        gpu.update(tensor_activity_pct=31.5, dram_activity_pct=12.0)
    lines = shown(reading, runs=[RUN], width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("base" in line and "launch-bound" in line for line in lines)
    assert len([line for line in lines if line.endswith("tensor 32%  DRAM 12%")]) == gpus  # nothing is cut off


def test_run_that_only_prints_its_position_shows_it():
    reading = a_reader(init_error=9).read()
    assert "epoch 9/60" in shown(reading, runs=[{**RUN, "progress": "epoch 9/60", "numbers": {}}])


def test_names_are_neither_markup_nor_escape_sequences():
    reading = a_reader(init_error=9).read()
    reading["containers"] = [a_container(name="[bold]x[/]\x1b[2J")]
    assert "[bold]x[/]?[2J" in shown(reading)


def test_an_engine_that_is_not_there_is_no_problem_and_one_in_trouble_is(tmp_path):
    names = ContainerNames(Host(NO_ENGINES))
    names.look_up(["x"], wait=True)
    assert names.problems == [] and names.known == {}
    broken = ContainerNames(Host({**NO_ENGINES, "SEATRIAL_DOCKER": "sh -c 'echo permission denied >&2; exit 1'"}))
    broken.look_up(["x"], wait=True)
    assert broken.problems == ["sh failed: permission denied"]


@pytest.mark.parametrize("engine", ["DOCKER", "PODMAN"])
def test_names_from_what_the_engines_print(tmp_path, engine):
    program = a_program(tmp_path / "engine", f"printf '{'d' * 64}\\tone\\ti:1\\tr1\\tbase\\ngarbage\\n'")
    names = ContainerNames(Host({**NO_ENGINES, f"SEATRIAL_{engine}": program}))
    names.look_up(["d" * 64], wait=True)
    assert names.known == {"d" * 64: Named("one", "i:1", {"seatrial.run": "r1", "seatrial.name": "base"})}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_log_files(tmp_path, kind):
    path = tmp_path / f"log.{kind}"
    reader, sink = a_reader([FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1", minor=1)]), open_sink(path)
    for _ in range(3):
        sink.write(reader.read())
    sink.close()
    if kind == "csv":
        read = list(csv.DictReader(path.open()))
        assert len(read) == 6 and tuple(read[0]) == COLUMNS and read[0]["throttle_reasons"] == "sw_power_cap"
    else:
        assert [len(json.loads(line)["gpus"]) for line in path.read_text().splitlines()] == [2, 2, 2]


def test_log_files_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match=r"\.csv or \.jsonl"):
        open_sink(tmp_path / "log.txt")
    with pytest.raises(DiskError):
        open_sink(tmp_path / "no" / "log.csv")
    sink = ReadingLog(Path("/dev/full"))
    with pytest.raises(DiskError, match="No space left"):
        sink.write(a_reader(init_error=9).read())
    sink.close()


def on_a_terminal(tmp_path, *steps, seconds=240):
    """(what it printed, exit code) of ``seatrial top`` on a pty of 80 × 24.

    ``steps``: what is awaited on the screen since the step before, and what is done then: keys to type, or a function
    of its PID.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        environ = {**os.environ, **NO_ENGINES, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        os.execve(sys.executable, [sys.executable, "-m", "seatrial", "top", "-i", "0.2"], environ)
    output, seen, end, left = b"", 0, time.monotonic() + seconds, list(steps)
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        if ready:
            try:
                output += os.read(terminal, 65536)
            except OSError:
                break
        if left and left[0][0] in output[seen:]:
            act, seen = left.pop(0)[1], len(output)
            act(pid) if callable(act) else os.write(terminal, act)
    if time.monotonic() >= end:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return output.decode("utf-8", "replace"), os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_it_quits_cleanly_on_a_terminal(tmp_path, how):
    act = {"ctrl-c": b"\x03", "sigterm": lambda pid: os.kill(pid, signal.SIGTERM)}[how]
    output, code = on_a_terminal(tmp_path, (b"memory", act))
    assert code == 0 and "seatrial top" in output
    assert output.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in output  # the screen and the cursor are back
    assert "Traceback" not in output


def test_without_a_terminal_it_prints_one_screen_or_json_and_writes_its_log(tmp_path):
    def top(*options):
        command = [sys.executable, "-m", "seatrial", "top", *options]
        environ = {**os.environ, **NO_ENGINES}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout

    screen = top("--once", "--log", "once.csv")
    assert screen.startswith("seatrial top  CPU") and "\x1b" not in screen
    [row] = csv.DictReader((tmp_path / "once.csv").open())
    assert float(row["machine_memory_used_bytes"]) > 0
    assert set(json.loads(top("--json"))) >= {"t", "machine", "gpus", "containers", "problems", "runs"}


def test_a_container_whose_counter_begins_anew_has_used_nothing_and_not_less():
    reader = a_reader()
    seconds = iter((100.0, 101.0, 0.5, 2.5))
    owner = Owner("docker", "f" * 64)
    used = [reader._cores(owner, next(seconds)) for _ in range(4)]
    assert used[0] is None and used[1] > 0 and used[2] == 0.0 and used[3] > 0
