"""The override, merged with the user's file by Compose itself: what is added, replaced, and left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeBackend
from planning_sites import CDI, GPUS, a_host
from seatrial.backends.base import EngineFacts, ImageFacts
from seatrial.compose.client import unescaped
from seatrial.compose.override import override
from seatrial.compose.plan import ComposeContext, becomes_run, plan_service, select, with_images
from seatrial.compose.read import ComposeFile
from seatrial.errors import GpuContractError, GpuRequestError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.gpus import Selection
from seatrial.job.model import Job, Target
from seatrial.job.plan import Plan
from seatrial.probe.driver_files import DeviceNode, DriverFiles, Library
from seatrial.runs.store import RunStore
from seatrial.system.host import Host
from tables import cases

IMAGE = ImageFacts(
    "sha256:1",
    None,
    entrypoint=("python",),
    cmd=("serve.py",),
    env={"LD_LIBRARY_PATH": "/opt/lib:", "PYTHONPATH": "/app"},
    workdir="/app",
    python="/usr/bin/python3",
)
HOOK = EngineFacts("docker", available=True, reason="a fake", nvidia_hook=True)
PLAIN = EngineFacts("docker", available=True, reason="a fake")
DRIVER = DriverFiles(
    version="580.1",
    control=tuple(DeviceNode(path, 0, True, True) for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")),
    gpus={number: DeviceNode(f"/dev/nvidia{number}", 0, True, True) for number in (0, 1)},
    libraries=(Library("/usr/lib/libcuda.so.580.1", ("libcuda.so.1",), "compute"),),
)

RESERVED = "deploy: {resources: {limits: {cpus: '2'}, reservations: {devices: [%s]}}}"
SEVEN = RESERVED % '{driver: nvidia, device_ids: ["7"], capabilities: [gpu]}'
ONE = RESERVED % "{driver: nvidia, count: 1, capabilities: [gpu]}"


def ground(
    file: ComposeFile,
    tmp_path: Path,
    engine: EngineFacts = HOOK,
    gpus: str | None = None,
    image: ImageFacts = IMAGE,
) -> ComposeContext:
    host = a_host(tmp_path, GPUS, find_driver=lambda: DRIVER)
    job = Job(project=tmp_path, target=Target(kind="image", value=""))
    backend: Any = FakeBackend()
    backend.images.held.update((service.image, image) for service in file.services.values())
    requested = GpuRequest.parse(gpus) if gpus else None
    return ComposeContext(with_images(file, backend), job, backend, engine, host, requested)


def plans(ground: ComposeContext, tmp_path: Path) -> dict[str, Plan]:
    chosen, asks = select(ground, {}), ground.asks()
    store = RunStore(tmp_path, Host({"SEATRIAL_STATE": str(tmp_path / "state")}))
    found = {}
    for number, (name, service) in enumerate(ground.file.services.items()):
        if becomes_run(service, asks.get(name), service.facts.python):
            run = store.run(f"20261122-000000-tes{number}")
            selection = chosen.get(name, Selection((), ()))
            found[name] = plan_service(ground, service, run, selection=selection, ask=asks.get(name))
    return found


def merged(file: ComposeFile, tmp_path: Path, made: dict[str, Plan], **builds: Any) -> dict[str, Any]:
    """Return Compose's merge of both files."""
    path = tmp_path / "override.yaml"
    path.write_text(override(file.services, made, file.short_waits, builds=builds))
    ended = replace(file.compose, override=path).config(())
    assert ended.exit_code == 0, ended.stderr
    services: dict[str, Any] = unescaped(json.loads(ended.stdout))["services"]
    return services


