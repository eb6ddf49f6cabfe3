"""Docker and Podman, for real: containers that end in every way, and engines that refuse."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from cdi_specs import written_spec
from fakes import a_container, a_plan
from here import free_ports
from pace import slowness, until
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.errors import (
    EXIT_GPU_CONTRACT,
    EngineError,
    EngineUnavailableError,
    GpuContractError,
    ImageError,
    NameInUseError,
    UntrustedPathError,
)
from seatrial.job.plan import ImagePlan, Mount
from terminal import Terminal

pytestmark = pytest.mark.both_engines

IMAGE = "python:3.11-slim-bookworm"


class Launcher:
    """Starts containers that carry a label of this test, so that what is left of them can be counted and removed."""

    def __init__(self, backend, folder):
        self.backend = backend
        self.folder = folder
        self.label = uuid.uuid4().hex[:12]

    def plan(self, *command, image=IMAGE, **container):
        fields = {
            "name": f"seatrial-test-{self.label}",
            "command": command,
            "labels": {"seatrial.test": self.label, "seatrial.run": a_plan().run_id},
            "network": "none" if self.backend.name == "docker" else "host",
            **container,
        }
        return a_plan(
            backend=self.backend.name, container=a_container(**fields), image=ImagePlan(tag=image, build=False)
        )

    def start(self, *command, **container):
        agent = {"workdir": "/", "env": {}, "gpu_mode": "none"}
        (self.folder / "agent.json").write_text(json.dumps({"agent": agent}))
        return self.backend.start(self.plan(*command, **container), self.folder)

    def ended(self, handle, timeout_s=300):
        until(lambda: self.backend.state(handle).status not in ("created", "running"), "the end", timeout_s)
        return self.backend.state(handle)

    def log(self, handle):
        argv = [*self.backend.call, "container", "logs", handle.id]
        ended = subprocess.run(argv, capture_output=True, text=True)
        return "" if ended.returncode else ended.stdout + ended.stderr

    def containers(self):
        listing = ["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=seatrial.test={self.label}"]
        argv = [*self.backend.call, *listing]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    def clean(self):
        if left := self.containers():
            subprocess.run([*self.backend.call, "kill", *left], capture_output=True)
            subprocess.run([*self.backend.call, "rm", "--force", *left], capture_output=True, check=True)


@pytest.fixture
def launcher(engine, tmp_path):
    launcher = Launcher(engine, tmp_path)
    yield launcher
    launcher.clean()


@pytest.fixture
def docker_launcher(docker_backend, tmp_path):
    launcher = Launcher(docker_backend, tmp_path)
    yield launcher
    launcher.clean()


@pytest.fixture
def podman_launcher(podman_backend, tmp_path):
    launcher = Launcher(podman_backend, tmp_path)
    yield launcher
    launcher.clean()


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_container_ends_with_its_exit_code(launcher, exit_code):
    handle = launcher.start("sh", "-c", f"echo out; echo err >&2; exit {exit_code}")
    state = launcher.ended(handle)
    assert (state.status, state.exit_code, state.oom_killed) == ("exited", exit_code, False)
    assert sorted(launcher.log(handle).split()) == ["err", "out"]
    assert not (launcher.folder / "container.id").exists()


def test_a_container_that_is_gone_is_no_error(launcher):
    handle = launcher.start("true")
    launcher.ended(handle)
    launcher.backend.remove(handle)
    assert launcher.backend.state(handle).status == "gone"
    launcher.backend.stop(handle, 1)
    launcher.backend.kill(handle)
    launcher.backend.remove(handle)
    assert launcher.log(handle) == ""


def test_more_memory_than_allowed_is_an_oom_kill(launcher):
    program = "x = b'x' * 500_000_000"
    handle = launcher.start("python3", "-c", program, memory_bytes=64 * 2**20, shm_bytes=16 * 2**20)
    state = launcher.ended(handle)
    assert state.exit_code == 137
    # Podman 4.3.1 on cgroup v1 does not notice (its conmon 2.1.6 reports false): there the agent's counter shows it.
    assert state.oom_killed or launcher.backend.name == "podman"


def test_stop_sends_sigterm(launcher):
    handle = launcher.start("sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
    wait_for_ready(launcher, handle)
    launcher.backend.stop(handle, 20)
    assert launcher.backend.state(handle).exit_code == 9


def test_stop_kills_what_ignores_sigterm_after_the_grace(launcher):
    handle = launcher.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    wait_for_ready(launcher, handle)
    began = time.monotonic()
    launcher.backend.stop(handle, 1)
    assert 0.9 < time.monotonic() - began < 9 * slowness(time.monotonic)  # not the engines' own 10 s
    assert launcher.backend.state(handle).exit_code == 137


def test_kill_ends_it_now(launcher):
    handle = launcher.start("sleep", "600")
    launcher.backend.kill(handle)
    assert launcher.ended(handle).exit_code == 137
    launcher.backend.kill(handle)


def test_a_live_container_is_not_removed(launcher):
    handle = launcher.start("sleep", "600")
    with pytest.raises(EngineError):
        launcher.backend.remove(handle)
    assert launcher.backend.state(handle).status == "running"


def wait_for_ready(launcher, handle):
    until(lambda: "ready" in launcher.log(handle))


def test_exec_runs_next_to_the_target(launcher, capfd):
    handle = launcher.start("sleep", "600", env={"MARK": "here"})
    assert launcher.backend.exec(handle, ["sh", "-c", "echo $MARK; exit 7"], interactive=False) == 7
    assert capfd.readouterr().out == "here\n"
    launcher.backend.kill(handle)
    launcher.ended(handle)
    with pytest.raises(EngineError, match="not running: exited"):
        launcher.backend.exec(handle, ["true"], interactive=False)


ON_A_TERMINAL = """
import sys
from pathlib import Path
from seatrial.backends.base import Handle
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.backends.containers.docker_and_podman import Podman
from seatrial.job.plan import Plan
backend = {"docker": Docker, "podman": Podman}[sys.argv[1]](sys.argv[2].split())
if sys.argv[3] == "exec":
    handle = Handle(backend=sys.argv[1], id=sys.argv[4], run_dir=sys.argv[5])
    sys.exit(backend.exec(handle, ["sh", "-c", "tty; exit 5"], interactive=True))
