"""The sampler against a fake NVML: every key, nulls where a counter is missing, and lost GPUs."""

import os
import signal
import subprocess
import sys
import time

from fakes import FakeGpu, FakeNvml
from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.probe import container, processes
from seatrial.probe.nvml import ComputeProcess
from seatrial.probe.processes import Tree
from seatrial.probe.sampler import Sampler

UUID = FakeGpu().uuid
SHORT_S = 0.12


def test_a_sample_has_every_key_in_its_unit_and_gpm_needs_time_and_frees_what_it_took():
    module = FakeNvml()
    sampler = Sampler([UUID], pynvml=module, gpm_interval_s=0)
    [gpu] = sampler.sample()["gpus"]
    assert tuple(gpu) == GPU_SAMPLE_KEYS and gpu["throttle_reasons"] == ["sw_power_cap"]
    assert gpu["power_w"] == 350.5 and gpu["energy_j"] == 5000.0 and gpu["sm_clock_mhz"] == 1980
    assert gpu["sm_activity_pct"] is None
    for _ in range(2):
        time.sleep(SHORT_S)
        [gpu] = sampler.sample()["gpus"]
        assert gpu["sm_activity_pct"] == 75.25 and gpu["dram_activity_pct"] == 12.0
    sampler.close()
    assert module.gpm_samples_alive == 0