def test_the_agent_goes_around_the_command_and_the_rest_stays(read, tmp_path: Path) -> None:
    file = read(
        f"""
services:
  train:
    image: x
    command: ["train.py", "--name", "$$HOME's 100 %"]
    {ONE}
    environment: {{EPOCHS: "3", LD_PRELOAD: /own.so, NVIDIA_VISIBLE_DEVICES: all}}
    volumes: [".:/src", "data:/data"]
    user: "1000"
    init: true
    tty: true
    healthcheck: {{test: [CMD, python, check.py]}}
    labels: {{mine: "1"}}
volumes: {{data: }}
"""
    )
    made = plans(ground(file, tmp_path), tmp_path)
    plan, train = made["train"], merged(file, tmp_path, made)["train"]
    assert plan.agent.argv == ("python", "train.py", "--name", "$HOME's 100 %")
    assert plan.agent.workdir == "/app" and plan.agent.gpu_mode == "required"
    assert train["entrypoint"][0] == "/seatrial/python/lib/ld.so" and train["entrypoint"][-1] == "/seatrial/plan.json"
    assert not train["command"] and not train.get("init") and not train.get("tty")
    assert train["user"] == "1000" and train["healthcheck"]["test"] == ["CMD", "python", "check.py"]
    assert train["labels"]["mine"] == "1" and train["labels"]["seatrial.run"] == plan.run_id
    assert train["environment"]["EPOCHS"] == "3" and train["environment"]["LD_PRELOAD"] == ""
    assert plan.agent.env["LD_PRELOAD"] == "/own.so"
    assert train["environment"]["LD_LIBRARY_PATH"] == "/opt/lib" and plan.agent.env["LD_LIBRARY_PATH"] == "/opt/lib:"
    assert {each["target"] for each in train["volumes"]} == {
        "/src",
        "/data",
        "/seatrial/run",
        "/seatrial/python",
        "/seatrial/agent.pyz",
        "/seatrial/plan.json",
    }
    assert train["tmpfs"][0].startswith("/src/.seatrial:ro")
    assert train["deploy"]["resources"]["limits"]["cpus"] == 2
    devices = train["deploy"]["resources"]["reservations"]["devices"]
    assert [each["device_ids"] for each in devices] == [[GPUS[0].uuid]]
    assert train["logging"]["driver"] == "local"


WAYS = {
    "the toolkit's runtime": (PLAIN._replace(runtimes=("runc", "nvidia")), {"runtime": "nvidia"}),
    "CDI": (
        PLAIN._replace(cdi_spec_dirs=("/etc/cdi",), cdi_devices=CDI),
        {"requests": [{"capabilities": ["gpu"], "driver": "cdi", "device_ids": ["nvidia.com/gpu=0"]}]},
    ),
}


def test_device_nodes_and_the_drivers_files(read, tmp_path: Path) -> None:
    file = read(f"services:\n  train:\n    image: x\n    {ONE}\n    devices: [/dev/fuse]\n")
    train = merged(file, tmp_path, plans(ground(file, tmp_path, PLAIN), tmp_path))["train"]
    assert not train["deploy"]["resources"]["reservations"].get("devices")
    assert [each["source"] for each in train["devices"]] == [
        "/dev/fuse",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
    ]
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in {each["target"] for each in train["volumes"]}
    assert train["environment"]["LD_LIBRARY_PATH"].endswith("/usr/local/nvidia/lib64")


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("requested", [ONE, "runtime: nvidia\n    environment: {NVIDIA_VISIBLE_DEVICES: '0'}"])
def test_each_way_in_takes_the_place_of_each_way_to_ask(read, tmp_path: Path, name: str, requested: str) -> None:
    engine, expected = WAYS[name]
    file = read(f"services:\n  train:\n    image: x\n    {requested}\n")
    train = merged(file, tmp_path, plans(ground(file, tmp_path, engine), tmp_path))["train"]
    reserved = train.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    assert (reserved or None) == expected.get("requests") and train.get("runtime") == expected.get("runtime")
    visible = train["environment"]["NVIDIA_VISIBLE_DEVICES"]
    assert visible == (GPUS[0].uuid if "runtime" in expected else "void")


