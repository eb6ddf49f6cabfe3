"""Proof of use: which processes count, and which mappings do if NVML lists none."""

import os
import subprocess
import time

import pytest

from fakes import FakeGpu, FakeNvml
from seatrial import events
from seatrial.agent import observer
from seatrial.agent.journal import Journal
from seatrial.agent.observer import Observer
from seatrial.agent.output import Activity, TargetReports
from seatrial.agent.plan import Gpu
from seatrial.common.agent_plan import AgentPlan
from seatrial.probe import processes
from seatrial.probe.sampler import Sampler


@pytest.fixture
def target():
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def observe(tmp_path, target, gpus, seconds=0.6, interval_s=0.1, until=lambda read: True):
    """Return the events of so many seconds, and until ``until`` is true of them (a busy machine takes longer)."""
    expected = [Gpu(gpu.uuid, gpu.name, gpu.minor) for gpu in gpus]
    folder = str(tmp_path)
    plan = AgentPlan("r", [], "/", folder, gpus=expected, sample_interval_s=interval_s)
    journal, activity = Journal(str(tmp_path)), Activity()
    sampler = Sampler([gpu.uuid for gpu in gpus], pynvml=FakeNvml(gpus))
    reports = TargetReports(str(tmp_path / "reports"), journal, activity)
    watching = Observer(plan, sampler, target, journal, reports, activity)
    watching.start()
    end_s = time.monotonic() + 120
    time.sleep(seconds)
    while not until(events.read(str(tmp_path / "events.jsonl"))[0]) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert watching.stop()
    return events.read(str(tmp_path / "events.jsonl"))[0]


def of_type(read, type):
    return [event for event in read if event["type"] == type]


def test_a_context_of_the_target_is_written_once(tmp_path, target):
    used = FakeGpu(uuid="GPU-0", processes=[(1, 7), (target, 543_000_000)])
    read = observe(tmp_path, target, [used], until=lambda read: len(of_type(read, "sample")) >= 3)
    [context] = of_type(read, "gpu.context")
    assert (context["uuid"], context["pid"], context["memory_bytes"]) == ("GPU-0", target, 543_000_000)
    assert context["evidence"] == "nvml-process" and len(of_type(read, "sample")) >= 3


@pytest.mark.parametrize(("own", "contexts"), [(True, 1), (False, 0)])
def test_the_targets_context_is_seen_before_the_first_sample_and_others_prove_nothing(tmp_path, target, own, contexts):
    used = FakeGpu(uuid="GPU-0", processes=[(1, 7), (target if own else os.getpid(), None)])
    read = observe(tmp_path, target, [used], interval_s=30.0)
    assert len(of_type(read, "gpu.context")) == contexts and of_type(read, "sample") == []


def test_mappings_stand_in_where_nvml_lists_no_processes(tmp_path, target, monkeypatch):
    monkeypatch.setattr(processes, "has_cuda_context", lambda pid: pid == target)
    monkeypatch.setattr(processes, "context_minors", lambda pid: [1])
    silent = frozenset({"nvmlDeviceGetComputeRunningProcesses"})
    gpus = [FakeGpu(uuid=f"GPU-{minor}", minor=minor, missing=silent) for minor in (0, 1)]
    [context] = of_type(observe(tmp_path, target, gpus), "gpu.context")
    assert (context["uuid"], context["pid"], context["evidence"]) == ("GPU-1", target, "uvm-mapping")


@pytest.mark.parametrize("early", [True, False])
def test_gpm_is_compared_often_at_first_and_seldom_later(tmp_path, target, monkeypatch, early):
    monkeypatch.setattr(observer, "GPM_FIRST_S", 0.2)
    monkeypatch.setattr(observer, "GPM_INTERVAL_S", 30.0)
    monkeypatch.setattr(observer, "_GPM_FIRST_FOR_S", 60.0 if early else 0.0)
    compared = []
    real = FakeNvml.nvmlGpmMetricsGet
    monkeypatch.setattr(FakeNvml, "nvmlGpmMetricsGet", lambda self, wanted: compared.append(1) or real(self, wanted))
    enough = (lambda read: len(compared) >= 2 and len(of_type(read, "sample")) >= 5) if early else lambda read: True
    read = observe(tmp_path, target, [FakeGpu(uuid="GPU-0")], seconds=1.0, until=enough)
    *known, last = [sample["gpus"][0]["sm_activity_pct"] for sample in of_type(read, "sample")]
    if early:
        assert 2 <= len(compared) < len(known) and known[-1] == 75.25  # in between the last stays
    else:
        assert len(compared) == 1 and set(known) == {None} and last == 75.25  # at the end, what no other sample has
