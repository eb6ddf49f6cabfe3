"""The exporter: names and labels of dcgm-exporter, the text's syntax, a real server under load, addresses."""

import csv
import errno
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from importlib import resources
from pathlib import Path

import pytest

from fakes import FakeGpu, FakeNvml
from seatrial.errors import UsageError
from seatrial.monitor import prometheus
from seatrial.monitor.prometheus import Exposition, families, render
from seatrial.monitor.reading import ContainerNames, MachineReader, unread
from seatrial.system.address import cannot_listen, is_loopback, parse_address, url
from seatrial.system.host import Host

NO_ENGINES = {"SEATRIAL_DOCKER": "/no/docker", "SEATRIAL_PODMAN": "/no/podman"}
COUNTERS = Path(__file__).parents[3].parent / "shared" / "samples" / "default-counters.csv"
RUN = {"id": "r1", "name": None, "target": 'a"b\\c\nd.py', "numbers": {"loss": 0.5}, "bound_by": "data-bound",
       "mfu": 0.41}  # fmt: skip
_LINE = re.compile(r'^[a-zA-Z_:][\w:]*(\{(\w+="(\\.|[^"\\\n])*",?)*\})? (-?[\d.e+-]+)$')


def a_reader(gpus=None, **options):
    return MachineReader(ContainerNames(Host(NO_ENGINES)), pynvml=FakeNvml(gpus, **options), service=True)


def exposition(gpus=None, runs=(RUN,), **options):
    reader = a_reader(gpus, **options)
    return render(reader.read(), list(runs), "hal").decode()


def values(text):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_every_line_is_exposition_format():
    for line in exposition().splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or _LINE.match(line), line


def test_dcgm_names_values_and_labels():
    text = exposition()
    found = values(text)
    labels = (
        '{gpu="0",UUID="GPU-de421f49-0f0c-0000-0000-000000000000",pci_bus_id="00000000:10:00.0",device="nvidia0",'
        'modelName="NVIDIA H200",Hostname="hal",DCGM_FI_DRIVER_VERSION="580.159.04"}'
    )
    assert found["DCGM_FI_DEV_GPU_UTIL" + labels] == 90
    assert found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" + labels] == 5_000_000  # mJ
    assert found["DCGM_FI_DEV_FB_USED" + labels] == pytest.approx(400_000_000 / 2**20)  # without the reserved
    assert found["DCGM_FI_DEV_MEMORY_TEMP" + labels] == 44 and found["DCGM_FI_DEV_XID_ERRORS" + labels] == 0
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter" in text
    assert 'reason="sw_power_cap"' in text and found["seatrial_nvml_up"] == 1
    assert any(key.startswith("seatrial_run_mfu_ratio") for key in found)


@pytest.mark.skipif(not COUNTERS.exists(), reason="dcgm-exporter's list of counters is not available")
def test_all_of_dcgm_exporters_default_counters():
    rows = [row for row in csv.reader(COUNTERS.open()) if row and not row[0].startswith("#")]
    wanted = {row[0].strip(): row[1].strip() for row in rows if row[1].strip() != "label"}
    ours = {family.name: family.kind for family in families()["gpu"] if family.name.startswith("DCGM_")}
    assert {name: ours.get(name) for name in wanted} == wanted


def test_counters_that_are_read_seldom_keep_their_last_value():
    reader = a_reader()
    for _ in range(3):
        reading = reader.read()
    assert reading["gpus"][0]["energy_j"] == 5000.0 and reading["gpus"][0]["memory_temperature_c"] == 44


def test_without_a_gpu_the_machine_is_served():
    found = values(exposition(init_error=9))
    assert found["seatrial_nvml_up"] == 0 and found["seatrial_machine_memory_used_bytes"] > 0
    assert not any(key.startswith("DCGM") for key in found)


def test_a_mig_slice_has_its_own_labels_and_no_invented_utilisation():
    parent = FakeGpu(uuid="GPU-a")
    parent.slices = [FakeGpu(uuid="MIG-a", parent=parent)]
    text = exposition([parent])
    assert 'GPU_I_ID="0"' in text and "DCGM_FI_DEV_GPU_UTIL" not in text


