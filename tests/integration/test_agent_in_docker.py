"""The agent as PID 1 of a real container: unprivileged, read-only root, its own cgroup."""

import json
import os
import shutil
import subprocess

import pytest

from fake_driver import compile_driver
from pace import until
from seatrial import events
from seatrial.system import agent_archive

IMAGE = "python:3.11-slim-bookworm"

FAKE_GPU = "de421f490f0c00000000000000000001"

LOCKED_DOWN = [
    *("--network", "none", "--read-only", "--tmpfs", "/tmp", "--user", "1000:1000", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--memory", "512m"),
]

SCRIPT = """
import os, time
held = bytearray(60_000_000)
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.1)
        os._exit(0)
    os.wait()
time.sleep(1.2)
print(os.getppid(), sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [1, os.getpid()], flush=True)
time.sleep(float(os.environ.get("LINGER_S", "0")))
"""


def docker(*arguments):
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=240, check=False)


def usable():
    return shutil.which("docker") is not None and docker("image", "inspect", IMAGE).returncode == 0


pytestmark = [pytest.mark.docker, pytest.mark.skipif(not usable(), reason=f"no Docker with {IMAGE} here")]


@pytest.fixture
def container(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run_dir.chmod(0o777)
    (tmp_path / "t.py").write_text(SCRIPT)
    agent = {
        "run_id": "docker-test",
        "argv": ["python3", "/t.py"],
        "workdir": "/",
        "run_dir": "/run1",
        "evidence_dir": "/run1",
        "sample_interval_s": 0.2,
    }
    (run_dir / "plan.json").write_text(json.dumps({"agent": agent}))
    archive = agent_archive.build(tmp_path)
    mounts = ["-v", f"{archive}:/agent.pyz:ro", "-v", f"{run_dir}:/run1", "-v", f"{tmp_path / 't.py'}:/t.py:ro"]
    name = f"seatrial-test-agent-{os.getpid()}"
    command = ["python3", "-I", "-S", "/agent.pyz", "/run1/plan.json"]

    def run(*options, image=IMAGE):
        return docker("run", "--name", name, *LOCKED_DOWN, *mounts, *options, image, *command)

    yield name, run, run_dir
    docker("rm", "-f", name)


def test_as_pid_1_it_reaps_orphans_and_measures_its_container(container):
    _, run, run_dir = container
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 True\n"
    read = events.read(str(run_dir / "events.jsonl"))[0]
    assert read[0]["pid"] == 1 and read[0]["cgroup"]["memory_limit_bytes"] == 512 * 2**20
    samples = [event for event in read if event["type"] == "sample"]
    assert 60_000_000 < max(sample["memory_bytes"] for sample in samples) < 120_000_000


def test_docker_stop_reaches_the_target(container):
    name, run, run_dir = container
    assert run("--detach", "--env", "LINGER_S=600").returncode == 0
    log = str(run_dir / "events.jsonl")
    until(lambda: any(event["type"] == "target.started" for event in events.read(log)[0]), "the target")
    docker("stop", "--time", "20", name)
    state = json.loads(docker("inspect", name).stdout)[0]["State"]
    assert state["ExitCode"] == 128 + 15
    [exited] = [event for event in events.read(str(run_dir / "events.jsonl"))[0] if event["type"] == "target.exited"]
    assert exited["signal"] == 15 and exited["cause"] == "signal"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here for the driver's stand-in")
@pytest.mark.parametrize(("kept", "code"), [("8.0", 3), ("8.0 9.0", 0)])
def test_an_image_cut_down_to_other_gpus_is_refused(build_image, container, tmp_path, kept, code):
    """The image has the mark in its environment; the driver's stand-in has one GPU of compute capability 9.0."""
    _, run, run_dir = container
    library = compile_driver(tmp_path)
    plan = json.loads((run_dir / "plan.json").read_text())
    uuid = "GPU-de421f49-0f0c-0000-0000-000000000001"
    gpu = {"index": 0, "uuid": uuid, "name": "NVIDIA Fake", "memory_bytes": 1, "minor": 0}
    plan["agent"].update(argv=["true"], gpu_mode="required", check="driver", gpus=[gpu])
    (run_dir / "plan.json").write_text(json.dumps(plan))
    image = build_image(["docker"], f'FROM {IMAGE}\nENV SEATRIAL_ARCHITECTURES="{kept}"\n')
    fake = ["-v", f"{library}:/fake/libcuda.so.1:ro", "-e", "LD_LIBRARY_PATH=/fake", "-e", f"FAKE_CUDA_GPUS={FAKE_GPU}"]
    done = run(*fake, image=image)
    assert done.returncode == code, done.stderr
    findings = [event for event in events.read(str(run_dir / "events.jsonl"))[0] if event["type"] == "finding"]
    assert [finding["id"] for finding in findings] == (["image-cut-down"] if code else [])
    assert code == 0 or "compute capability 8.0 only, and NVIDIA Fake is 9.0" in done.stderr
