"""What a run is given of the trackers that are up, and what it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeBackend
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.runs.services import Service, ServiceStore
from seatrial.runs.store import RunStore
from seatrial.runs.tracked import CONTEXT, URI, Tracked, tracked

TOKEN = "a-token_of-enough-length"
OURS = Service(
    "mlflow", "http://127.0.0.1:5000/", TOKEN, "docker", "0123456789ab", "seatrial-net", "http://seatrial-mlflow:8000"
)
BOARD = Service("tensorboard", "http://127.0.0.1:6006/", TOKEN, "docker", "abcdef012345", "seatrial-net")


class Process(FakeBackend):
    place = "process"


class Cluster(FakeBackend):
    place = "cluster"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"SEATRIAL_STATE": str(tmp_path / "state")}


def with_up(project: Path, environ: dict[str, str], *services: Service, backend: Any = None, **job: Any) -> Tracked:
    records = ServiceStore(RunStore(project, environ).record)
    for service in services:
        records.save(service)
    target = job.pop("target", Target(kind="script", value="train.py"))
    return tracked(Job(project=project, target=target, **job), backend or FakeBackend(), environ)


def test_nothing_is_up(tmp_path: Path, environ: dict[str, str]) -> None:
    job = Job(project=tmp_path, target=Target(kind="recipe", value="digits"))
    made = tracked(job, FakeBackend(), environ)
    assert made.job is job and made.for_run("x") is job and not made.events and made.asked is None


def test_a_script_finds_address_and_token(tmp_path: Path, environ: dict[str, str]) -> None:
    made = with_up(tmp_path, environ, OURS, BOARD)
    assert made.job.env[URI] == "http://seatrial-mlflow:8000" and made.job.network == "seatrial-net"
    assert made.job.secrets == ("MLFLOW_TRACKING_TOKEN",) and made.environ["MLFLOW_TRACKING_TOKEN"] == TOKEN
    assert json.loads(made.for_run("20261122-1").env[CONTEXT]) == {"seatrial.run": "20261122-1"}
    assert made.events and made.asked == OURS
    assert TOKEN not in made.for_run("x").model_dump_json() and TOKEN not in str(made.choices)


@pytest.mark.parametrize(
    ("job", "backend"), [({"network": "host"}, None), ({}, Process("local")), ({"hosts": ("a", "b"), "nodes": 2}, None)]
)
def test_on_the_hosts_network_it_is_the_loopback_address(
    tmp_path: Path, environ: dict[str, str], job: dict[str, Any], backend: Any
) -> None:
    made = with_up(tmp_path, environ, OURS, backend=backend, **job)
    assert made.job.env[URI] == "http://127.0.0.1:5000/" and made.job.network == job.get("network")


@pytest.mark.parametrize(
    ("job", "backend", "words"),
    [
        ({"network": "none"}, None, "--network host"),
        ({"network": "theirs"}, None, "--network host"),
        ({}, FakeBackend("podman"), "seatrial up mlflow --on podman"),
        ({}, Cluster("k8s"), "this machine alone"),
    ],
)
def test_where_there_is_no_way_it_is_said(
    tmp_path: Path, environ: dict[str, str], job: dict[str, Any], backend: Any, words: str
) -> None:
    made = with_up(tmp_path, environ, OURS, backend=backend, **job)
    assert URI not in made.job.env and not made.job.secrets and made.asked is None
    assert len(made.warnings) == 1 and words in made.warnings[0]


def test_what_the_user_says_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    made = with_up(tmp_path, environ, OURS, env={URI: "https://mlflow.example"})
    assert made.job.env == {URI: "https://mlflow.example"} and made.asked is None


def test_a_server_of_the_users_with_their_login(tmp_path: Path, environ: dict[str, str]) -> None:
    environ["MLFLOW_TRACKING_USERNAME"], environ["MLFLOW_TRACKING_PASSWORD"] = "me", "hunter2hunter2"
    made = with_up(tmp_path, environ, Service("mlflow", "https://mlflow.example/"))
    assert made.job.env[URI] == "https://mlflow.example/" and made.job.network is None
    assert set(made.job.secrets) == {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
    assert "hunter2hunter2" not in made.for_run("x").model_dump_json()


def test_a_recipe_sends_its_numbers(tmp_path: Path, environ: dict[str, str]) -> None:
    recipe = Target(kind="recipe", value="digits", args=("--epochs", "2", "--track=mlflow"))
    made = with_up(tmp_path, environ, OURS, BOARD, target=recipe)
    assert made.job.target.args == ("--epochs", "2", "--track=mlflow", "--track", "tensorboard")
    assert [choice.value for choice in made.choices if choice.what == "tracker"] == ["--track tensorboard"]
    for other in (Target(kind="recipe", value="matmul"), Target(kind="script", value="train.py")):
        assert tracked(Job(project=tmp_path, target=other), FakeBackend(), environ).job.target == other
    ready = Job(project=tmp_path, target=recipe, image=ImageOptions(ready="mine:1"))
    assert tracked(ready, FakeBackend(), environ).job.target == recipe, "its image may lack the packages"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', "\0", '{"name": "mlflow"', '"x"'])
def test_a_damaged_record_is_no_service(tmp_path: Path, environ: dict[str, str], text: str) -> None:
    records = ServiceStore(RunStore(tmp_path, environ).record)
    records.save(OURS)
    (records.root / "mlflow.json").write_text(text)
    assert records.read("mlflow") is None or text == '{"name": 1}'


def test_records_and_tokens_are_the_users_alone(tmp_path: Path, environ: dict[str, str]) -> None:
    records = ServiceStore(RunStore(tmp_path, environ).record)
    records.save(OURS)
    token = records.token("mlflow")
    assert token == records.token("mlflow") and token != records.token("tensorboard") and len(token) >= 32
    assert all(path.stat().st_mode & 0o077 == 0 for path in records.root.iterdir())
    assert records.all() == {"mlflow": OURS} and f"?token={TOKEN}#" in OURS.door
