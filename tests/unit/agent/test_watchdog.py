"""Findings of the watchdog, once each; hangs by silence and stillness; alerts through real processes."""

import json
import os
import subprocess
import sys
import time

import pytest

from fakes import FakeGpu, FakeNvml
from seatrial import events
from seatrial.agent.journal import Journal
from seatrial.agent.observer import CAPPED_S, SLOWED_S, STARVED_S, SampleWatchdog, run_alert
from seatrial.agent.output import Activity
from seatrial.findings.finding import Finding
from seatrial.probe import processes
from seatrial.probe.sampler import Sampler

UUID = FakeGpu().uuid


class Case:
    """A watchdog over a fake GPU and a clock of our own."""

    def __init__(self, hang_after_s=300.0):
        self.gpu = FakeGpu(throttle_bits=0)
        self.activity = Activity()
        self.sampler = Sampler([UUID], pynvml=FakeNvml([self.gpu]))
        self.reported = []
        self.watchdog = SampleWatchdog(self.sampler, self.activity, hang_after_s, self.reported.append)
        self.now_s = 0.0

    def look(self, seconds=1.0, gpu=None, **keys):
        self.now_s += seconds
        sample = self.sampler.sample()
        sample["gpus"][0].update({"tensor_activity_pct": 20.0, "dram_activity_pct": 10.0, **(gpu or {})})
        sample.update({"shm_used_bytes": 0, **keys})
        self.watchdog.look(sample, self.now_s)
        return [finding.id for finding in self.reported]


@pytest.fixture
def case():
    return Case()


def test_a_healthy_run_has_no_findings(case):
    for _ in range(5):
        assert case.look(60.0) == []


@pytest.fixture
def crowded():
    """A process that shares one CPU with four others."""
    cpu = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    crowd = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(5)]
    yield crowd[0].pid
    for one in crowd:
        one.kill()
        one.wait()


def test_a_script_that_gets_no_cpu_is_named(case, crowded):
    case.sampler.mains.add(crowded)
    time.sleep(0.3)  # Python has started
    for seconds in (0.0, 0.5, STARVED_S - 1):
        assert case.look(seconds, cpu_cores=0.2) == []
        time.sleep(0.5)
    assert case.look(2.0, cpu_cores=0.2) == ["cpu-starved"]
    [finding] = case.reported
    assert finding.severity == "info" and finding.evidence[0].startswith(
        "0.20 cores in use, and ready without a CPU in "
    )


def test_xid_of_the_program_is_a_warning_and_of_the_hardware_an_error_once_each(case):
    case.gpu.xids += [31, 31, 79]
    case.look()
    case.gpu.xids += [79]
    case.look()
    found = [(finding.id, finding.severity) for finding in case.reported]
    assert found == [("gpu-xid", "warning"), ("gpu-xid", "error")]
    assert case.reported[1].evidence == [f"Xid 79 on {UUID}"]


@pytest.mark.parametrize(("state", "id"), [("failing", "device-access-lost"), ("lost", "gpu-lost")])
def test_a_gpu_that_no_longer_answers_is_reported_once(case, state, id):
    case.look()
    setattr(case.gpu, state, True)
    assert case.look() == [id] and case.look() == [id]


def test_a_slowdown_must_last(case):
    hot = {"throttle_reasons": ["hw_thermal_slowdown"]}
    assert case.look(1, hot) == [] and case.look(SLOWED_S - 1, hot) == []
    assert case.look(1, {"throttle_reasons": []}) == [] and case.look(1, hot) == []
    assert case.look(SLOWED_S, hot) == ["gpu-slowed-down"]
    capped = {"throttle_reasons": ["sw_power_cap"]}
    case.look(1, capped)
    assert case.look(CAPPED_S, capped)[-1] == "gpu-power-capped" and case.reported[-1].severity == "info"


def test_memory_that_is_nearly_full_is_reported(case):
    shared = case.look(memory_bytes=96, memory_limit_bytes=100, shm_used_bytes=91, shm_total_bytes=100)
    assert shared == ["host-memory-nearly-full", "shared-memory-nearly-full"]
    assert case.look(1, {"memory_used_bytes": 98, "memory_total_bytes": 100})[-1] == "gpu-memory-nearly-full"


SPINNING = {"utilization_pct": 100.0, "tensor_activity_pct": 0.0, "dram_activity_pct": 0.1}


def test_a_collective_that_spins_without_output_hangs(case):
    case.look()
    for _ in range(3):
        case.activity.happened()
        assert case.look(250, SPINNING) == []
    assert case.look(250, SPINNING) == [] and case.look(299, SPINNING) == []
    assert case.look(1, SPINNING) == ["hang"] and "utilisation 100 %" in case.reported[0].evidence[0]


def test_no_hang_before_the_first_work_and_none_when_switched_off(case):
    for _ in range(5):
        assert case.look(400, {**SPINNING, "utilization_pct": 0.0}) == []
    case = Case(hang_after_s=None)
    case.look()
    assert case.look(1, SPINNING) == [] and case.look(9999, SPINNING) == []


def test_a_zombie_that_holds_memory(case):
    child = subprocess.Popen(["true"])
    for _ in range(1000):
        if processes.read(child.pid).state == "Z":
            break
        time.sleep(0.02)
    case.gpu.processes = [(child.pid, 10**9), (os.getpid(), 10**9)]
    assert case.look() == []  # it may have ended just now
    assert case.look(11) == ["zombie-holds-gpu-memory"]
    child.wait()


FINDING = Finding("hang", "warning", "The run seems to hang", "why", "fix", ["seen"])


def noted(path):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        notes = [event["message"] for event in events.read(str(path))[0]]
        if notes:
            return notes
        time.sleep(0.05)
    return []


def test_a_command_gets_the_finding(tmp_path):
    words = '"$SEATRIAL_FINDING_ID" "$SEATRIAL_RUN_ID" "$SEATRIAL_FINDING"'
    command = f'cd {tmp_path} && printf "%s\\n" {words} > part && mv part done'
    run_alert(command, FINDING, "r1", Journal(str(tmp_path)))
    end = time.monotonic() + 120
    while not (tmp_path / "done").exists() and time.monotonic() < end:
        time.sleep(0.02)
    id, run, finding = (tmp_path / "done").read_text().splitlines()
    assert (id, run) == ("hang", "r1") and json.loads(finding)["fix"] == "fix"


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("echo no such tool >&2; exit 3", "the alert's command failed: no such tool"),
        ("kill -9 $$", "the alert's command failed: it died of signal 9"),
    ],
)
def test_an_alert_that_fails_is_noted(tmp_path, command, note):
    run_alert(command, FINDING, "r1", Journal(str(tmp_path)))
    assert note in noted(tmp_path / "events.jsonl")[0]
