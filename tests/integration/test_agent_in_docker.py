"""The agent as PID 1 of a real container: unprivileged, read-only root, its own cgroup."""

import json
import os
import shutil
import subprocess

import pytest

from seatrial import events
from seatrial.system import agent_archive

IMAGE = "python:3.11-slim-bookworm"

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


def docker(*arguments, **options):
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


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
        "sample_interval_s": 0.2,
    }
    (run_dir / "plan.json").write_text(json.dumps({"agent": agent}))
    archive = agent_archive.build(tmp_path)
    mounts = ["-v", f"{archive}:/agent.pyz:ro", "-v", f"{run_dir}:/run1", "-v", f"{tmp_path / 't.py'}:/t.py:ro"]
    name = f"seatrial-test-agent-{os.getpid()}"
    command = [IMAGE, "python3", "-I", "-S", "/agent.pyz", "/run1/plan.json"]

    def run(*options):
        return docker("run", "--name", name, *LOCKED_DOWN, *mounts, *options, *command)

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
    assert run("--detach", "--env", "LINGER_S=60").returncode == 0
    subprocess.run(["sleep", "2"], check=True)
    docker("stop", "--time", "20", name)
    state = json.loads(docker("inspect", name).stdout)[0]["State"]
    assert state["ExitCode"] == 128 + 15
    [exited] = [event for event in events.read(str(run_dir / "events.jsonl"))[0] if event["type"] == "target.exited"]
    assert exited["signal"] == 15 and exited["cause"] == "signal"
