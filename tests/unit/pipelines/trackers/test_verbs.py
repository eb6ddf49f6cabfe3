"""What up and down say where a tracker cannot be brought up: one sentence and the next command. No engine needed."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.docker import Docker
from seatrial.errors import ConfigError, EngineError, EngineUnavailableError, SeatrialError, UsageError
from seatrial.pipelines.group import GroupStore
from seatrial.pipelines.group_kinds import meant
from seatrial.pipelines.request import Front, UpRequest
from seatrial.pipelines.trackers import verbs
from seatrial.runs.services import Service, ServiceStore
from seatrial.runs.store import RunStore

NO_ENGINE = {"SEATRIAL_DOCKER": "/no/docker", "SEATRIAL_PODMAN": "/no/podman"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"SEATRIAL_STATE": str(tmp_path / "state"), **NO_ENGINE}


@pytest.fixture
def up(tmp_path: Path, environ: dict[str, str]) -> Callable[..., list[str]]:
    """Bring up in a project; what was shown and said."""
    project = tmp_path / "project"
    project.mkdir()

    def bring(*names: str, **request: Any) -> list[str]:
        told: list[str] = []
        front = Front(
            told.append,
            lambda: contextlib.nullcontext(told.append),
            lambda stream, data: None,
            told.append,
            lambda job: None,
        )
        kind, asked = meant(UpRequest(project, names, **request))
        assert kind == "trackers"
        verbs.up(asked, front, environ)
        return told

    return bring


def refused(kind: type[SeatrialError], call: Callable[..., Any], *names: str, **request: Any) -> str:
    with pytest.raises(kind) as raised:
        call(*names, **request)
    assert raised.value.run, "the next command"
    return f"{raised.value.message} → {raised.value.run}"


def test_no_engine(up: Callable[..., list[str]]) -> None:
    said = refused(EngineUnavailableError, up, "tensorboard")
    assert said.startswith("Trackers need Docker or Podman, and neither is available")
    assert "not installed" in refused(EngineUnavailableError, up, "mlflow", backend="podman")
    assert "runs in a container, not on local" in refused(UsageError, up, "mlflow", backend="local")


def test_a_taken_port(up: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "facts", lambda self: EngineFacts("docker", available=True, reason="99"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(UsageError, up, "tensorboard", port=port)
    assert said == (
        f"Port {port} of this machine is taken: tensorboard cannot listen there → "
        f"seatrial up tensorboard --port {port + 1}"
    )


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("sqlite:///mlflow.db", "is no server's address"),
        ("databricks", "is no server's address"),
        ("http://", "is no server's address"),
        ("https://me:hunter2@mlflow.example", "has a login in it"),
    ],
)
def test_an_address_that_is_none(up: Callable[..., list[str]], environ: dict[str, str], uri: str, words: str) -> None:
    environ["MLFLOW_TRACKING_URI"] = uri
    said = refused(UsageError, up, "mlflow")
    assert words in said and "hunter2" not in said


def test_a_server_that_does_not_answer(up: Callable[..., list[str]], environ: dict[str, str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
    said = refused(EngineError, up, "mlflow")
    assert "(MLFLOW_TRACKING_URI) does not answer" in said and "seatrial up mlflow" in said


def test_a_server_that_answers_is_used_and_let_go(
    up: Callable[..., list[str]], environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ.update(MLFLOW_TRACKING_URI="https://mlflow.example/base", MLFLOW_TRACKING_TOKEN="a-secret-of-theirs")
    monkeypatch.setattr(verbs.mlflow_server, "require", lambda service, environ: None)
    assert "mlflow: https://mlflow.example/base/" in up("mlflow")
    store = RunStore(tmp_path / "project", environ)
    kept = ServiceStore(store.record).read("mlflow")
    assert kept == Service("mlflow", "https://mlflow.example/base/") and kept.token is None
    [group] = GroupStore(store).all()
    assert group.name == "mlflow" and verbs.refresh(GroupStore(store), group, environ).state == "running"
    up("mlflow")
    [group] = GroupStore(store).all()
    verbs.down(GroupStore(store), group, Front(*[lambda *_: None] * 5), environ)
    assert ServiceStore(store.record).all() == {} and GroupStore(store).find("mlflow").state == "stopped"


def test_the_file_names_them(up: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "project" / "seatrial.toml").write_text("[services.tensorboard]\n[services.mlflow]\nport = 5055\n")
    told = "\n".join(up(plan_only=True))
    assert told.count("neither is available") == 2
    assert "--port is for one" in refused(UsageError, up, port=5000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[services.mlflow]\nport = 80\n", "services.mlflow.port"),
        ("[services.mlflow]\nprot = 5000\n", "did you mean port?"),
        ("[services]\nmlflow = true\n", "expected a table"),
        ("[services.wandb]\n", "known here: tensorboard, mlflow"),
        ('[services.tensorboard]\nlogdirs = ["/etc"]\n', "below the project's folder"),
        ('[services.tensorboard]\nlogdirs = ["../other"]\n', "below the project's folder"),
    ],
)
def test_a_file_with_mistakes(up: Callable[..., list[str]], tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "project" / "seatrial.toml").write_text(text)
    assert words in refused(ConfigError, up, "mlflow")


def test_flags_of_other_kinds(up: Callable[..., list[str]]) -> None:
    assert "mean nothing" in refused(UsageError, up, "mlflow", gpus="none")


def test_json_of_a_plan_has_no_token(up: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "facts", lambda self: EngineFacts("docker", available=True, reason="99"))
    shown = "\n".join(up("mlflow", plan_only=True))
    assert "127.0.0.1:5000:8000" in shown and "SEATRIAL_TOKEN_SHA256" in shown
    with contextlib.suppress(json.JSONDecodeError):
        assert "token" not in json.loads(shown)
