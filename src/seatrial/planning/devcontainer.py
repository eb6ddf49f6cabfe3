"""``.devcontainer``: the project's own image as a development container, for VS Code, Codespaces and the CLI of the
specification (https://containers.dev, devcontainer.json reference). It needs no seatrial where it is opened.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from seatrial.errors import DiskError, UsageError
from seatrial.images.build.build import write_context
from seatrial.images.dockerfile.render import VENV_PYTHON
from seatrial.job.plan import CONTAINER_PROJECT, Plan
from seatrial.planning.secrets import targets_secrets
from seatrial.system.files import in_the_way
from seatrial.system.typed_path import as_typed

FOLDER = ".devcontainer"

#: Editors put their server into the HOME of a user that has one; its number becomes that of whoever opens it.
_USER = "dev"
_USER_LINES = f"""
# A user with a home, for the editor's server. The editor gives it the number of whoever opens the project.
USER root
RUN useradd --create-home --non-unique --uid 1000 --shell /bin/bash {_USER}
USER {_USER}
"""


def devcontainer(plan: Plan) -> dict[str, Any]:
    """devcontainer.json of a plan with a container."""
    job, container = plan.job, plan.container
    assert container is not None
    build: dict[str, Any] = {"dockerfile": "Dockerfile", "context": "."}
    if job.image.build_network != "default":
        build["options"] = [f"--network={job.image.build_network}"]
    told: dict[str, Any] = {
        "name": job.project.name,
        "build": build,
        "workspaceMount": f"source=${{localWorkspaceFolder}},target={CONTAINER_PROJECT},type=bind",
        "workspaceFolder": CONTAINER_PROJECT,
        "mounts": [mount for mount in (_mount(plan, "data"), _mount(plan, "models")) if mount],
        "runArgs": [f"--shm-size={container.shm_bytes}"],
        "containerEnv": {
            **{f"SEATRIAL_{key.upper()}_DIR": f"/{key}" for key in ("data", "models") if _below(plan, key)},
            **{name: value for name, value in job.env.items() if name not in job.secrets},
        },
        "secrets": {name: {"description": "A variable that seatrial.toml passes on."} for name in targets_secrets(job)},
        "initializeCommand": ["mkdir", "-p", str(models)] if (models := _below(plan, "models")) else [],
        "hostRequirements": _requirements(plan),
        "remoteUser": _USER,
        "customizations": {
            "vscode": {
                "extensions": ["ms-python.python"],
                "settings": {"python.defaultInterpreterPath": VENV_PYTHON},
            }
        },
    }
    return {key: value for key, value in told.items() if value not in ([], {})}


def write_devcontainer(plan: Plan) -> list[str]:
    """Write the folder, whole or not at all; its files.

    Raises:
        UsageError: there is one already, or the plan builds no image.
        DiskError: it cannot be written.
    """
    folder = plan.job.project / FOLDER
    if os.path.lexists(folder):
        raise UsageError(
            f"{FOLDER} is there already: nothing was written", run=f"ls -a {as_typed(folder)}   # yours? move it away"
        )
    if plan.image is None or plan.image.dockerfile is None or plan.container is None:
        what = "runs without a container" if plan.container is None else "has an image of its own"
        raise UsageError(
            f"There is no Dockerfile to use: this project {what}", run="seatrial init --devcontainer --on docker"
        )
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{FOLDER}.") as aside:
            made = Path(aside) / FOLDER
            write_context(plan.image, made)
            dockerfile = made / "Dockerfile"
            dockerfile.write_text(dockerfile.read_text(encoding="utf-8").rstrip("\n") + "\n" + _USER_LINES)
            (made / "devcontainer.json").write_text(json.dumps(devcontainer(plan), indent=2) + "\n", encoding="utf-8")
            written = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
            made.rename(folder)
    except OSError as error:
        raise DiskError(f"Cannot write {folder}: {error.strerror}", run=in_the_way(folder.parent, error)) from error
    return written


def _requirements(plan: Plan) -> dict[str, Any]:
    """What the machine must have. ``optional``: a GPU is used where there is one."""
    kind = plan.job.gpus.kind
    return {} if kind == "none" else {"gpu": "optional" if kind == "auto" else True}


def _mount(plan: Plan, key: str) -> str | None:
    """A folder of the project where a run has it. One from outside of it is on this machine alone."""
    below = _below(plan, key)
    if below is None:
        return None
    options = ",readonly" if getattr(plan.job, key).read_only else ""
    return f"source=${{localWorkspaceFolder}}/{below.as_posix()},target=/{key},type=bind{options}"


def _below(plan: Plan, key: str) -> Path | None:
    """A data or models folder as a path in the project."""
    folder, root = getattr(plan.job, key), Path(os.path.realpath(plan.job.project))
    if folder is None or not Path(os.path.realpath(folder.source)).is_relative_to(root):
        return None
    return Path(os.path.realpath(folder.source)).relative_to(root)