file = Path(sys.argv[4])
sys.exit(backend.shell(Plan.model_validate_json(file.read_text(), strict=False), file.parent))
"""


def on_a_terminal(launcher, *words):
    """(exit code, output) of a Python program whose streams are a terminal."""
    backend = launcher.backend
    terminal = Terminal([sys.executable, "-c", ON_A_TERMINAL, backend.name, " ".join(backend.call), *words])
    return terminal.end(), terminal.shown.decode()


def test_exec_has_a_terminal_when_the_caller_has_one(launcher):
    handle = launcher.start("sleep", "600")
    exit_code, output = on_a_terminal(launcher, "exec", handle.id, str(launcher.folder))
    assert "/dev/pts/" in output
    assert exit_code == 5


def test_a_shell_has_a_terminal_and_leaves_nothing(launcher):
    plan = launcher.folder / "plan.json"
    plan.write_text(launcher.plan("sh", "-c", "tty; exit 6").model_dump_json())
    exit_code, output = on_a_terminal(launcher, "shell", str(plan))
    assert "/dev/pts/" in output
    assert exit_code == 6
    assert launcher.containers() == []


@pytest.mark.docker
def test_a_shell_that_cannot_start_names_the_reason(docker_launcher, capfdbinary):
    without_toolkit(docker_launcher.backend)
    (docker_launcher.folder / "events.jsonl").write_text('{"type": "host.launched"}\n')
    with pytest.raises(GpuContractError, match="cannot pass GPUs"):
        docker_launcher.backend.shell(docker_launcher.plan("sh", gpus_flag="all"), docker_launcher.folder)
    assert docker_launcher.containers() == []


# --------------------------------------------------------------- engines that refuse; nothing may be left behind


def test_a_name_in_use_harms_nobody(launcher):
    first = launcher.start("sleep", "600")
    with pytest.raises(NameInUseError, match=f"seatrial-test-{launcher.label}"):
        launcher.start("true")
    assert launcher.backend.state(first).status == "running"
    assert launcher.containers() == [first.id]


def test_an_image_that_is_not_there(launcher):
    with pytest.raises(ImageError, match="no-such-image:1 is not in") as caught:
        launcher.start("true", image="localhost/no-such-image:1")
    assert caught.value.run == f"{launcher.backend.name} pull localhost/no-such-image:1"
    assert launcher.backend.images.image("localhost/no-such-image:1") is None


NOT_THERE = Mount(source=Path("/no/such/folder"), target="/data")
GPU_HERE = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")


@pytest.mark.parametrize(
    ("command", "options", "error", "words"),
    [
        ("no-such-program", {}, ImageError, "cannot run no-such-program"),
        ("true", {"mounts": [NOT_THERE]}, UntrustedPathError, "Cannot open /no"),
        ("true", {"runtime": "kata-test"}, EngineError, "no runtime named kata-test"),
        pytest.param("true", {"devices": ["/dev/nvidia0"]}, GpuContractError, "nvidia0 does not exist", marks=GPU_HERE),
    ],
    ids=["program", "folder", "runtime", "gpu-node"],
)
def test_a_failed_start_names_the_missing_part_and_leaves_nothing(launcher, command, options, error, words):
    with pytest.raises(error, match=words):
        launcher.start(command, **options)
    assert launcher.containers() == []


def without_toolkit(backend):
    facts = backend.facts()
    if facts.nvidia_hook or facts.cdi_devices or "nvidia" in facts.runtimes:
        pytest.skip("the NVIDIA Container Toolkit is installed here")


@pytest.mark.docker
def test_gpus_without_the_toolkit_break_the_contract(docker_launcher):
    """Docker's own "could not select device driver"; it leaves a created container, which must go."""
    without_toolkit(docker_launcher.backend)
    with pytest.raises(GpuContractError, match="Docker cannot pass GPUs to containers") as caught:
        docker_launcher.start("true", gpus_flag='"device=0,2"')
    assert caught.value.exit_code == EXIT_GPU_CONTRACT
    assert "nvidia-container-toolkit" in caught.value.run
    assert docker_launcher.containers() == []


