"""Which kind of group ``seatrial up`` is to bring up: told by the words, the files, and nothing else."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from seatrial.errors import UsageError
from seatrial.job.loading import project_table
from seatrial.pipelines.compose.file_names import COMPOSE_FILES
from seatrial.pipelines.group import Group, GroupStore, Kind
from seatrial.system.typed_path import as_typed

if TYPE_CHECKING:
    from seatrial.pipelines.request import Front, UpRequest

#: Names that an earlier version brought up itself.
TRACKERS = ("tensorboard", "mlflow")

#: Kind of group → the module with its ``up`` and ``down``, imported when it is asked for.
ROOMS: dict[Kind, str] = {
    "stages": "seatrial.pipelines.stages.verbs",
    "compose": "seatrial.pipelines.compose.verbs",
}


class Room(Protocol):
    """What each kind of group has."""

    def up(self, request: UpRequest, front: Front, environ: Mapping[str, str]) -> int:
        """Bring it up and see it through; the exit code of the command."""

    def down(self, store: GroupStore, group: Group, front: Front, environ: Mapping[str, str]) -> None:
        """Stop what still runs of a group, and remove what was made only for it."""

    def refresh(self, store: GroupStore, group: Group, environ: Mapping[str, str]) -> Group:
        """The group with its members' states as they are now."""


def room(kind: Kind) -> Room:
    """The module of a kind."""
    gc.disable()  # what is imported stays
    try:
        return cast(Room, importlib.import_module(ROOMS[kind]))
    finally:
        gc.enable()


def meant(request: UpRequest) -> tuple[Kind, UpRequest]:
    """The kind, and the request with the Compose file that was found.

    Raises UsageError: several are there and none is named, or there is nothing to bring up.
    """
    if not request.project.is_dir():
        there = next(parent for parent in request.project.parents if parent.is_dir())
        raise UsageError(f"There is no project folder {request.project}", run=f"ls {as_typed(there)}")
    table = project_table(request.project)
    if request.stages:
        if not table.get("stages"):
            raise _nothing(request.project, table)
        return "stages", request
    if request.file is not None:
        if not request.file.is_file():
            raise UsageError(f"There is no file {request.file}", run=f"ls {as_typed(request.file.parent)}")
        return "compose", request
    found = [request.project / name for name in COMPOSE_FILES if (request.project / name).is_file()]
    if table.get("stages") and found:
        raise UsageError(
            f"This project has both {found[0].name} and [stages] in its seatrial.toml: which of them is meant?",
            run=f"seatrial up -f {as_typed(found[0])}   # or: seatrial up --stages",
        )
    if found:
        return "compose", replace(request, file=found[0])
    if table.get("stages"):
        return "stages", request
    trackers = [name for name in request.names if name in TRACKERS]
    if trackers:
        raise UsageError(
            f"seatrial up {trackers[0]} is retired: TensorBoard and MLflow are services of a Compose file",
            cause="examples/trackers has such a file",
            run="seatrial up -f compose.yaml",
        )
    if request.names and request.names[0].endswith((".yaml", ".yml")):
        file = Path(request.names[0])
        if not file.is_file():
            raise UsageError(f"There is no file {file}", run=f"ls {as_typed(file.parent)}")
        raise UsageError(f"{file} is a file: --file names it", run=f"seatrial up -f {as_typed(file)}")
    raise _nothing(request.project, table)


def only_stages(project: Path) -> bool:
    """Whether the project's file describes stages and, outside of them, nothing to run."""
    if not project.is_dir():
        return False
    table = project_table(project)
    return bool(table.get("stages")) and not {"target", "module"} & set(table)


def _nothing(project: Path, table: Mapping[str, Any]) -> UsageError:
    describes_a_run = bool({"target", "module"} & set(table))
    return UsageError(
        f"Nothing to bring up: {project} has no Compose file, and no [stages] in seatrial.toml",
        cause="Its seatrial.toml describes one run" if describes_a_run else None,
        run="seatrial run" if describes_a_run else "seatrial up -f compose.yaml",
    )