def test_counters_that_the_chip_lacks_are_null_not_zero():
    old = FakeGpu(gpm={}, missing=frozenset({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"}))
    sampler = Sampler([UUID], pynvml=FakeNvml([old]), gpm_interval_s=0)
    time.sleep(SHORT_S)
    [gpu] = sampler.sample()["gpus"]
    assert gpu["sm_activity_pct"] is None and gpu["energy_j"] is None and gpu["power_w"] is None
    assert gpu["utilization_pct"] == 90.0 and sampler.energy_j() == {UUID: None}


def test_throttle_reasons_by_the_name_that_older_drivers_know():
    old = FakeGpu(missing=frozenset({"nvmlDeviceGetCurrentClocksEventReasons"}), throttle_bits=0x40)
    assert Sampler([UUID], pynvml=FakeNvml([old])).sample()["gpus"][0]["throttle_reasons"] == ["hw_thermal_slowdown"]


def test_energy_is_read_seldom():
    module = FakeNvml()
    sampler = Sampler([UUID], pynvml=module)
    read = [sampler.sample()["gpus"][0]["energy_j"] for _ in range(5)]
    assert read == [5000.0, None, None, None, None] and module.energy_reads == 1


def test_a_slice_is_measured_through_its_parent_by_gpm():
    parent = FakeGpu(uuid="GPU-a", gpm={})
    parent.slices = [
        FakeGpu(uuid="MIG-a", parent=parent, gpm={2: 10.0}),
        FakeGpu(uuid="MIG-b", parent=parent, gpm={2: 20.0}),
    ]
    sampler = Sampler(["MIG-b"], pynvml=FakeNvml([parent]), gpm_interval_s=0)
    time.sleep(SHORT_S)
    [gpu] = sampler.sample()["gpus"]
    assert gpu["sm_activity_pct"] == 20.0 and gpu["tensor_activity_pct"] is None and gpu["utilization_pct"] is None


def test_a_gpu_lost_during_the_run_keeps_its_place_and_the_other_is_still_read():
    gpus = [FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")]
    sampler = Sampler(["GPU-0", "GPU-1"], pynvml=FakeNvml(gpus))
    gpus[0].lost = True
    first, second = sampler.sample()["gpus"]
    assert first["uuid"] == "GPU-0" and first["utilization_pct"] is None and second["utilization_pct"] == 90.0
    assert sampler.lost == {"GPU-0"} and sampler.compute_processes("GPU-0") is None


def test_no_nvml_still_samples_the_container():
    sampler = Sampler([UUID], pynvml=FakeNvml(init_error=18))
    sample = sampler.sample()
    assert "different versions" in sampler.error and sample["gpus"][0]["power_w"] is None
    assert sample["shm_total_bytes"] > 0


def test_an_unknown_uuid_is_printed():
    assert "GPU-x" in Sampler(["GPU-x"], pynvml=FakeNvml()).error


#: Has its memory, burns BURNT_S of CPU when it is reported to, and waits: however long a busy machine takes for either.
BURNER = """
import time
data = b"x" * 50_000_000
print("ready", flush=True)
input()
until_s = time.process_time() + 0.5
while time.process_time() < until_s: pass
print("burnt", flush=True)
input()
"""
BURNT_S = 0.5


def test_cpu_and_memory_of_another_process():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BURNER], **pipes, text=True, bufsize=1) as burner:
        assert burner.stdout.readline() == "ready\n"
        made_s = time.monotonic()
        sampler = Sampler([], pid=burner.pid)
        made_by_s = time.monotonic()
        burner.stdin.write("\n")
        assert burner.stdout.readline() == "burnt\n"
        read_s = time.monotonic()
        sample = sampler.sample()
        read_by_s = time.monotonic()
        burner.stdin.write("\n")
    # Rounded to a thousandth of a core, of CPU time that the kernel reports in hundredths of a second.
    least, most = (BURNT_S - 0.03) / (read_by_s - made_s), (BURNT_S + 0.1) / (read_s - made_by_s)
    assert least - 0.001 <= sample["cpu_cores"] <= most + 0.001
    assert 50_000_000 < sample["memory_bytes"] < 100_000_000 and sample["processes"] == 1


def test_processes_have_memory_and_their_share():
    gpu = FakeGpu(processes=[(7, 543_000_000), (8, None)], shares={7: 60})
    assert Sampler([UUID], pynvml=FakeNvml([gpu])).processes(UUID) == [
        ComputeProcess(7, 543_000_000, 60.0),
        ComputeProcess(8, None, 0.0),
    ]


def test_a_driver_that_stops_answering_is_reported_from_a_lost_gpu_and_may_come_back():
    gpu = FakeGpu()
    sampler = Sampler([UUID], pynvml=FakeNvml([gpu]))
    sampler.sample()
    gpu.failing = True
    assert sampler.sample()["gpus"][0]["temperature_c"] is None and sampler.failing == {UUID} and not sampler.lost
    gpu.failing = False
    sampler.sample()
    assert not sampler.failing


def test_xids_are_reported_once():
    gpu = FakeGpu()
    sampler = Sampler([UUID], pynvml=FakeNvml([gpu]))
    gpu.xids += [79, 79]
    assert sampler.xids() == {UUID: [79, 79]} and sampler.xids() == {}


def test_ten_samples_a_second_compare_gpm_once(monkeypatch):
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    gpu = FakeGpu()
    sampler = Sampler([UUID], pynvml=FakeNvml([gpu]), gpm_interval_s=1.0)
    read = []
    for percent in range(11):
        now_s += 0.1
        gpu.gpm[2] = float(percent)
        read.append(sampler.sample()["gpus"][0]["sm_activity_pct"])
    known = [value for value in read if value is not None]
    assert read[:8] == [None] * 8 and len(known) >= 2 and set(known) == {known[0]}  # stays until the next is due


def burning(sampler, name):
    """A sample in which this is more than nothing: on a busy machine a burner may wait for its turn."""
    for _ in range(40):
        time.sleep(0.5)
        if (sample := sampler.sample())[name] > 0.05:
            break
    return sample


def test_main_processes_are_reported_from_workers(monkeypatch):
    """A main that sleeps with a child that burns, then the child named as a main too."""
    monkeypatch.setattr(container, "INTERVAL_S", 0.4)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    main = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not (children := processes.descendants(main.pid)):
            time.sleep(0.05)
        sampler = Sampler([], pid=main.pid)
        sample = burning(sampler, "worker_cpu_cores")
        assert sample["workers"] == 1 and sample["worker_cpu_cores"] > 0.05 > sample["main_cpu_cores"]
        sampler.mains.update({main.pid, children[0].pid})
        sample = burning(sampler, "main_cpu_cores")
        assert sample["workers"] == 0 and sample["main_cpu_cores"] > 0.05 and sample["worker_cpu_cores"] == 0
    finally:
        for process in processes.descendants(main.pid):
            os.kill(process.pid, signal.SIGKILL)
        main.kill()
        main.wait()


def test_the_container_is_read_once_a_second_however_often_it_is_requested(monkeypatch):
    read = []
    real = Tree.read
    monkeypatch.setattr(Tree, "read", lambda self: read.append(1) or real(self))
    sampler = Sampler([])
    first = sampler.sample()
    assert [sampler.sample() for _ in range(5)] == [first] * 5 and len(read) == 2  # when it was made, and once since
    time.sleep(container.INTERVAL_S)
    sampler.sample()
    assert len(read) == 3
