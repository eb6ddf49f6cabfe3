"""seatrial serve over a model that was trained a moment ago: real HTTP, its end, its receipt, and kills."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project, environment
from here import free_ports

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("seatrial.serve.__main__", "uvloop", "torch", "sklearn")),
    reason="the server and what it needs are not installed",
)
IMAGE = [[0] * 28] * 28


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with digits in it."""
    models = tmp_path_factory.mktemp("trained") / "models"
    argv = [sys.executable, "-m", "seatrial.recipes.digits", "--models", str(models), "--epochs", "1"]
    subprocess.run([*argv, "--checkpoints", str(models.parent / "checkpoints")], check=True, capture_output=True)
    return models


@pytest.fixture
def project(tmp_path: Path, trained: Path) -> Iterator[Project]:
    made = Project(tmp_path / "shop", "local", environment(tmp_path))
    made.write("seatrial.toml", 'gpus = "none"\n')
    (made.folder / "models").symlink_to(trained)
    yield made
    made.clean()


def ask(port: int, path: str = "/predict", body: Any = None, token: str | None = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def start(project: Project, port: int, *words: str) -> str:
    """``seatrial serve --detach``: it answers when that returns."""
    return project.cli(
        "serve", *(words or ("digits",)), "--on", "local", "--port", str(port), "--detach"
    ).stdout.strip()


def test_from_a_trained_model_to_a_receipt(project: Project) -> None:
    [port] = free_ports()
    run_id = start(project, port)
    listed = json.loads(project.cli("runs", "ls", "--json").stdout)
    assert (listed[0]["id"], listed[0]["status"], listed[0]["address"]) == (
        run_id,
        "running",
        f"http://127.0.0.1:{port}",
    )
    assert f"running: http://127.0.0.1:{port}" in project.cli("runs", "ls").stdout
    for _ in range(20):
        status, answer = ask(port, body={"image": IMAGE})
        assert status == 200 and answer["label"] in "0123456789"
    assert ask(port, body={"image": "no image"})[0] in (400, 422)

    taken = project.cli("serve", "digits", "--on", "local", "--port", str(port), exit_code=2).stderr
    assert f"Port {port} is taken" in taken
    assert re.search(r"--port \d+", taken)  # the next one that is free: other tests listen, too

    project.cli("runs", "stop", run_id)
    receipt = project.receipt()
    serving = receipt["serving"]
    assert (receipt["exit_code"], receipt["exit_cause"]["id"]) == (0, "stopped")
    assert (serving["requests"], sum(serving["errors"].values()), serving["model"]) == (21, 1, "digits")
    assert serving["weights"][0]["path"] == "digits.safetensors" and serving["p50_ms"] <= serving["p99_ms"]
    assert sum(batch["rows"] * batch["batches"] for batch in serving["batches"]) == 20
    assert serving["examples"] > 0 and serving["largest_difference"] < 1e-3
    assert not [criterion["id"] for criterion in receipt["criteria"] if criterion["verdict"] == "fail"]
    assert not project.alive()


def test_ctrl_c_ends_it_with_0_and_a_token_stays_out_of_every_record(project: Project) -> None:
    [port] = free_ports()
    argv = [*project.program, "serve", "digits", "--on", "local", "--port", str(port), "--token=abcdefgh-secret"]
    options: dict[str, Any] = {"cwd": project.folder, "env": project.environ, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options) as serving:
        try:
            project.wait_for(lambda: _answers(port))
            assert ask(port, body={"image": IMAGE})[0] == 401
            assert ask(port, body={"image": IMAGE}, token="abcdefgh-secret")[0] == 200
        finally:
            serving.send_signal(signal.SIGINT)
        shown = serving.communicate(timeout=240)[0]
    assert serving.returncode == 0, shown
    assert "ready after" in shown and "answer what it has accepted" in shown
    assert not [path for path in project.kept() if b"abcdefgh-secret" in path.read_bytes()]


def test_a_server_that_is_killed_reports_how_to_start_it_again(project: Project) -> None:
    [port] = free_ports()
    start(project, port)
    started = project.events("target.started")[0]["pid"]
    os.kill(started, signal.SIGKILL)
    project.wait_for(lambda: project.cli("runs", "ls") and (project.last / "summary.json").exists())
    receipt = project.receipt()
    assert receipt["exit_code"] == 1 and receipt["exit_cause"]["id"] == "signal"
    assert any(f"seatrial serve digits --port {port}" in warning for warning in receipt["warnings"])
    project.wait_for(lambda: not project.alive())
    start(project, port)
    assert ask(port, body={"image": IMAGE})[0] == 200
    project.cli("runs", "stop", "last")


def test_a_killed_command_line_leaves_the_server_up(project: Project) -> None:
    [port] = free_ports()
    argv = [*project.program, "serve", "digits", "--on", "local", "--port", str(port)]
    with subprocess.Popen(argv, cwd=project.folder, env=project.environ, stdin=subprocess.DEVNULL) as serving:
        project.wait_for(lambda: _answers(port))
        serving.kill()
    assert ask(port, body={"image": IMAGE})[0] == 200
    project.cli("runs", "stop", "last")
    assert project.receipt()["serving"]["requests"] == 1 and not project.alive()


def test_a_model_that_cannot_be_served_ends_with_1_and_its_reason(project: Project) -> None:
    (project.folder / "broken.onnx").write_bytes(b"no graph")
    [port] = free_ports()
    ended = project.cli("serve", "broken.onnx", "--on", "local", "--port", str(port), "--detach", exit_code=1)
    assert "broken" in ended.stdout + ended.stderr and project.receipt()["serving"]["reported"] is False


def _answers(port: int) -> bool:
    try:
        return ask(port, "/v2/health/ready")[0] in (200, 401)
    except OSError:
        return False


@pytest.mark.slow
def test_in_a_container_of_its_own(docker_project: Project, trained: Path) -> None:
    """The image is built; the port is published on the loopback address; kill -9 inside, and again."""
    [port] = free_ports()
    shutil.copytree(trained, docker_project.folder / "models")
    words = ["serve", "digits", "--trust", "--on", "docker", "--gpus", "none", "--port", str(port), "--detach"]
    docker_project.cli(*words, timeout_s=900)
    assert ask(port, body={"image": IMAGE})[0] == 200
    [container] = docker_project.containers()
    listing = subprocess.run(["docker", "port", container], capture_output=True, text=True, check=True).stdout
    assert listing.split() == ["8000/tcp", "->", f"127.0.0.1:{port}"]
    kill = "import os,signal\nfor p in filter(str.isdigit, os.listdir('/proc')):\n"
    kill += " b'seatrial.serve\\0--model' in open(f'/proc/{p}/cmdline','rb').read() and os.kill(int(p), 9)\n"
    subprocess.run(["docker", "exec", container, "python3", "-c", kill], check=True)
    docker_project.wait_for(
        lambda: docker_project.cli("runs", "ls") and (docker_project.last / "summary.json").exists()
    )
    assert docker_project.receipt()["exit_cause"]["id"] == "signal" and not docker_project.containers()
    docker_project.cli(*words)
    assert ask(port, body={"image": IMAGE})[0] == 200
    docker_project.cli("runs", "stop", "last")
    receipt = docker_project.receipt()
    assert (receipt["exit_code"], receipt["serving"]["requests"]) == (0, 1) and not docker_project.containers()
