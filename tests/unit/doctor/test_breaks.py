"""Every failure that doctor knows, made on purpose: test_breaks.toml reproduces each finding of each check.

A break changes one thing of a healthy machine. The check must find it, show evidence and a fix; and where the chain
breaks, no earlier link may be blamed. Breaks of real engines and images are in tests/integration/test_doctor.py too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import FakeGpu
from machines import RECORDED, SPEC, UUID, VERSION, FakeHost, HealthGpu, docker_info, healthy, podman_info
from seatrial.doctor.check import Verdict
from seatrial.doctor.cluster import ClusterObjects
from seatrial.doctor.examine import CHAIN, Result, examine
from seatrial.doctor.inspection import InspectionRequest, LookError
from seatrial.doctor.machine import Machine
from seatrial.errors import CommandTimeoutError, GpuContractError
from seatrial.system.command import Completed
from tables import cases, constant
from unit.probe import driver_trees as trees

Break = Callable[[FakeHost], object]

#: (check, finding) → the break. Several for one pair carry a slash.
BREAKS: dict[tuple[str, str], Break] = {}

LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def breaks(check: str, finding: str, function: Break) -> None:
    while (check, finding) in BREAKS:
        check += "/"
    BREAKS[check, finding] = function


class Breaker:
    """Changes that test_breaks.toml names and FakeHost lacks."""

    def __init__(self, host: FakeHost) -> None:
        self.host, self.root = host, host.root

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    def set(self, **fields: object) -> None:
        vars(self.host).update(fields)

    def facts(self, place: str, **changes: object) -> None:
        """Change what was seen inside; ``place``: keys and indices, dots between them."""
        name, *keys = place.split(".")
        found = getattr(self.host, name)
        for key in keys:
            found = found[int(key) if key.isdigit() else key]
        found.update(changes)

    # the bus and the driver

    def off_the_bus(self) -> None:
        (self.root / "sys/bus/pci/devices/0000:10:00.0/config").write_bytes(b"\xff" * 64)

    def no_module(self) -> None:
        self.host.remove("/proc/driver/nvidia/version")
        self.host.nvml_error = 9

    def closed_modules(self) -> None:
        closed = trees.NVRM.replace("Open Kernel Module", "x86_64 Kernel Module")
        self.host.write("/proc/driver/nvidia/version", closed)

    def another_gpu(self, **fields: Any) -> None:
        self.host.gpus.append(HealthGpu(**fields) if fields else None)

    def no_nvml(self) -> None:
        for file in (self.root / LIBRARIES.lstrip("/")).glob("lib*nvidia-ml*"):
            file.unlink()

    def libraries(self, version: str) -> None:
        self.host.remove(LIBRARIES)
        trees.libraries(self.root, LIBRARIES, version)

    def older_driver(self, version: str) -> None:
        self.host.nvml_driver = version
        self.libraries(version)
        trees.kernel(self.root, version=version)
        self.host.answer("modinfo", "-F", "version", "nvidia", stdout=version + "\n")

    def wsl(self) -> None:
        for path in ("/proc/driver/nvidia", "/sys/bus", LIBRARIES):
            self.host.remove(path)
        for node in (self.root / "dev").iterdir():
            node.unlink()
        trees.wsl(self.root)

    def cu_init(self, status: int | None = None) -> None:
        shown = json.dumps([status, f"cuInit: CUDA_ERROR ({status})", 0])
        self.host.answer(sys.executable, stdout=shown + "\n")

    def variables(self, **values: str) -> None:
        self.host.environ.update(values)

    # engines

    def without(self, engine: str) -> None:
        setattr(self.host, engine, None)

    def info(self, engine: str, code: int, stdout: str, stderr: str) -> None:
        setattr(self.host, engine, Completed((engine, "info"), code, stdout, stderr))

    def docker_hangs(self) -> None:
        message = "docker did not respond within 3 s"
        self.host.docker = CommandTimeoutError(message, argv=["docker", "info"], exit_code_of_command=-9, stderr="")

    def docker_is_podman(self, stderr: str = "") -> None:
        self.info("docker", 0, json.dumps(podman_info(), indent=2), stderr)

    def docker(self, **changes: object) -> None:
        self.host.docker = docker_info(**changes)

    def podman(self) -> None:
        self.host.podman = podman_info()

    def podman_without_subids(self) -> None:
        self.host.podman = info = podman_info()
        info["host"]["security"]["rootless"] = True
        info["host"]["idMappings"] = {"uidmap": [{"container_id": 0, "host_id": 1000, "size": 1}]}

    def old_daemon(self) -> None:
        os.utime(self.root / "var/run/docker.pid", (1, 1))

    def without_toolkit(self, **changes: object) -> None:
        for name in ("nvidia-container-runtime-hook", "nvidia-container-runtime"):
            self.host.remove(f"/usr/bin/{name}")
        self.docker(Runtimes={"runc": {"path": "runc"}}, **changes)

    # CDI

    def docker_takes_cdi(self) -> None:
        devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]
        self.without_toolkit(DiscoveredDevices=devices, CDISpecDirs=["/etc/cdi", "/var/run/cdi"])

    def cdi_is_off(self) -> None:
        self.docker(Runtimes={"runc": {"path": "runc"}}, ServerVersion="27.5.1", CDISpecDirs=None)

    def spec(self, *, path: str = SPEC, version: str = VERSION, uvm: bool = True, name: str = "all") -> None:
        """Write a spec as nvidia-ctk does, of this machine."""
        nodes = ["/dev/nvidiactl", "/dev/nvidia0", *(["/dev/nvidia-uvm"] if uvm else [])]
        library = f"{LIBRARIES}/libcuda.so.{version}"
        content = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}],
            "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]},
        }
        self.host.write(path, yaml.safe_dump(content))

    def spec_with_hooks(self, *programs: str) -> None:
        """Hooks in the edits of all devices, and in those of one."""
        self.docker_takes_cdi()
        self.spec()
        written = yaml.safe_load((self.root / SPEC.lstrip("/")).read_text())
        hooks = [{"hookName": "createContainer", "path": path, "args": ["nvidia-cdi-hook"]} for path in programs]
        written["containerEdits"]["hooks"] = hooks[:1]
        written["devices"][0]["containerEdits"]["hooks"] = hooks[1:]
        self.host.write(SPEC, yaml.safe_dump(written))

    def executable(self, path: str) -> None:
        self.host.write(path)
        self.host.machine().here(path).chmod(0o755)

    # the image and the container

    def container(self, name: str) -> None:
        self.host.request = InspectionRequest(container=name)

    def image_with(self, **env: str) -> None:
        assert self.host.image is not None
        self.host.image = replace(self.host.image, env=env)

    def fails(self, part: str, message: str, stderr: str) -> None:
        setattr(self.host, part, LookError(message, stderr))

    def no_such_python(self) -> None:
        message = 'OCI runtime create failed: exec: "/nosuch": stat /nosuch: no such file or directory: unknown.'
        self.host.still = self.host.live = LookError("The image cannot run /nosuch", message)

    def not_injectable(self) -> None:
        message = "Docker has no way to pass GPU 0 to the container"
        self.host.live = GpuContractError(message, cause="…", run="ls -l /dev/nvidia*")

    def blind(self, cu_init: int | None = None, *, libcuda: bool = True, **facts: object) -> None:
        """CUDA in the container shows nothing."""
        self.facts("live.cuda", visible=[], kernels=[], cu_init=cu_init, error=f"cuInit: ({cu_init})")
        if not libcuda:
            self.facts("live.cuda", libcuda=None)
        self.facts("live", **facts)

    def second_gpu_unseen(self) -> None:
        for seen in ("visible", "kernels"):
            self.host.live["cuda"][seen].pop()

    def torch(self, version: str, cuda: str | None = None) -> None:
        self.facts("still", torch={"version": version, "cuda": cuda})


def change(steps: tuple[tuple[Any, ...], ...], host: FakeHost) -> None:
    for name, *words in steps:
        keys = words.pop() if words and isinstance(words[-1], dict) else {}
        getattr(Breaker(host), name)(*words, **keys)


for _key, _steps in constant(__file__, "BREAKS").items():
    breaks(*_key.split(" ")[:2], partial(change, _steps))


# ----------------------------------------------------------------- kubernetes


def node(capacity: int = 8, allocatable: int = 8) -> dict[str, object]:
    status = {"capacity": {"nvidia.com/gpu": str(capacity)}, "allocatable": {"nvidia.com/gpu": str(allocatable)}}
    return {"metadata": {"name": "gpu-1"}, "status": status if capacity else {"capacity": {}, "allocatable": {}}}


def pod(name: str = "train", gpus: int = 1, on: str | None = "gpu-1", **status: object) -> dict[str, object]:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": containers, **({"nodeName": on} if on else {})},
        "status": {"phase": "Running" if on else "Pending", **status},
    }


CLUSTERS: dict[int, ClusterObjects] = {}


def cluster(objects: Mapping[str, object], host: FakeHost) -> None:
    host.write("/home/u/.kube/config", "apiVersion: v1\n")
    CLUSTERS[id(host)] = ClusterObjects("https://10.0.0.1:6443", **{"nodes": [node()], **objects})  # type: ignore[arg-type]


def dead_cluster(host: FakeHost) -> None:
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    host.write("/home/u/.kube/config", yaml.safe_dump(text))


GPUS, NO_RUNTIME = (
    "requests.nvidia.com/gpu",
    'failed to get sandbox runtime: no runtime for "nvidia" is configured',
)
WAITING = {"image": "x:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
SEEN: dict[tuple[str, str], Mapping[str, object]] = {
    ("nodes", "k8s-no-gpu-resource"): {"nodes": [node(0)]},
    ("nodes", "k8s-plugin-sees-no-gpu"): {"nodes": [node(0)], "pods": [pod("nvidia-device-plugin-x7", gpus=0)]},
    ("healthy", "k8s-gpu-unhealthy"): {"nodes": [node(8, 7)]},
    ("free", "k8s-insufficient-gpus"): {"pods": [pod(gpus=8), pod("waits", gpus=1, on=None)]},
    ("runtime-class", "k8s-runtime-missing"): {"events": [{"message": NO_RUNTIME}]},
    ("images", "k8s-image-pull"): {"pods": [pod(containerStatuses=[WAITING])]},
    ("namespace", "k8s-quota"): {
        "quotas": [{"metadata": {"name": "gpus"}, "status": {"hard": {GPUS: "8"}, "used": {GPUS: "8"}}}]
    },
    ("operators", "k8s-operator-down"): {
        "groups": ("kubeflow.org",),
        "deployments": [{"metadata": {"name": "training-operator"}, "status": {}}],
    },
    ("rights", "k8s-forbidden"): {"rules": [{"verbs": ["get", "list"], "apiGroups": ["*"], "resources": ["*"]}]},
}
breaks("kubernetes.reachable", "k8s-unreachable", dead_cluster)
for (_check, _finding), _objects in SEEN.items():
    breaks(f"kubernetes.{_check}", _finding, partial(cluster, _objects))


# ---------------------------------------------------------------------- tests

#: Errors whose cause an earlier link shows, too, and is blamed for.
SHOWN_EARLIER = {("userspace.cuda", "mig-no-instances"), ("container.gpus", "device-node-missing")}


def look(host: FakeHost) -> list[Result]:
    machine = host.machine()
    if id(host) in CLUSTERS:
        vars(machine)["cluster"] = CLUSTERS.pop(id(host))
    return examine(machine)


@pytest.mark.parametrize("key", BREAKS, ids=lambda key: " ".join(key))
def test_break_is_found_and_named(key: tuple[str, str], host: FakeHost) -> None:
    BREAKS[key](host)
    check, finding_id = key[0].rstrip("/"), key[1]
    if check == "kubernetes.reachable":
        pytest.importorskip("kr8s")
    if (check, finding_id) == ("userspace.cuda", "mig-no-instances"):
        results = {
            r.check.id: r for r in examine(host.machine(), [layer for layer in CHAIN if layer.name == "userspace"])
        }
    else:
        results = {result.check.id: result for result in look(host)}
    verdict = results[check].verdict
    findings = {finding.id: finding for finding in verdict.findings}
    assert finding_id in findings, verdict
    finding = findings[finding_id]
    assert finding.evidence and all(finding.evidence) and finding.fix and finding.cause
    assert verdict.status == {"error": "broken", "warning": "warning", "info": "ok"}[verdict.findings[0].severity]
    first = next((id for id, result in results.items() if result.verdict.status == "broken"), None)
    if verdict.status == "broken":
        assert first == check or (check, finding_id) in SHOWN_EARLIER, results[first or check].verdict
    else:
        assert first is None, results[first].verdict if first else None


def test_every_finding_of_every_check_has_a_reproduction() -> None:
    made = {(check.rstrip("/"), finding) for check, finding in BREAKS}
    promised = {(check.id, finding) for layer in CHAIN for check in layer.checks for finding in check.finds}
    assert promised - made == set()


def verdict(machine: Machine, check: str) -> Verdict:
    [result] = [result for result in examine(machine) if result.check.id == check]
    return result.verdict


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path)


def test_nodes_that_this_user_may_not_open_are_named(host: FakeHost) -> None:
    machine = host.machine()
    node = machine.driver.gpus[0]._replace(accessible=False, world=False)
    vars(machine)["driver"] = machine.driver._replace(gpus={0: node})
    [finding] = verdict(machine, "userspace.access").findings
    assert (finding.id, finding.fix) == ("device-permission", "sudo chmod a+rw /dev/nvidia0")


def test_slices_are_offered_by_name(host: FakeHost) -> None:
    parent = host.gpus[0]
    assert parent is not None
    parent.slices = [FakeGpu(uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", parent=parent)]
    seen = verdict(host.machine(), "driver.mig")
    assert seen.status == "ok" and "--gpus 0:0" in seen.line


def test_uuids_are_compared_without_their_prefix(host: FakeHost) -> None:
    """CUDA writes GPU- before the UUID of a slice whose name does not show that it is one."""
    host.live["cuda"]["visible"][0]["uuid"] = UUID.replace("GPU-", "MIG-").upper()
    assert verdict(host.machine(), "container.gpus").status == "ok"


def test_spec_whose_hooks_can_run_is_fresh(host: FakeHost) -> None:
    change((("executable", "/usr/bin/nvidia-cdi-hook"), ("spec_with_hooks", "/usr/bin/nvidia-cdi-hook")), host)
    assert verdict(host.machine(), "cdi.fresh").status == "ok"


def test_docker_whose_containerd_has_no_version_has_its_parts(host: FakeHost) -> None:
    """Return the output of Debian's Docker 28.5.2."""
    host.docker = json.loads((RECORDED / "docker-info-28.5.2.json").read_text())
    assert host.docker["ContainerdCommit"]["ID"] == ""
    assert verdict(host.machine(), "engine.parts").status == "ok"


@cases("steps", "path", "status")
def test_runtime_is_looked_for_where_the_daemon_finds_it(
    host: FakeHost, steps: tuple[tuple[str, ...], ...], path: str, status: str
) -> None:
    host.remove("/usr/bin/nvidia-container-runtime")
    host.write("/proc/812/environ", "PATH=/usr/bin:/opt/toolkit\0")
    host.docker = docker_info(Runtimes={"nvidia": {"path": path}})
    change(steps, host)
    assert verdict(host.machine(), "engine.runtimes").status == status
