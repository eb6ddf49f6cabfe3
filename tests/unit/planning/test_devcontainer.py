"""seatrial init --devcontainer: the image's own Dockerfile, and a devcontainer.json as the specification has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fakes import a_container, a_plan
from seatrial.errors import UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.keys import DataMount
from seatrial.job.model import Job, Target
from seatrial.job.plan import ImagePlan, Plan
from seatrial.planning.portable import devcontainer, write_devcontainer

WORDS = {"type": "array", "items": {"type": "string"}}
VARIABLES = {"type": "object", "additionalProperties": {"type": "string"}}
#: What is written here, as the reference of devcontainer.json (containers.dev) says of it. On 2026-11-23 it was also
#: held against devcontainers/spec, schemas/devContainer.base.schema.json, of March 2026.
SPECIFICATION: dict[str, Any] = {
    "type": "object",
    "required": ["build"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "build": {
            "type": "object",
            "required": ["dockerfile"],
            "additionalProperties": False,
            "properties": {"dockerfile": {"type": "string"}, "context": {"type": "string"}, "options": WORDS},
        },
        "workspaceMount": {"type": "string"},
        "workspaceFolder": {"type": "string"},
        "mounts": WORDS,
        "runArgs": WORDS,
        "containerEnv": VARIABLES,
        "secrets": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"description": {"type": "string"}},
                "additionalProperties": False,
            },
        },
        "initializeCommand": WORDS,
        "hostRequirements": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"gpu": {"enum": [True, False, "optional"]}},
        },
        "remoteUser": {"type": "string"},
        "customizations": {"type": "object"},
    },
}


def planned(project: Path, gpus: str = "auto", **job: Any) -> Plan:
    texts = {"framework/requirements.txt": "torch==2.13.0\n"}
    image = ImagePlan(tag="seatrial/x:1", build=True, dockerfile="FROM debian\nUSER 1000:1000\n", context_texts=texts)
    target = Target(kind="script", value="train.py")
    requested = Job(project=project, target=target, gpus=GpuRequest.parse(gpus), **job)
    return a_plan(job=requested, image=image, container=a_container(shm_bytes=1 << 31))


def test_folders_of_the_project_are_where_a_run_has_them_and_others_are_not_reported(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    data, models = (
        DataMount(source=project / "data", read_only=True),
        DataMount(source=project / "out" / "models", read_only=False),
    )
    made = devcontainer(planned(project, data=data, models=models))
    jsonschema.Draft202012Validator(SPECIFICATION).validate(made)
    assert made["mounts"] == [
        "source=${localWorkspaceFolder}/data,target=/data,type=bind,readonly",
        "source=${localWorkspaceFolder}/out/models,target=/models,type=bind",
    ]
    assert made["initializeCommand"] == ["mkdir", "-p", "out/models"]  # a mount's source must be there
    assert made["containerEnv"] == {"SEATRIAL_DATA_DIR": "/data", "SEATRIAL_MODELS_DIR": "/models"}
    elsewhere = devcontainer(planned(project, data=DataMount(source=tmp_path / "private", read_only=True)))
    assert "mounts" not in elsewhere and str(tmp_path) not in json.dumps(elsewhere)


def test_the_folder_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    written = write_devcontainer(planned(tmp_path))
    assert written == ["Dockerfile", "devcontainer.json", "framework/requirements.txt", "tools/layer.py"]
    dockerfile = (tmp_path / ".devcontainer" / "Dockerfile").read_text()
    assert dockerfile.startswith("FROM debian\nUSER 1000:1000\n") and dockerfile.endswith("\nUSER dev\n")
    assert json.loads((tmp_path / ".devcontainer" / "devcontainer.json").read_text())["remoteUser"] == "dev"
    assert list(tmp_path.iterdir()) == [tmp_path / ".devcontainer"]
    with pytest.raises(UsageError, match="is there already"):
        write_devcontainer(planned(tmp_path))
