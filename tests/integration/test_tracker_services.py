"""TensorBoard and MLflow as services with a real engine: runs appear live in Chromium, and a run reaches nothing else.

One image for the script, of the trackers' clients alone: no torch.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project
from seatrial.runs.store import project_key

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.xdist_group("trackers"), pytest.mark.timeout(2400)]
pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: Logs by itself, as a user's script would: TensorBoard's own writer, MLflow's own client, no word of seatrial.
SCRIPT = """
import os, time
import mlflow
from tensorboard.summary import Writer

writer = Writer(os.environ["TENSORBOARD_LOGGING_DIR"])
default = Writer("runs/by-habit")
with mlflow.start_run(run_name="a-user-script"):
    mlflow.log_param("layers", 3)
    for step in range(600):
        writer.add_scalar("loss", 1 / (step + 1), step)
        default.add_scalar("habit", step, step)
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        writer.flush(), default.flush()
        print("step", step, flush=True)
        if os.path.exists("enough"):
            break
        time.sleep(0.2)
"""

CONFIG = """
[image]
build_network = "host"
requirements = ["tensorboard", "mlflow-skinny"]
"""


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def fetch(url: str, token: str | None = None, *, timeout_s: float = 20) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as answer:
        text: str = answer.read().decode()
        return text


def eventually(ask: Any, timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.3)
    return answer


@pytest.fixture
def up(docker_project: Project) -> Iterator[dict[str, dict[str, str]]]:
    """Both trackers, for a project with a script; what up says of them, by name."""
    docker_project.write("seatrial.toml", CONFIG)
    docker_project.write("train.py", SCRIPT)
    told = {}
    for name in ("tensorboard", "mlflow"):
        brought = docker_project.cli(
            "up", name, "--on", "docker", "--port", str(free_port()), "--trust", "--json", timeout_s=1200
        )
        told |= {each["name"]: each for each in json.loads(brought.stdout)}
    yield told
    docker_project.cli("runs", "stop", timeout_s=120)


@pytest.fixture
def page() -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        made = launched.new_page(viewport={"width": 1280, "height": 900})
        made.set_default_timeout(60_000)
        yield made
        launched.close()


def door(service: dict[str, str]) -> str:
    return f"{service['url']}?token={service['token']}"


def test_a_run_appears_live_and_its_receipt_is_there(
    docker_project: Project, up: dict[str, dict[str, str]], page: Page, tmp_path: Path
) -> None:
    started = docker_project.cli(
        "run", "--on", "docker", "--gpus", "none", "--trust", "--detach", "train.py", timeout_s=1200
    )
    run_id = re.findall(r"\d{8}-\d{6}-[0-9a-z]{4}", started.stdout + started.stderr)[0]
    board, server = up["tensorboard"], up["mlflow"]

    eventually(lambda: f"seatrial/{run_id}" in fetch(f"{board['url']}data/runs", board["token"]))
    assert "runs/by-habit" in fetch(f"{board['url']}data/runs", board["token"])
    page.goto(f"{door(board)}#timeseries")
    assert "token=" not in page.url
    expect(page.get_by_text(f"seatrial/{run_id}").first).to_be_visible(timeout=60_000)
    expect(page.get_by_text("loss").first).to_be_visible()
    page.screenshot(path=tmp_path / "tensorboard.png")

    page.goto(f"{door(server)}#/experiments/0/runs?workflowType=machine_learning")
    expect(page.get_by_text("a-user-script").first).to_be_visible(timeout=60_000)
    page.screenshot(path=tmp_path / "mlflow.png")
    live = docker_project.cli("runs", "ls").stdout
    assert "running" in live.partition(run_id)[2] and board["url"] in live and server["url"] in live

    docker_project.write("enough", "")
    eventually(lambda: "done" in docker_project.cli("runs", "ls").stdout.partition(run_id)[2].splitlines()[0], 90)
    receipt = json.loads((docker_project.folder / ".seatrial" / "runs" / run_id / "receipt.json").read_text())
    pages = {each["name"]: each["url"] for each in receipt["pages"]}
    assert pages["TensorBoard"] == f"{board['url']}?runFilter={run_id}#timeseries"
    page.goto(pages["MLflow"].replace("?", "/artifacts?"))
    page.get_by_text("seatrial", exact=True).first.click()
    expect(page.get_by_text("receipt.md").first).to_be_visible(timeout=60_000)
    page.screenshot(path=tmp_path / "artifacts.png")
    mine = pages["MLflow"].rpartition("/")[2].partition("?")[0]
    kept = fetch(f"{server['url']}get-artifact?run_id={mine}&path=seatrial/receipt.md", server["token"])
    assert run_id in kept and "a-user-script" not in kept
    plan = (docker_project.state / "projects").rglob(f"{run_id}/plan.json")
    assert all(server["token"] not in path.read_text() for path in plan), (
        "the token is a secret, and no part of the plan"
    )


def test_what_a_run_wrote_leads_nowhere(docker_project: Project, up: dict[str, dict[str, str]]) -> None:
    board = up["tensorboard"]
    events = docker_project.folder / ".seatrial" / "tensorboard" / "20261122-000000-evil"
    events.mkdir(parents=True)
    for name, target in {"root": "/", "up": "..", "me": ".", "x.tfevents.1.h": "/etc/passwd"}.items():
        (events / name).symlink_to(target)
    (events / "projector_config.pbtxt").write_text(
        'embeddings { tensor_name: "x" tensor_path: "/etc/passwd" metadata_path: "/etc/passwd" }'
    )
    (events / "events.out.tfevents.1.host").write_bytes(b"\xff" * 1000)
    (docker_project.folder / "runs").symlink_to("/")
    time.sleep(6)
    assert "evil" not in fetch(f"{board['url']}data/runs", board["token"])
    for path in (
        "data/plugin/projector/runs",
        "data/plugin/projector/metadata?run=seatrial/20261122-000000-evil&name=x",
    ):
        try:
            assert "root:" not in fetch(board["url"] + path, board["token"])
        except urllib.error.HTTPError as error:
            assert error.code in (400, 404) and b"root:" not in error.read()
    inside = ["docker", "exec", f"seatrial-tensorboard-{_digest(docker_project)}", "sh", "-c"]
    for attempt in (
        "touch /project/x",
        "touch /events/x",
        "touch /seatrial/served/x",
        "touch /opt/x",
        "ls /project/.seatrial/*",
    ):
        assert exit_code([*inside, attempt]) != 0, attempt


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_without_the_token_there_is_nothing(up: dict[str, dict[str, str]], name: str) -> None:
    for path in ("", "data/runs", "health", "version", "api/2.0/mlflow/experiments/search", "static-files/index.html"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(up[name]["url"] + path)
        assert refused.value.code == 401


def test_up_again_finds_it_and_down_leaves_nothing_running(
    docker_project: Project, up: dict[str, dict[str, str]]
) -> None:
    again = json.loads(docker_project.cli("up", "mlflow", "--json").stdout)
    assert again == [up["mlflow"]]
    name = f"seatrial-mlflow-{_digest(docker_project)}"
    exit_code(["docker", "kill", name])
    assert "it ended with exit code 137" in docker_project.cli("runs", "ls").stdout
    silent = docker_project.cli("run", "--on", "docker", "--gpus", "none", "--trust", "train.py", exit_code=5).stderr
    assert "does not answer" in silent and "seatrial up mlflow" in silent
    assert json.loads(docker_project.cli("up", "mlflow", "--json", "--trust").stdout) == [up["mlflow"]]
    docker_project.cli("runs", "stop", "mlflow")
    docker_project.cli("runs", "stop", "tensorboard")
    assert exit_code(["docker", "container", "inspect", name]) != 0
    assert exit_code(["docker", "network", "inspect", f"seatrial-{_digest(docker_project)}"]) != 0
    assert "nothing of this project is up" in docker_project.cli("runs", "stop", "--all").stderr


def exit_code(argv: list[str]) -> int:
    return subprocess.run(argv, capture_output=True, timeout=60).returncode


def _digest(project: Project) -> str:
    return project_key(project.folder.resolve()).rpartition("-")[2]
