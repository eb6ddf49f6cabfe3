"""``seatrial up`` of Compose files with the real Docker and Compose: order, receipts, ends, going on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_project import Project
from here import free_ports
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.probe import nvml
from seatrial.runs.store import project_key

SAMPLES = Path(__file__).parents[3] / "shared" / "samples" / "compose"

pytestmark = pytest.mark.docker

#: Where nothing is built, the scripts are mounted.
READY = "image: python:3.11-slim-bookworm\n    working_dir: /app"
HANDED, MOUNTED = "volumes: [handed:/handed]", "volumes: [handed:/handed, .:/app]"

#: A pipeline as tutorials write it: plain depends_on, so that Compose alone starts the reader on an empty volume.
PIPELINE = """\
services:
  prep:
    build: .
    command: python prep.py
    volumes: [handed:/handed]
    environment: {HOLD: "${HOLD:-0}"}
  train:
    build: .
    depends_on: [prep]
    command: python train.py
    volumes: [handed:/handed]
    environment: {HOLD: "${HOLD:-0}"}
    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, count: 1, capabilities: [gpu]}
volumes:
  handed:
"""
SERVICE = """\
  api:
    build: .
    command: python api.py
    ports: ["127.0.0.1:%d:8000"]
    deploy: {resources: {reservations: {devices: [{count: 1, capabilities: [gpu]}]}}}
  plain:
    image: python:3.11-slim-bookworm
    command: python -m http.server
    expose: [8000]
"""
DOCKERFILE = "FROM python:3.11-slim-bookworm\nWORKDIR /app\nCOPY *.py .\n"
PREP = """\
import os, time
time.sleep(1 + float(os.environ["HOLD"]))
with open("/handed/starts", "a") as starts: starts.write("prep\\n")
open("/handed/data", "w").write("42")
print("prepared", flush=True)
"""
TRAIN = """\
import os, time
time.sleep(float(os.environ["HOLD"]))
print("trained on", open("/handed/data").read(), repr(os.environ["CUDA_VISIBLE_DEVICES"]), os.getcwd(), flush=True)
with open("/handed/starts", "a") as starts: starts.write("train\\n")
"""
RESTARTED = """\
import os, sys, time
begun = len(os.listdir("/handed")); open(f"/handed/{begun}", "w").close()
print("start", begun, flush=True); time.sleep(1.2)
if begun < 2: sys.exit(5)
open("/handed/data", "w").write("42")
"""
API = """\
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"here")
http.server.HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""

#: Where the command is killed: so many seconds after this member began, or after itself.
#: With HOLD=3 prep takes 4 s and train 3 s.
KILLED = [*(("", s) for s in (0.3, 1, 2, 3)), *(("prep", s) for s in range(4)), ("train", 0), ("train", 1)]


@pytest.fixture
def project(docker_project: Project, docker_backend: Docker) -> Iterator[Project]:
    """The pipeline in a folder of its own; what Compose keeps of it is removed afterwards."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker has no Compose")
    made = docker_project
    for name, text in {"compose.yaml": PIPELINE, "prep.py": PREP, "train.py": TRAIN}.items():
        made.write(name, text)
    made.write("api.py", API)
    made.write("Dockerfile", DOCKERFILE)
    yield made
    compose(made, "down", "--volumes", "--rmi", "local", "--remove-orphans")


def compose(project: Project, *words: str) -> str:
    """Compose itself on the user's file."""
    file = next(path for path in project.folder.glob("*compose.y*ml"))
    argv = ["docker", "compose", "-f", str(file), *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=project.folder, timeout=300).stdout