@cases("requested")
def test_on_the_cpu_nothing_of_the_request_is_left(read, tmp_path: Path, requested: str) -> None:
    file = read(f"services:\n  train:\n    image: x\n    {requested}\n")
    train = merged(file, tmp_path, plans(ground(file, tmp_path, PLAIN, "none"), tmp_path))["train"]
    assert not train.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    assert "runtime" not in train and train["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    left = [each["source"] for each in train.get("devices") or ()]
    assert left == (["/dev/fuse"] if "fuse" in requested else [])


def test_two_services_get_two_gpus_and_named_ones_are_kept_free(read, tmp_path: Path) -> None:
    named = RESERVED % '{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}'
    file = read(f"services:\n  a:\n    image: x\n    {ONE}\n  b:\n    image: x\n    {named}\n")
    made = plans(ground(file, tmp_path), tmp_path)
    assert [gpu.index for gpu in made["a"].gpus] == [1] and [gpu.index for gpu in made["b"].gpus] == [0]


def test_services_that_follow_each_other_share_the_only_gpu(read, tmp_path: Path) -> None:
    text = f"services:\n  a:\n    image: x\n    {ONE}\n  b:\n    image: x\n    {ONE}\n"
    held = {GPUS[1].uuid: "20261122-000000-else"}
    with pytest.raises(GpuRequestError, match=r"compose.yaml:7: b reserves 1 GPU: .*0 free"):
        select(ground(read(text), tmp_path), held)
    after = read(text + "    depends_on: {a: {condition: service_completed_successfully}}\n")
    chosen = select(ground(after, tmp_path), held)
    assert chosen["a"].gpus == chosen["b"].gpus == GPUS[:1]


def test_a_gpu_that_is_not_there_is_reported_with_service_and_line(read, tmp_path: Path) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {SEVEN}\n")
    with pytest.raises(
        GpuContractError, match=r"compose.yaml:4: a reserves GPU 7: GPU 7 not found; available"
    ) as caught:
        select(ground(file, tmp_path), {})
    assert caught.value.exit_code == 3


def test_the_reader_of_a_volume_waits_and_others_do_not(read, tmp_path: Path) -> None:
    file = read(
        "services:\n  a: {image: x, command: [prep.py], volumes: [d1:/d]}\n"
        "  b: {image: x, command: [train.py], depends_on: [a, c], volumes: [d1:/d]}\n"
        "  c: {image: x, ports: [80]}\nvolumes: {d1: }\n"
    )
    made = plans(ground(file, tmp_path), tmp_path)
    waits = merged(file, tmp_path, made)["b"]["depends_on"]
    assert {name: each["condition"] for name, each in waits.items()} == {
        "a": "service_completed_successfully",
        "c": "service_started",
    }
    assert sorted(made) == ["a", "b"]  # a service without GPUs is Compose's alone


def test_a_service_without_python_gets_the_agent_with_a_python_of_its_own(read, tmp_path: Path) -> None:
    file = read(f"services:\n  a:\n    image: x\n    command: [./train]\n    {ONE}\n")
    none = replace(IMAGE, python=None, entrypoint=())
    made = plans(ground(file, tmp_path, image=none), tmp_path)
    train = merged(file, tmp_path, made)["a"]
    assert train["entrypoint"][0].startswith("/seatrial/python/") and made["a"].agent.argv == ("./train",)
    assert made["a"].interpreter is not None and "sha256:" in made["a"].interpreter


def test_the_framework_of_the_script_that_is_built_in_decides_the_check(read, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "app" / "train.py").write_text("import torch\n")
    file = read(f"services:\n  a:\n    build: ./app\n    entrypoint: python -u /srv/train.py\n    {ONE}\n")
    made = plans(ground(file, tmp_path), tmp_path)
    assert made["a"].agent.check == "torch" and made["a"].agent.python_path == ()
    assert made["a"].agent.hang_after_s is not None
    assert merged(file, tmp_path, made, a={"network": "host"})["a"]["build"]["network"] == "host"


@cases("lines", "requested", "asks")
def test_a_variable_by_itself_is_no_refusal_where_there_is_no_gpu(
    read, tmp_path: Path, lines: str, requested: str | None, asks: bool
) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    there = ground(file, tmp_path, gpus=requested)
    assert "a" in there.asks()
    assert ("a" in replace(there, host=a_host(tmp_path, [])).asks()) == asks
