"""A stage that serves: the model of the stage that it names, as the job of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.errors import DataError
from seatrial.job.model import Job
from seatrial.pipelines.stages.model_among import model_among
from seatrial.runs.serving_job import Options, serving_job
from seatrial.runs.trained_model import SERVE, WEIGHTS, TrainedModel, of_recipe
from seatrial.system.typed_path import as_typed

DEFAULT_PORT = 8000


def server_job(name: str, base: Job, trained: Job, outputs: Sequence[str], port: int | None, *, planning: bool) -> Job:
    """The job of a server.

    Args:
        base: what the file says for the stage that serves. trained: the job of the stage that makes the model.
        outputs: of that stage, below the project.
        planning: the model need not be there yet.

    Raises UsageError, DataError: there is no model, or there are several.
    """
    found = _model(name, trained, outputs, planning=planning)
    port = DEFAULT_PORT if port is None else port
    word = found.model if found.kind == "recipe" else as_typed((found.folder or base.project) / found.model)
    typed = word if port == DEFAULT_PORT else f"{word} --port {port}"
    return serving_job(base, found, Options(port=port, typed=typed), given=("timeout",))


def _model(name: str, trained: Job, outputs: Sequence[str], *, planning: bool) -> TrainedModel:
    target = trained.target
    if target.kind == "recipe" and target.value in WEIGHTS:
        folder = trained.models.source if trained.models is not None else trained.project / "models"
        try:
            return of_recipe(target.value, folder)
        except DataError:
            if not planning:
                raise
            return TrainedModel("recipe", target.value, target.value, folder)
    return model_among(f"stages.{name}.serve", trained.project, outputs, SERVE, planning=planning)


def problems(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with the stages that serve, a sentence each."""
    found, ports = [], dict[object, str]()
    for name, table in tables.items():
        served = table.get("serve")
        if served is None:
            found += [f"stages.{name}.port: it belongs to a stage that serves"] if "port" in table else []
            continue
        own = [key for key in ("target", "module", "args", "outputs", "inputs") if key in table]
        if own:
            found.append(f"stages.{name}: it serves the model of {served}, and has no {own[0]} of its own")
        other = tables.get(str(served))
        if other is None:
            found.append(f'stages.{name}.serve: there is no stage "{served}"; there are {", ".join(tables)}')
        elif "serve" in other:
            found.append(f"stages.{name}.serve: {served} serves, too; name the stage that makes the model")
        port = table.get("port", DEFAULT_PORT)
        if not isinstance(port, int) or not 0 < port < 65536:
            found.append(f"stages.{name}.port: expected a port from 1 to 65535, got {port}")
        elif port in ports:
            found.append(f"stages.{name}.port: {ports[port]} serves on {port}, too")
        ports[port] = name
    for name, table in tables.items():
        needed = [need for need in table.get("needs", ()) if "serve" in tables.get(need, {})]
        if needed:
            found.append(f"stages.{name}.needs: {needed[0]} serves until it is stopped; nothing can wait for its end")
    return found