def up(project: Project, *words: str, exit_code: int | None = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    gpus = [] if "--gpus" in words else ["--gpus", "none"]
    return project.cli("up", "--trust", *gpus, *words, exit_code=exit_code, timeout_s=280, **environ)


def start(project: Project, *words: str, **environ: str) -> subprocess.Popen[str]:
    return project.begin("up", "--gpus", "none", *words, **environ)


def group(project: Project) -> dict[str, Any]:
    """The newest group's record; {} while there is none."""
    record = project.state / "projects" / project_key(project.folder.resolve())
    found = sorted(record.glob("groups/*/group.json"))
    loaded: dict[str, Any] = json.loads(found[-1].read_text()) if found else {}
    return loaded


def states(project: Project) -> dict[str, str]:
    return {member["name"]: member["state"] for member in group(project).get("members", ())}


def handed(project: Project, name: str) -> str:
    """A file of the volume that the tasks hand over."""
    volume = f"{project.folder.name.lower()}_handed"
    argv = ["docker", "run", "--rm", "-v", f"{volume}:/handed", "python:3.11-slim-bookworm", "cat", f"/handed/{name}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300).stdout


def left_running(project: Project) -> str:
    label = f"label=com.docker.compose.project={project.folder.name.lower()}"
    argv = ["docker", "ps", "--all", "--quiet", "--filter", label]
    networks = ["docker", "network", "ls", "--quiet", "--filter", label]
    return "".join(subprocess.run(words, capture_output=True, text=True).stdout for words in (argv, networks))


@pytest.mark.parametrize("built", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["ready", "built"])
def test_a_pipeline_runs_in_order_and_each_task_has_a_receipt(project: Project, built: bool) -> None:
    if not built:
        project.write("compose.yaml", PIPELINE.replace("build: .", READY).replace(HANDED, MOUNTED))
    before = (project.folder / "compose.yaml").read_bytes()
    ended = up(project)
    lines = [line for line in ended.stdout.splitlines() if "|" in line]
    assert lines == ["prep  | prepared", "train | trained on 42 '' /app"]
    assert "waits until prep has ended well" in ended.stderr
    assert states(project) == {"prep": "done", "train": "done"}
    assert len(project.runs) == 2 and left_running(project) == ""
    for run in project.runs:
        receipt = json.loads((run / "receipt.json").read_bytes())
        assert receipt["exit_code"] == 0 and receipt["header"]["agent"] and receipt["seal"]["missing"] == 0
    assert (project.folder / "compose.yaml").read_bytes() == before
    assert handed(project, "starts") == "prep\ntrain\n"


def test_a_service_of_another_user_has_a_run_that_it_can_write(project: Project) -> None:
    lines = ["services:", "  train:", "    image: python:3.11-slim-bookworm", '    user: "65534:65534"']
    lines += ["    command: |", '      python -c "', "      import os", "      print('user', os.getuid())", '      "']
    project.write("compose.yaml", "\n".join(lines) + "\n")
    planned = up(project, "--plan", "--verbose").stdout
    assert list(yaml.compose(planned).value[0][1].value)  # line ends of the command are not lines of the file
    ended = up(project)
    assert "train | user 65534" in ended.stdout and states(project) == {"train": "done"}
    [place] = (project.folder / ".seatrial" / "runs").iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700 and stat.S_IMODE((place / "outputs").stat().st_mode) == 0o777


@pytest.mark.skipif(bool(nvml.inventory().gpus), reason="this machine has GPUs")
def test_gpus_that_are_not_there_end_it_with_3_before_anything_starts(project: Project) -> None:
    ended = project.cli("up", "--trust", exit_code=3)
    assert "compose.yaml:16: train reserves 1 GPU: no NVIDIA GPU" in ended.stderr
    assert project.runs == [] and group(project) == {} and left_running(project) == ""


@pytest.mark.slow
def test_the_plan_is_printed_and_nothing_is_made(project: Project) -> None:
    short = up(project, "--plan").stdout
    assert len(short.splitlines()) < 12 and "agent.pyz" not in short and "python train.py" in short
    ended = up(project, "--plan", "--verbose")
    assert "train waits until prep has ended well" in ended.stdout and "/seatrial/agent.pyz" in ended.stdout
    assert "service_completed_successfully" in ended.stdout
    assert project.runs == [] and left_running(project) == ""


@pytest.mark.slow
def test_in_a_folder_of_a_repository_the_file_is_found_and_the_runs_are_the_repositorys(project: Project) -> None:
    project.write("compose.yaml", "services: {a: {image: 'python:3.11-slim-bookworm', command: python -V}}")
    for folder in (project.folder / ".git", inner := project.folder / "deploy"):
        folder.mkdir()
    argv = project.argv("up", "--trust", "--gpus", "none")
    done = subprocess.run(argv, capture_output=True, text=True, cwd=inner, env=project.environ, timeout=280)
    assert done.returncode == 0, done.stderr
    assert group(project)["members"][0]["state"] == "done"


@pytest.mark.slow
def test_a_task_that_fails(project: Project) -> None:
    project.write("prep.py", "import sys; print('no data'); sys.exit(7)\n")
    ended = up(project, exit_code=1)
    assert states(project) == {"prep": "failed", "train": "skipped"}
    assert "train was not started: prep did not end well" in ended.stderr and left_running(project) == ""
    receipts = [json.loads((run / "receipt.json").read_bytes()) for run in project.runs]
    assert sorted(each["exit_cause"]["target_exit_code"] or 0 for each in receipts) == [0, 7]


@pytest.mark.slow
def test_a_service_stops_after_its_client_failed(project: Project) -> None:
    """Compose alone goes on serving nobody."""
    server = SERVICE[SERVICE.index("  plain") :]
    client = "  client:\n    image: python:3.11-slim-bookworm\n    command: [python, -c, raise SystemExit(4)]\n"
    project.write("compose.yaml", f"services:\n{server}{client}    depends_on: [plain]\n")
    ended = up(project, exit_code=1)
    assert states(project) == {"plain": "stopped", "client": "failed"} and left_running(project) == ""
    assert "client failed, and no task is left to serve" in ended.stderr and "[-] plain" in ended.stdout


@pytest.mark.slow
def test_a_task_that_is_started_again_until_it_ends_well(project: Project) -> None:
    """Its restart policy is Compose's business; every start is in its evidence."""
    text = PIPELINE.replace("build: .", f"{READY}\n    restart: on-failure:4").replace(HANDED, MOUNTED)
    project.write("compose.yaml", text)
    project.write("prep.py", RESTARTED)
    ended = up(project)
    assert states(project) == {"prep": "done", "train": "done"}
    lines = [line for line in ended.stdout.splitlines() if "prep" in line and "|" in line]
    assert [line.partition("| ")[2] for line in lines] == ["start 0", "start 1", "start 2"]
    prep = json.loads((project.runs[0] / "receipt.json").read_bytes())
    assert prep["header"]["earlier_starts"] == [5, 5] and prep["exit_code"] == 0 and prep["seal"]["missing"] == 0


@pytest.mark.slow
def test_a_service_is_served_until_ctrl_c(project: Project) -> None:
    [port] = free_ports()
    project.write("compose.yaml", PIPELINE.replace("volumes:\n  handed:", SERVICE % port + "volumes:\n  handed:"))
    running = start(project)
    expected = {"prep": "done", "train": "done", "api": "running", "plain": "running"}
    project.wait_for(lambda: states(project) == expected and answers(port))
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=240)
    assert running.returncode == 0, out + err
    assert states(project)["api"] == "stopped" and states(project)["plain"] == "stopped"
    assert left_running(project) == ""


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return b"here" in connection.recv(4096) + connection.recv(4096)
    except OSError:
        return False


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused_before_a_build(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        project.write("compose.yaml", PIPELINE.replace("volumes:\n  handed:", SERVICE % port + "volumes:\n  handed:"))
        err = up(project, exit_code=2).stderr
    assert f"port {port} of this machine is taken" in err and "compose.yaml:" in err and "building" not in err
    assert project.runs == [] and states(project) == {}


@pytest.mark.slow
def test_ctrl_c_while_a_task_runs_stops_all(project: Project) -> None:
    running = start(project, HOLD="60")
    project.wait_for(lambda: states(project).get("prep") == "running")
    project.wait_for(
        lambda: any(
            (run / "events.jsonl").exists() and b"target.started" in (run / "events.jsonl").read_bytes()
            for run in project.runs
        )
    )
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=240)
    assert running.returncode == 130, out + err
    assert "KeyboardInterrupt" in out + err
    assert states(project) == {"prep": "stopped", "train": "stopped"} and left_running(project) == ""


@pytest.mark.slow
def test_detached_it_goes_on_and_down_ends_it(project: Project) -> None:
    up(project, "--detach")
    assert "interrupted" not in project.cli("runs", "ls").stdout
    project.wait_for(lambda: set(states(project).values()) == {"done"})
    project.wait_for(lambda: left_running(project) == "")
    assert all((run / "receipt.json").exists() for run in project.runs)
    up(project, "--detach", HOLD="60")
    project.wait_for(lambda: states(project).get("prep") == "running")
    listed = project.cli("runs", "ls").stdout
    assert "compose: 2 members" in listed and "train" in listed
    project.cli("runs", "stop", "--all")
    assert states(project) == {"prep": "stopped", "train": "stopped"} and left_running(project) == ""


@pytest.mark.slow
def test_when_the_reader_of_its_output_goes_the_tasks_go_on_in_the_background(project: Project) -> None:
    running = start(project, HOLD="2")
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.readline().startswith("prep")
    running.stdout.close()
    err = running.stderr.read()
    assert running.wait(timeout=60) == 141 and "is up in the background" in err and "failed" not in err
    project.wait_for(lambda: set(states(project).values()) == {"done"})
    project.wait_for(lambda: left_running(project) == "")


@pytest.mark.slow
def test_a_stop_before_a_service_is_seen_to_run_ends_it(project: Project) -> None:
    """Compose may start it after the stop was asked for."""
    server = SERVICE[SERVICE.index("  plain") :]
    health = "    healthcheck: {test: [CMD, python, -c, import time], interval: 1s}\n"
    client = "  client:\n    image: python:3.11-slim-bookworm\n    command: [python, -c, pass]\n"
    needs = "    depends_on: {plain: {condition: service_healthy}}\n"
    project.write("compose.yaml", f"services:\n{server}{health}{client}{needs}")
    up(project, "--detach")
    project.cli("runs", "stop", "--all", timeout_s=60)
    assert states(project)["plain"] == "stopped" and left_running(project) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "delay_s"), KILLED)
