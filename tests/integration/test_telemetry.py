"""Telemetry with real parts: containers of real engines, Prometheus' own checker and server. Each skips when absent."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

import pytest

from here import free_ports
from pace import until
from seatrial.monitor.reading import ContainerNames, MachineReader
from seatrial.probe import processes
from seatrial.system.host import Host

IMAGE = "python:3.11-slim-bookworm"
WORK = "data = bytearray(60_000_000)\nopen('/dev/shm/x', 'wb').write(b'x' * 5_000_000)\nwhile True: pass"


def program(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian's package prometheus has it)")
    return path


def test_a_container_is_found_named_and_measured(engine):
    call = list(engine.call)
    name = f"seatrial-telemetry-{os.getpid()}"
    argv = [*call, "run", "-d", "--rm", "--name", name, "--network", "host", "--label", "seatrial.run=r1"]
    ended = subprocess.run([*argv, "--shm-size", "16m", IMAGE, "python3", "-c", WORK], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    identity = ended.stdout.strip()
    try:
        names = ContainerNames(Host({f"SEATRIAL_{engine.name.upper()}": " ".join(call)}))
        reader = MachineReader(names)
        names.look_up([identity], wait=True)
        pid = int(subprocess.check_output([*call, "inspect", "-f", "{{.State.Pid}}", identity]))
        reader.read()
        for _ in range(60):  # until the process has its memory
            began_s, began_cpu_s = time.monotonic(), processes.read(pid).cpu_seconds
            time.sleep(1.5)
            cores = (processes.read(pid).cpu_seconds - began_cpu_s) / (time.monotonic() - began_s)
            [row] = [row for row in reader.read()["containers"] if row["id"] == identity]
            if row["memory_bytes"] > 60e6 and row["shm_used_bytes"] >= 5e6:
                break
        assert (row["engine"], row["name"], row["run_id"]) == (engine.name, name, "r1")
        assert row["image"].endswith(IMAGE) and row["processes"] == 1
        assert 0 < row["cpu_cores"] == pytest.approx(cores, rel=0.4, abs=0.1)  # a busy machine gives less than one
        assert 60e6 < row["memory_bytes"] < 200e6
        assert row["shm_used_bytes"] == 5_001_216 or 5e6 <= row["shm_used_bytes"] < 6e6
        assert row["shm_total_bytes"] == 16 * 2**20
        assert processes.owner(pid).container_id == identity
    finally:
        subprocess.run([*call, "kill", name], capture_output=True)


@pytest.fixture
def exporter(tmp_path):
    [port] = free_ports()
    process = subprocess.Popen(
        [sys.executable, "-m", "seatrial", "dashboard", "--metrics-only", "--listen", f"127.0.0.1:{port}"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "/metrics" in process.stderr.readline()
    yield port
    process.terminate()
    assert process.wait(120) == 0 and process.stderr.read() == ""


def test_promtool_has_no_complaint_of_syntax(exporter):
    text = urllib.request.urlopen(f"http://127.0.0.1:{exporter}/metrics").read()
    ended = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True)
    assert ended.returncode in (0, 3) and b"error" not in ended.stderr.lower(), ended.stderr
    lint = [line for line in ended.stderr.decode().splitlines() if "seatrial_" in line]
    assert lint == []  # dcgm-exporter's own names are not to its taste


def test_a_real_prometheus_scrapes_it(exporter, tmp_path):
    prometheus = program("prometheus")
    argv = [sys.executable, "-m", "seatrial", "dashboard", "--print-config", "prometheus"]
    config = subprocess.check_output(argv, text=True)
    config = config.replace("127.0.0.1:9400", f"127.0.0.1:{exporter}").replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(config)
    [listen] = free_ports()
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{listen}"], stderr=log, stdout=log, cwd=tmp_path,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{listen}/api/v1/query?query=seatrial_machine_memory_used_bytes"

        def answer():
            with suppress(OSError):  # the server does not listen yet
                return json.load(urllib.request.urlopen(url, timeout=300))["data"]["result"]

        found = until(answer, "a value")
        assert float(found[0]["value"][1]) > 0 and found[0]["metric"]["job"] == "seatrial"
    finally:
        process.terminate()
        process.wait(120)
        log.close()
