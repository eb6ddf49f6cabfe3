"""Which way in is chosen from which facts."""

from pathlib import Path

import pytest

from seatrial.backends.containers.injection import DRIVER_FOLDER, choose
from seatrial.errors import GpuContractError
from seatrial.probe import driver_files

from ...probe import driver_trees as trees
from ..planning_facts import CDI_BY_UUID, H200S, NO_DRIVER, SLICE, UUIDS, docker, podman


def test_no_gpus() -> None:
    plan = choose(docker(nvidia_hook=True), (), NO_DRIVER)
    assert plan.strategy == "none"
    assert plan.env == {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
    assert (plan.gpus_flag, plan.devices, plan.runtime) == (None, (), None)


def test_docker_with_the_hook_gets_the_flag() -> None:
    plan = choose(docker(nvidia_hook=True, cdi_devices=CDI_BY_UUID), H200S, NO_DRIVER)
    assert plan.strategy == "nvidia-runtime"
    assert plan.gpus_flag == f'"device={UUIDS[0]},{UUIDS[1]}"'
    assert plan.env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "NVIDIA_VISIBLE_DEVICES" not in plan.env  # Docker sets it from the flag
    assert plan.devices == ()
    assert choose(docker(nvidia_hook=True), (SLICE,), NO_DRIVER).gpus_flag == f'"device={SLICE.uuid}"'


def test_systemd_cgroups_also_name_the_nodes(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.ubuntu(tmp_path, gpus=2)), {})
    plan = choose(docker(nvidia_hook=True, cgroup_driver="systemd"), H200S[1:], driver)
    assert plan.devices == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1")
    assert choose(docker(nvidia_hook=True, cgroup_driver="cgroupfs"), H200S[1:], driver).devices == ()


def test_docker_without_toolkit_takes_cdi() -> None:
    plan = choose(docker(cdi_devices=CDI_BY_UUID), H200S, NO_DRIVER)
    assert plan.strategy == "cdi"
    assert plan.devices == tuple(f"nvidia.com/gpu={uuid}" for uuid in UUIDS)
    assert plan.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert plan.gpus_flag is None


def test_device_nodes_mount_libraries_one_by_one(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.ubuntu(tmp_path, gpus=2)), {})
    plan = choose(docker(), H200S[1:], driver)
    assert plan.strategy == "device-nodes"
    assert plan.devices == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1")
    assert plan.driver_library_folders == (DRIVER_FOLDER,)
    targets = {mount.target: str(mount.source) for mount in plan.mounts}
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{trees.VERSION}"
    assert targets[f"{DRIVER_FOLDER}/libcuda.so.1"] == library
    assert targets[f"{DRIVER_FOLDER}/libnvidia-ml.so.1"].endswith(f"libnvidia-ml.so.{trees.VERSION}")
    assert targets["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert not any("libc.so" in target for target in targets)
    assert all(mount.read_only for mount in plan.mounts)


def test_device_nodes_mount_a_driver_folder_whole(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.one_folder(tmp_path)), {})
    plan = choose(docker(), H200S[:1], driver)
    assert [(str(mount.source), mount.target) for mount in plan.mounts] == [
        ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib64"),
        ("/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
    ]
    assert "read-only root" in plan.reason


def test_wsl(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.wsl(tmp_path)), {})
    plan = choose(docker(), H200S[:1], driver)
    assert plan.devices == ("/dev/dxg",)
    assert plan.mounts[0].target == "/usr/lib/wsl"
    assert plan.driver_library_folders == ("/usr/lib/wsl/lib",)
    assert plan.env["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
    hook = choose(docker(nvidia_hook=True), H200S[:1], driver)
    assert (hook.gpus_flag, hook.env["CUDA_VISIBLE_DEVICES"]) == ("all", UUIDS[0])
    desktop = choose(docker(desktop=True), H200S[:1], driver)
    assert (desktop.strategy, desktop.gpus_flag) == ("nvidia-runtime", "all")
    cdi = choose(podman(cdi_devices=("nvidia.com/gpu=all",)), H200S[:1], driver)
    assert (cdi.devices, cdi.env["CUDA_VISIBLE_DEVICES"]) == (("nvidia.com/gpu=all",), UUIDS[0])


def test_nodes_of_a_group(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.ubuntu(tmp_path, mode=0o660)), {})
    gid = str(driver.gpus[0].gid)
    assert choose(docker(), H200S[:1], driver).groups == (gid,)
    assert choose(docker(nvidia_hook=True), H200S[:1], driver).groups == (gid,)
    assert choose(podman(), H200S[:1], driver).groups == ("keep-groups",)
    assert choose(podman(rootless=False), H200S[:1], driver).groups == (gid,)


def test_no_way_in_reports_what_is_missing(tmp_path: Path) -> None:
    tree = trees.ubuntu(tmp_path)
    (tree / "dev/nvidia-uvm").unlink()
    with pytest.raises(GpuContractError, match="no way to pass GPU 0") as caught:
        choose(docker(), H200S[:1], driver_files.find(str(tree), {}))
    assert "/dev/nvidia-uvm" in (caught.value.cause or "")
    assert caught.value.exit_code == 3
    assert (caught.value.run or "").startswith("sudo nvidia-modprobe")


ONE_INDEX = ("nvidia.com/gpu=0", "nvidia.com/gpu=all")
REFUSED = {
    "a spec without one of the GPUs": (podman(cdi_devices=ONE_INDEX), H200S, None, "GPU", None),
    "rootless Docker at nodes of a group": (docker(rootless=True), H200S[:1], 0o660, "Docker cannot open", None),
    "runc, which keeps no groups": (podman(runtimes=("runc",)), H200S[:1], 0o660, "Rootless Podman cannot open", None),
    "a virtual machine": (docker(desktop=True), H200S[:1], 0o666, "virtual machine", "docker context use default"),
    "a MIG slice without the toolkit": (docker(), (SLICE,), 0o666, "MIG slice", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gpus_that_cannot_be_passed_are_refused(name: str, tmp_path: Path) -> None:
    engine, gpus, mode, message, run = REFUSED[name]
    driver = NO_DRIVER if mode is None else driver_files.find(str(trees.ubuntu(tmp_path, mode=mode)), {})
    with pytest.raises(GpuContractError, match=message) as caught:
        choose(engine, gpus, driver)
    assert run in (None, caught.value.run)


def test_rootless_podman_without_access_to_the_nodes(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.ubuntu(tmp_path)), {})
    closed = driver._replace(gpus={0: driver.gpus[0]._replace(accessible=False, world=False)})
    with pytest.raises(GpuContractError, match="Rootless Podman cannot open /dev/nvidia0") as caught:
        choose(podman(), H200S[:1], closed)
    assert caught.value.run == "sudo chmod a+rw /dev/nvidia0"