READING = {**unread(""), "machine": {**unread("")["machine"], "cpu_cores": 1.5}}


def test_a_scrape_gets_the_last_reading_rendered_once():
    calls = []
    made = Exposition(lambda: calls.append(1) or [RUN])
    assert b"seatrial_exporter_reading_ok 0\n" in made.text()
    made.renew(READING, 0.5)
    for _ in range(5):
        text = made.text()
    assert len(calls) == 1 and b"seatrial_machine_cpu_cores 1.5" in text
    assert b"seatrial_exporter_readings_total 1\n" in text and b"reading_cpu_seconds 0.5" in text


def test_a_reading_that_does_not_end_leaves_its_series_out(monkeypatch):
    monkeypatch.setattr(prometheus, "STALE_S", 0.0)
    made = Exposition(list, interval_s=0.01)
    made.renew(READING, 0.0)
    time.sleep(0.05)
    text = made.text()
    assert b"seatrial_exporter_reading_ok 0\n" in text and b"seatrial_machine_cpu_cores" not in text


def test_runs_that_cannot_be_read_take_nothing_from_the_machine():
    def broken():
        raise RecursionError

    made = Exposition(broken)
    made.renew(READING, 0.0)
    text = made.text()
    assert b"seatrial_machine_cpu_cores 1.5" in text and b"seatrial_run" not in text
    assert b"seatrial_exporter_failed_readings_total 1\n" in text and b"seatrial_exporter_reading_ok 1\n" in text


def test_half_a_character_in_a_label_is_no_end():
    assert b'metric="?"' in render(READING, [{**RUN, "numbers": {"\ud800": 1.0}}], "hal")


def test_it_prints_its_address_once_it_listens(tmp_path):
    environ = {**os.environ, **NO_ENGINES, "SEATRIAL_STATE": str(tmp_path / "state")}
    argv = [sys.executable, "-m", "seatrial", "dashboard", "--metrics-only", "--listen", "127.0.0.1:0"]
    started = subprocess.Popen(argv, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        address = started.stderr.readline().removeprefix("seatrial dashboard: ").strip()
        with urllib.request.urlopen(address, timeout=300) as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert b"seatrial_exporter_reading_ok" in answer.read() and address.endswith("/metrics")
    finally:
        started.terminate()
        assert started.wait(120) == 0


def test_addresses():
    assert parse_address("9400", "exporter", 9400) == ("127.0.0.1", 9400)
    assert parse_address(":80", "exporter", 9400) == ("127.0.0.1", 80)
    assert parse_address("[::1]:80", "exporter", 9400) == ("::1", 80)
    for wrong in ("", "host", "host:99999", "a b:1", "1.2.3.4:-1"):
        with pytest.raises(UsageError, match="expected HOST:PORT"):
            parse_address(wrong, "exporter", 9400)
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.168.1.2") and not is_loopback("example.org")


def test_what_to_open_and_what_to_try_instead():
    assert url("127.0.0.1", 80) == "http://127.0.0.1:80/" and url("::1", 80) == "http://[::1]:80/"
    assert url("0.0.0.0", 80) == f"http://{socket.gethostname()}:80/"
    advice = {
        number: cannot_listen("exporter", "10.9.8.7", 94, OSError(number, os.strerror(number))).run
        for number in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
    }
    assert advice[errno.EADDRINUSE] == "seatrial exporter --listen 10.9.8.7:95"
    assert advice[errno.EACCES] == "seatrial exporter --listen 10.9.8.7:8094"
    assert advice[errno.EADDRNOTAVAIL].startswith("seatrial exporter --listen 127.0.0.1:94 ")


def test_the_grafana_dashboard_asks_for_metrics_that_exist():
    text = resources.files("seatrial.monitor").joinpath("grafana.json").read_text()
    files = ("prometheus.py", "metrics.json")
    source = "".join(resources.files("seatrial.monitor").joinpath(name).read_text() for name in files)
    names = {name for panel in json.loads(text)["panels"] for target in panel["targets"]
             for name in re.findall(r"\b(?:DCGM|seatrial)_\w+", target["expr"])}  # fmt: skip
    assert len(names) >= 10 and not [name for name in names if f'"{name}"' not in source]