def test_after_a_kill_of_the_command_line_up_goes_on(project: Project, begun: str, delay_s: float) -> None:
    """Killed at ten points: before the build, in it, while Compose starts, while tasks run and wait."""
    up(project, "--plan")
    running = start(project, HOLD="3")
    if begun:
        project.wait_for(lambda: states(project).get(begun) == "running")
    time.sleep(delay_s)
    assert running.poll() is None
    running.send_signal(signal.SIGKILL)
    running.communicate()
    ended = up(project)
    assert set(states(project).values()) == {"done"}, ended.stdout + ended.stderr
    assert left_running(project) == ""
    assert handed(project, "starts") in ("prep\ntrain\n", "prep\nprep\ntrain\n") and handed(project, "data") == "42"
    if "is up already" in ended.stderr:  # what had been begun was gone on with, and nothing done twice
        assert handed(project, "starts") == "prep\ntrain\n"
    for run in project.runs[-2:]:
        assert json.loads((run / "receipt.json").read_bytes())["exit_code"] == 0


@pytest.mark.slow
def test_after_a_kill_of_compose_too_what_is_missing_is_started(project: Project) -> None:
    running = start(project, HOLD="4")
    project.wait_for(lambda: states(project).get("prep") == "running")
    running.send_signal(signal.SIGKILL)
    running.communicate()
    os.kill(group(project)["details"]["compose"][0], signal.SIGKILL)
    ended = up(project)
    assert "Compose was killed too: starting train" in ended.stderr
    assert states(project) == {"prep": "done", "train": "done"} and handed(project, "starts") == "prep\ntrain\n"
    assert left_running(project) == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sample_pipeline_unmodified(project: Project) -> None:
    sample(project, "pipeline")
    ended = up_long(project)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert states(project) == {"preprocess": "done", "train": "done", "export": "done"}
    assert "exported 5930 parameters" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sample_trainers_unmodified(project: Project) -> None:
    sample(project, "trainers")
    if answers(8000):
        pytest.skip("port 8000 is taken")
    running = start(project, STEPS="1")
    expected = {"trainer-1": "done", "trainer-2": "done", "inference": "running"}
    project.wait_for(lambda: states(project) == expected, 1500)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, out[-3000:] + err[-3000:]
    assert states(project) == {"trainer-1": "done", "trainer-2": "done", "inference": "stopped"}


def sample(project: Project, name: str) -> None:
    """A sample in the project's folder, with the seatrial.toml that lets builds reach the package index."""
    if not (SAMPLES / name).is_dir():
        pytest.skip("the samples are not next to the repository")
    for path in project.folder.iterdir():
        if path.name not in ("seatrial.toml",) and path.is_file():
            path.unlink()
    shutil.copytree(SAMPLES / name, project.folder, dirs_exist_ok=True)


def up_long(project: Project) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*project.program, "up", "--trust", "--gpus", "none"],
        cwd=project.folder,
        env={**project.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=1700,
        stdin=subprocess.DEVNULL,
    )
