"""NVML inventory, against modules that work and that fail in the ways drivers do."""

import pytest

from fakes import FakeGpu, FakeNvml
from seatrial.probe import nvml


def test_a_gpu_with_all_its_facts():
    inventory = nvml.inventory(FakeNvml())
    assert (inventory.driver_version, inventory.cuda_driver_version) == ("580.159.04", "13.0")
    assert inventory.error is None and inventory.faults == []
    [gpu] = inventory.gpus
    assert gpu.uuid.startswith("GPU-de421f49") and gpu.index == 0 and gpu.minor == 0
    assert gpu.compute_capability == "9.0" and gpu.utilization_pct == 90.0 and not gpu.mig_enabled


def test_slices_are_listed_behind_their_parent():
    parent = FakeGpu(uuid="GPU-a", slices=[FakeGpu(uuid="MIG-a"), FakeGpu(uuid="MIG-b")])
    for part in parent.slices:
        part.parent = parent
    gpus = nvml.inventory(FakeNvml([FakeGpu(uuid="GPU-0"), parent])).gpus
    assert [(gpu.uuid, gpu.mig, gpu.parent_uuid) for gpu in gpus] == [
        ("GPU-0", None, None),
        ("GPU-a", None, None),
        ("MIG-a", "1:0", "GPU-a"),
        ("MIG-b", "1:1", "GPU-a"),
    ]
    assert gpus[1].mig_enabled and gpus[2].compute_capability == "9.0" and gpus[2].utilization_pct is None


@pytest.mark.parametrize(
    ("number", "words"), [(9, "kernel driver is not loaded"), (18, "different versions"), (4, "permissions")]
)
def test_a_driver_that_does_not_start_is_a_fact(number, words):
    inventory = nvml.inventory(FakeNvml(init_error=number))
    assert inventory.gpus == [] and words in inventory.error


def test_one_withheld_and_one_lost_gpu_do_not_hide_the_third():
    inventory = nvml.inventory(FakeNvml([None, FakeGpu(lost=True), FakeGpu(uuid="GPU-ok")]))
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-ok"] and inventory.gpus[0].index == 2
    assert len(inventory.faults) == 2 and "GPU 1 cannot be read: GPU is lost" in inventory.faults


@pytest.mark.skipif(nvml.present(), reason="this machine has NVIDIA's NVML")
def test_no_driver_at_all_is_printed_without_importing_pynvml():
    assert "libnvidia-ml.so.1 cannot be loaded" in nvml.inventory().error
    with pytest.raises(nvml.NvmlError):
        nvml.compute_processes("GPU-x")
