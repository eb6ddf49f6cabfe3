"""doctor on real engines: what it sees inside real containers, of broken images and broken configurations.

The host's own facts are made up (a root with a driver, NVML), since no GPU is here; the engine, the containers, the
images and the look inside are real, with a CUDA driver made for it (fake_libcuda.c).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from cdi_specs import written_spec
from engines import BuildImage
from fake_driver import compile_driver
from machines import UUID, FakeHost, healthy
from pace import until
from seatrial.backends.containers.cdi import spec_text
from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.doctor import inspection as inspection_module
from seatrial.doctor import report
from seatrial.doctor.examine import Result, examine
from seatrial.doctor.explain import explain_text
from seatrial.doctor.inspection import InspectionRequest
from seatrial.doctor.machine import Machine
from seatrial.probe import nvml
from seatrial.system import command
from seatrial.system.host import Host

IMAGE = "python:3.11-slim-bookworm"
HEX = UUID.removeprefix("GPU-").replace("-", "")

pytestmark = pytest.mark.xdist_group("doctor")


def breaks_module() -> ModuleType:
    """benchmarks/doctor_breaks.py, which runs the same cases on a GPU."""
    path = Path(__file__).parents[2] / "benchmarks" / "doctor_breaks.py"
    spec = importlib.util.spec_from_file_location("doctor_breaks", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["doctor_breaks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    return compile_driver(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path / "root")


def machine(host: FakeHost, engine: Docker | Podman, request: InspectionRequest) -> Machine:
    """Real engine and containers, on a host of which the rest is made up."""

    def run(argv: Sequence[str], **options: Any) -> command.Completed:
        real = tuple(argv[: len(engine.call)]) == tuple(engine.call)
        return command.run(argv, **options) if real else host._run(argv, **options)

    environ = {**os.environ, f"SEATRIAL_{engine.name.upper()}": " ".join(engine.call)}
    nvml = host.machine().pynvml
    return Machine(Host(environ), root=host.root, run=run, pynvml=nvml, on=engine.name, inspect=request)


def by_check(results: list[Result]) -> dict[str, Result]:
    return {result.check.id: result for result in results}


def fake_driver(module: ModuleType, libcuda: Path, **env: str) -> Any:
    nodes = {f"/dev/{name}": "/dev/null" for name in ("nvidiactl", "nvidia-uvm")}
    variables = {"LD_LIBRARY_PATH": "/driver", "FAKE_CUDA_GPUS": HEX, **env}
    return module.Driver(
        control=nodes,
        gpus={"/dev/nvidia0": "/dev/null"},
        mounts=("-v", f"{libcuda}:/driver:ro"),
        libcuda=("/driver/libcuda.so.1",),
        env=tuple(word for name, value in variables.items() for word in ("-e", f"{name}={value}")),
    )


#: What the made-up driver must do for a real one's answer to that break.
ANSWERS = {
    "device node withheld": {"FAKE_CUDA_GPUS": ""},
    "CUDA_VISIBLE_DEVICES wrong": {"FAKE_CUDA_GPUS": ""},
    "uvm node missing": {"FAKE_CUDA_FAIL": "cuInit:999"},
}
CASES = ("healthy", "device node withheld", "libcuda hidden", "CUDA_VISIBLE_DEVICES wrong", "64 MB of shared memory")


@pytest.mark.docker
@pytest.mark.parametrize("name", [*CASES, "uvm node missing"])
def test_a_break_in_a_running_container_is_named(
    name: str, docker_backend: Docker, host: FakeHost, libcuda: Path, tmp_path: Path
) -> None:
    module = breaks_module()
    empty = tmp_path / "empty"
    empty.touch()
    driver = fake_driver(module, libcuda, **ANSWERS.get(name, {}))
    case = module.cases(driver, empty)[name]
    with module.container("docker", IMAGE, case.options, "python3") as container:
        results = examine(machine(host, docker_backend, InspectionRequest(container=container)))
    reported = report.to_dict(results)
    # NVML has no fake that a container could load, so its own words are of a missing library there.
    if name in ("healthy", "64 MB of shared memory"):
        assert by_check(results)["container.gpus"].verdict.status == "ok"
        assert by_check(results)["container.kernels"].verdict.status == "ok"
    assert module.judge(case, reported) is None, json.dumps(reported["checks"], indent=1)


@pytest.mark.docker
def test_an_image_is_started_with_what_the_user_gives(docker_backend: Docker, host: FakeHost) -> None:
    """Without a way to bring these GPUs in the break is named, and no container starts."""
    host.docker = None
    for name in ("nvidia-container-runtime-hook", "nvidia-container-runtime"):
        host.remove(f"/usr/bin/{name}")
    results = by_check(examine(machine(host, docker_backend, InspectionRequest(image=IMAGE))))
    starts = results["container.starts"].verdict
    # The nodes of the made-up root are not on the real host: the engine reports it, and the catalogue or we know it.
    assert starts.status == "broken" and starts.findings[0].evidence
    assert results["image.present"].verdict.status == "ok"
    listing = ["docker", "ps", "-aq", "--filter", "label=seatrial.doctor"]
    # Those of other tests, which run at the same time, end by themselves.
    until(lambda: not subprocess.run(listing, capture_output=True).stdout, "the end of doctor's containers")


SITE = "/usr/local/lib/python3.11/dist-packages"
CUDNN = f"{SITE}/nvidia_cudnn_cu13-9.19.0.56.dist-info"

#: Five breaks in one image; each is another check's.
BROKEN = f"""
FROM {IMAGE}
RUN mkdir -p {SITE}/torch {SITE}/nvidia/cudnn/lib {CUDNN}
RUN printf "__version__ = '2.11.0+cpu'\\ncuda: object = None\\n" > {SITE}/torch/version.py
RUN touch {SITE}/nvidia/cudnn/lib/libcudnn.so.9 /usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0
RUN printf "Metadata-Version: 2.1\\nName: nvidia-cudnn-cu13\\nVersion: 9.19.0.56\\n" > {CUDNN}/METADATA
RUN touch /usr/lib/x86_64-linux-gnu/libcuda.so.1
ENV NVIDIA_REQUIRE_CUDA="cuda>=99.0" NVIDIA_DRIVER_CAPABILITIES=utility CUDA_VISIBLE_DEVICES=all
"""


@pytest.mark.docker
def test_a_broken_image_is_named(build_image: BuildImage, docker_backend: Docker, host: FakeHost) -> None:
    tag = build_image(docker_backend.call, BROKEN)
    results = by_check(examine(machine(host, docker_backend, InspectionRequest(image=tag))))
    found = {id: [finding.id for finding in result.verdict.findings] for id, result in results.items()}
    assert found["framework.torch-build"] == ["torch-cpu-only"]
    assert found["framework.cudnn"] == ["cudnn-versions"]
    assert found["image.driver-libraries"] == ["driver-libraries-in-image"]
    assert found["image.requires"] == ["image-requires-newer-driver"]
    assert sorted(found["image.variables"]) == ["capabilities-lack-compute", "cuda-visible-devices"]


@pytest.mark.docker
def test_an_image_without_python_leaves_nothing_claimed(
    build_image: BuildImage, docker_backend: Docker, host: FakeHost
) -> None:
    tag = build_image(docker_backend.call, 'FROM scratch\nCMD ["/x"]\n')
    results = by_check(examine(machine(host, docker_backend, InspectionRequest(image=tag))))
    assert results["image.python"].verdict.status == "unknown"
    for id in ("image.driver-libraries", "container.gpus", "framework.torch-build"):
        assert results[id].verdict.status == "skipped" and "no Python" in results[id].verdict.line, id


@pytest.mark.docker
def test_a_python_that_is_not_there_is_one_broken_link(docker_backend: Docker, host: FakeHost) -> None:
    request = InspectionRequest(image=IMAGE, python="/nosuch")
    results = by_check(examine(machine(host, docker_backend, request)))
    assert [id for id, result in results.items() if result.verdict.status in ("broken", "unknown")] == ["image.python"]
    assert "/nosuch" in results["image.python"].verdict.line


@pytest.mark.podman
def test_podman_resolves_the_spec_that_we_write(podman_backend: Podman, host: FakeHost, tmp_path: Path) -> None:
    """A real container gets the devices and the libraries of a generated spec, through Podman's own CDI."""
    if os.getuid() != 0:
        pytest.skip("only root makes device nodes and writes /etc/cdi")
    machine = host.machine()
    spec = yaml.safe_load(spec_text(machine.driver, machine.inventory.gpus, machine.root))
    spec["kind"] = "seatrial.test/gpu"
    for edits in (spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])):
        for node in edits.get("deviceNodes", ()):
            node["hostPath"] = "/dev/null"
        for mount in edits.get("mounts", ()):
            mount["hostPath"] = f"{host.root}{mount['hostPath']}"
    with written_spec(f"seatrial-test-{os.getpid()}.yaml", yaml.safe_dump(spec)):
        program = "ls /dev | grep nvidia; ls /usr/lib/x86_64-linux-gnu/libcuda.so.1; echo $NVIDIA_VISIBLE_DEVICES"
        argv = [*podman_backend.call, "run", "--rm", "--device", "seatrial.test/gpu=all", IMAGE, "sh", "-c", program]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        "nvidiactl",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "void",
    ]