@pytest.mark.docker
def test_a_port_in_use(docker_launcher):
    [port] = free_ports()
    taken = {"network": "bridge", "publish": [f"127.0.0.1:{port}:80"]}
    first = docker_launcher.start("sleep", "600", **taken)
    with pytest.raises(EngineError, match=f"Port {port}"):
        docker_launcher.start("true", **taken, name=f"seatrial-test-{docker_launcher.label}-2")
    assert docker_launcher.containers() == [first.id]


@pytest.mark.docker
def test_a_daemon_that_has_gone_is_not_an_ended_run(docker_launcher, monkeypatch):
    handle = docker_launcher.start("true")
    docker_launcher.ended(handle)
    unreachable = Docker([*docker_launcher.backend.call, "--host", "unix:///nonexistent.sock"])
    with pytest.raises(EngineUnavailableError):
        unreachable.state(handle)
    assert not unreachable.facts().available


# ------------------------------------------------------------------------------------------------ CDI on Podman


@pytest.fixture
def cdi_name():
    """A device of NVIDIA's kind that sets a variable and brings /dev/null in under another name."""
    if os.geteuid() != 0:
        pytest.skip("only root writes /etc/cdi")
    name = f"seatrial-test-{uuid.uuid4().hex[:8]}"
    edits = {"env": [f"SEATRIAL_CDI={name}"], "deviceNodes": [{"path": "/dev/nvidia-test", "hostPath": "/dev/null"}]}
    spec = {"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [{"name": name, "containerEdits": edits}]}
    with written_spec(f"{name}.json", json.dumps(spec)):
        yield name


@pytest.mark.podman
def test_a_cdi_device_enters_the_container(podman_launcher, cdi_name):
    qualified = f"nvidia.com/gpu={cdi_name}"
    assert qualified in podman_launcher.backend.facts().cdi_devices
    handle = podman_launcher.start("sh", "-c", "echo $SEATRIAL_CDI; ls /dev/nvidia-test", devices=[qualified])
    assert podman_launcher.ended(handle).exit_code == 0
    assert podman_launcher.log(handle).split() == [cdi_name, "/dev/nvidia-test"]


@pytest.mark.podman
def test_a_cdi_device_that_nobody_knows(podman_launcher):
    with pytest.raises(GpuContractError, match=r"no CDI device nvidia\.com/gpu=seatrial-none") as caught:
        podman_launcher.start("true", devices=["nvidia.com/gpu=seatrial-none"])
    assert "nvidia-ctk cdi generate" in caught.value.run
    assert podman_launcher.containers() == []


# ----------------------------------------------------------------------------------------------------------- images


def test_python_is_found_where_it_is(engine):
    path = engine.images.find_python(IMAGE)
    assert path is not None
    assert re.search(r"/python3?(\.\d+)?$", path)


def test_an_image_without_python(engine):
    name = f"localhost/seatrial-test-{uuid.uuid4().hex[:8]}:1"
    subprocess.run([*engine.call, "import", "-", name], input=bytes(10240), capture_output=True, check=True)
    try:
        assert engine.images.find_python(name) is None
    finally:
        subprocess.run([*engine.call, "rmi", name], capture_output=True, check=True)


def test_a_registry_that_cannot_be_reached(engine):
    lines = []
    with pytest.raises(ImageError, match="registry cannot be reached") as caught:
        engine.images.pull("127.0.0.1:1/no/image:1", lines.append)
    assert caught.value.run is not None and "pull" not in caught.value.run  # which would fail the same way


@pytest.mark.parametrize("name", ["with, comma", 'with "quotes"', "with : colon"])
def test_folders_of_any_name_can_be_mounted(launcher, name):
    folder = launcher.folder / name
    folder.mkdir()
    (folder / "file").write_text("content\n")
    handle = launcher.start(
        "sh", "-c", "cat /data/file; touch /data/x", mounts=[Mount(source=folder, target="/data", read_only=True)]
    )
    assert launcher.ended(handle).exit_code != 0
    assert "content" in launcher.log(handle)
    assert not (folder / "x").exists()
