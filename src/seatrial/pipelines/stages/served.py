"""A stage that serves: the model of the stage that it names, as the job of a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import DataError, UsageError
from seatrial.job.model import Job
from seatrial.runs.serving_job import Options, serving_job
from seatrial.runs.trained_model import SERVE, WEIGHTS, TrainedModel, is_model, of_file, of_recipe, the_one
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed, from_here

#: Files of a stage's outputs that are looked at.
_MOST_FILES = 20_000

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
    files = [path for output in outputs for path in _files(trained.project / output)]
    if (one := the_one(files, SERVE)) is not None:
        return of_file(one, SERVE)
    if planning:  # what it will write, or has written more than once, is known when it has
        named = next((output for output in outputs if output.endswith(SERVE.suffixes)), "MODEL.pt2")
        return TrainedModel("file", Path(named).name, name, trained.project / Path(named).parent)
    if not files:
        raise DataError(
            f"stages.{name}.serve: there is no model among the outputs {', '.join(outputs) or '(none)'}",
            cause=f"looked for {', '.join(SERVE.suffixes)}",
            run=f"ls {as_typed(trained.project)}",
        )
    raise UsageError(
        f"stages.{name}.serve: {len(files)} models are among the outputs: {', '.join(map(from_here, files[:8]))}",
        run="name one of them in a stage's outputs of its own, or: seatrial serve FILE",
    )


def _files(path: Path) -> Iterator[Path]:
    """Files of models at or below an output."""
    if path.is_file():
        yield from [path] if is_model(path.name, SERVE) else []
        return
    for entry in nofollow.files_below(path, most_entries=_MOST_FILES):
        if is_model(entry.name, SERVE):
            yield Path(entry.path)


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