SPEC_OF_A_GPU_THAT_IS_GONE = """
cdiVersion: 0.5.0
kind: seatrial.test/gpu
devices:
- name: node
  containerEdits:
    deviceNodes: [{path: /dev/nvidia-gone}]
- name: library
  containerEdits:
    mounts: [{hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.1.2.3, containerPath: /x, options: [ro, bind]}]
"""


@pytest.mark.podman
@pytest.mark.parametrize(
    ("device", "finding"),
    [
        ("nvidia.com/gpu=all", "cdi-unresolvable"),
        ("seatrial.test/gpu=node", "cdi-spec-stale"),
        ("seatrial.test/gpu=library", "cdi-spec-stale"),
    ],
)
def test_podmans_own_words_of_a_missing_or_stale_spec_are_known(
    podman_backend: Podman, device: str, finding: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root writes /etc/cdi")
    with written_spec(f"seatrial-stale-{os.getpid()}.yaml", SPEC_OF_A_GPU_THAT_IS_GONE):
        if device in podman_backend.facts().cdi_devices and device.startswith("nvidia"):
            pytest.skip("this machine has a CDI spec of its GPUs")
        argv = [*podman_backend.call, "run", "--rm", "--device", device, IMAGE, "true"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert [found.id for found in explain_text(done.stderr)] == [finding], done.stderr


@pytest.mark.docker
def test_wrong_runtime_name_is_known_by_its_error(docker_backend: Docker) -> None:
    argv = ["docker", "run", "--rm", "--runtime", "nvidia", IMAGE, "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert [finding.id for finding in explain_text(done.stderr)] == ["runtime-unknown"]


@pytest.mark.docker
def test_gpus_without_a_toolkit_are_known_by_their_error(docker_backend: Docker) -> None:
    if docker_backend.facts().nvidia_hook:
        pytest.skip("this Docker has the toolkit")
    argv = ["docker", "run", "--rm", "--gpus", "all", IMAGE, "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert [finding.id for finding in explain_text(done.stderr)] == ["toolkit-missing"]


def test_an_engine_that_hangs_is_reported_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that accepts the connection and sends nothing."""
    path = tmp_path / "docker.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    held: list[socket.socket] = []
    threading.Thread(target=lambda: held.append(server.accept()[0]), daemon=True).start()
    start = time.monotonic()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    results = by_check(examine(Machine(on="docker")))
    seconds = time.monotonic() - start
    server.close()
    verdict = results["engine.docker"].verdict
    assert verdict.status == "broken" and "does not respond" in verdict.line and seconds < 45
    assert results["image.present"].verdict.status in ("blocked", "skipped")


@pytest.mark.slow
@pytest.mark.torch
def test_two_ranks_sum_and_a_rank_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU through gloo: the program, its ranks, its meeting point and its time-out are those of a GPU."""
    pytest.importorskip("torch")
    monkeypatch.setattr(inspection_module, "COLLECTIVE_S", 120.0)
    process = Machine(on="local")
    assert process.inspection.collective["ok"] is True, process.inspection.collective
    types = process.inspection.types
    assert types["torch"]["version"] and (types["torch"]["cuda"] or "CPU-only" in types["error"])
    monkeypatch.setattr(inspection_module, "COLLECTIVE_S", 0.3)  # less than the import of torch takes
    reported = Machine(on="local").inspection.collective
    assert reported["hung"] and not reported["ok"] and reported["without_p2p"]["hung"]


@pytest.mark.gpu
def test_a_real_gpu_is_green_as_a_plain_process() -> None:
    if not nvml.present():
        pytest.skip("no NVIDIA driver here")
    results = examine(Machine(on="local"))
    layers = ("hardware", "driver", "userspace", "container")
    wrong = {r.check.id: r.verdict for r in results if r.check.layer in layers and r.verdict.status == "broken"}
    assert wrong == {}
    assert by_check(results)["container.kernels"].verdict.status == "ok"


@pytest.mark.docker
def test_network_without_its_bridge_is_found_by_a_container_that_joins_it(
    docker_backend: Docker, host: FakeHost
) -> None:
    """On a network of the test's own; by default doctor's container joins the one that runs join."""
    assert InspectionRequest().network is None
    name = f"doctor-{os.getpid()}"
    bridge = f"br-{os.getpid()}"
    made = ["network", "create", "--opt", f"com.docker.network.bridge.name={bridge}", name]
    if subprocess.run([*docker_backend.call, *made], capture_output=True).returncode != 0:
        pytest.skip("this engine makes no bridge")
    try:
        if shutil.which("ip") is None or subprocess.run(["ip", "link", "del", bridge]).returncode != 0:
            pytest.skip("the engine's bridge is not this machine's, or not this user's to remove")
        results = by_check(examine(machine(host, docker_backend, InspectionRequest(image=IMAGE, network=name))))
        reported = results["image.python"].verdict
        assert reported.status == "broken" and reported.findings[0].id == "network-bridge-missing"
        assert bridge in reported.findings[0].message
    finally:
        subprocess.run([*docker_backend.call, "network", "rm", name], capture_output=True)
