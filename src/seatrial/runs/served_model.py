"""Which model ``seatrial serve`` means: a recipe's, a file, a class in the project, or what a run has made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.errors import DataError, RunNotFoundError, SeatrialError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.serving import Weights
from seatrial.runs.store import Run, RunStore
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed, from_here

#: What a file of a model ends in. A program is served as it is; weights need their network beside them.
PROGRAMS = (".pt2", ".onnx", ".torchscript")
SUFFIXES = (*PROGRAMS, ".pt", ".pth", ".safetensors")

#: Recipe that saves a model which answers requests → its weights, below the models folder.
SERVED = {name: recipe.weights for name, recipe in RECIPES.items() if recipe.weights is not None}

#: Inputs and outputs that recipes keep beside a model's weights. Source: train/saving/examples.py.
_BESIDE = ".examples.safetensors"

#: Folders of a project in which no run saves a model.
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "env"}
_MOST_FILES = 200_000

#: File times are of a coarse clock, and a run's receipt is written a moment after its target has ended.
_SLACK_S = 2.0

if TYPE_CHECKING:
    from seatrial.receipt.model import Receipt

_CLASS = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Found:
    """A model to serve.

    Attributes:
        kind, model: as ``job.serving.Serving`` has them. name: in addresses, unless the user has another.
        folder: what is mounted at /models; None for a class, which loads what it likes.
        files: that the model is loaded from. of_run: the run that made it.
    """

    kind: str
    model: str
    name: str
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    of_run: str | None = None
    warnings: tuple[str, ...] = ()

    def weights(self, project: Path) -> tuple[Weights, ...]:
        """The files with their digests. Raises DataError: one cannot be read."""
        top = self.folder or project
        return tuple(_weights(file, top) for file in self.files)


def find_model(reference: str, project: Path, models: Path, store: RunStore) -> Found:
    """What the word means: ``file.py:Class``, a file, a recipe with a trained model in ``models``, or a run.

    Raises:
        UsageError: it is none of these, or a run that made several models, or none.
        DataError: the recipe has not been trained.
    """
    if (match := _CLASS.fullmatch(reference)) is not None:
        return _code(match["file"], match["name"], project)
    path = Path(reference)
    if path.suffix.lower() in SUFFIXES or path.is_file():
        return _file(path)
    if reference in SERVED and trained(reference, models):
        return of_recipe(reference, models)
    from seatrial.runs.resume import run_to_resume  # all of planning, which a stage that serves need not load

    try:
        run = run_to_resume(store, reference)  # last: the newest that trains
    except RunNotFoundError as error:
        raise _nothing(reference, project, models, error) from None
    return of_run(run)


def of_run(run: Run) -> Found:
    """The model that a run has made. Raises UsageError: it has not ended, or made none, or several."""
    plan = run.plan()
    shown = f"Run {run.id}"
    if plan.job.serve is not None:
        raise UsageError(
            f"{shown} is a server itself", run=f"seatrial serve {plan.job.serve.typed}   # starts it again"
        )
    if plan.cluster is not None:
        raise UsageError(
            f"{shown} saved its model on the cluster's volume",
            run=f"seatrial runs cp {run.id}:FILE ./models; seatrial serve ./models/FILE",
        )
    if not run.ended:
        raise UsageError(f"{shown} has not ended", run=f"seatrial runs logs -f {run.id}")
    target = plan.job.target
    if target.kind == "recipe":
        if target.value not in SERVED:
            raise UsageError(f"{shown}, {target.value}, made no model", run="seatrial run digits; seatrial serve last")
        folder = plan.job.models.source if plan.job.models else plan.job.project / "models"
        if plan.view is not None and folder.is_relative_to(plan.view):  # a stage's: its outputs are in the project
            folder = plan.job.project / folder.relative_to(plan.view)
        found = of_recipe(target.value, folder)
        return replace(found, of_run=run.id, warnings=_written_since(run, found))
    folders = [folder for folder in (plan.job.models.source if plan.job.models else None, plan.job.project) if folder]
    path = _only_one(_saved_by(run, folders), run)
    return replace(_file(path), of_run=run.id)


def of_recipe(name: str, models: Path) -> Found:
    """Raises DataError: it has not been trained."""
    files = trained(name, models)
    if not files:
        raise DataError(f"There is no trained {name} model in {from_here(models)}", run=f"seatrial run {name}")
    return Found("recipe", name, name, models, files)


def trained(name: str, models: Path) -> tuple[Path, ...]:
    """The weights that a recipe has saved; () for none."""
    path = models / SERVED[name]
    return (path,) if path.is_file() else ()


def of_file(path: Path) -> Found:
    """A model's file. Raises UsageError, DataError."""
    return _file(path)


def is_model(name: str) -> bool:
    """Whether a file of this name is a model's."""
    return name.lower().endswith(SUFFIXES) and not name.endswith(_BESIDE)


def _code(file: str, name: str, project: Path) -> Found:
    path = project / file
    if not path.is_file():
        raise UsageError(f"There is no {file} in {from_here(project)}", run=f"ls {as_typed(project)}")
    if not path.resolve().is_relative_to(project.resolve()):
        raise UsageError(
            f"{file} is outside the project {from_here(project)}",
            cause="only the project folder is in the container",
            run=f"cd {as_typed(path.resolve().parent)} && seatrial serve {path.name}:{name}",
        )
    inside = path.resolve().relative_to(project.resolve())
    return Found("code", f"{inside}:{name}", name, files=(path,))


def _file(path: Path) -> Found:
    if not path.is_file():
        raise DataError(f"There is no file {from_here(path)}", run=f"ls {as_typed(path.absolute().parent)}")
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{from_here(path)} is no model: expected {', '.join(SUFFIXES)}",
            cause="a class of your own is served as file.py:Class" if path.suffix == ".py" else None,
            run=f"seatrial serve {as_typed(path)}:Model" if path.suffix == ".py" else "seatrial serve --help",
        )
    path = path.absolute()
    beside = path.with_name(f"{path.name}.data")  # ONNX keeps weights above 2 GB there
    files = (path, beside) if path.suffix == ".onnx" and beside.is_file() else (path,)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip(".-") or "model"
    return Found("file", path.name, name[:63], path.parent, files)


def _nothing(reference: str, project: Path, models: Path, error: SeatrialError) -> SeatrialError:
    if reference in SERVED:
        return DataError(
            f"There is no trained {reference} model in {from_here(models)}", run=f"seatrial run {reference}"
        )
    there = [name for name in SERVED if trained(name, models)]
    if there:
        return UsageError(f'There is no run, model or file "{reference}"', run=f"seatrial serve {there[0]}")
    return UsageError(f'There is no run, model or file "{reference}"', cause=error.message, run=error.run)


def _saved_by(run: Run, folders: Sequence[Path]) -> list[Path]:
    """Files of models in these folders that were written while the run went on; nothing that a link leads to."""
    receipt = _receipt(run)
    started = receipt.header.started_at or receipt.header.judged_at
    found: dict[Path, None] = {}
    for folder in folders:
        for entry in nofollow.files_below(folder, most_entries=_MOST_FILES, skip=_SKIPPED):
            if not is_model(entry.name):
                continue
            modified = entry.stat(follow_symlinks=False).st_mtime
            if started - _SLACK_S <= modified <= receipt.header.judged_at + _SLACK_S:
                found[Path(entry.path)] = None
    return sorted(found)


def _only_one(saved: Sequence[Path], run: Run) -> Path:
    """The one file; of several the one that needs no network beside it."""
    programs = [path for path in saved if path.suffix.lower() in PROGRAMS]
    for few in (saved, programs):
        if len(few) == 1:
            return few[0]
    if not saved:
        raise UsageError(
            f"Run {run.id} saved no model that is still there: looked for {', '.join(SUFFIXES)}",
            run="seatrial serve FILE   # or a class of your own: seatrial serve serve.py:Model",
        )
    names = ", ".join(from_here(path) for path in saved[:8])
    raise UsageError(
        f"Run {run.id} saved {len(saved)} models: {names}", run=f"seatrial serve {as_typed((programs or saved)[0])}"
    )


def _written_since(run: Run, found: Found) -> tuple[str, ...]:
    """Recipes save under one name: a later training has replaced what this run made."""
    judged_at = _receipt(run).header.judged_at
    if all(path.stat().st_mtime <= judged_at + _SLACK_S for path in found.files):
        return ()
    return (f"{from_here(found.files[0])} was written after run {run.id} had ended: it is served as it is now",)


def _receipt(run: Run) -> Receipt:
    from seatrial.receipt.write import load  # all that renders, for references to runs alone

    return load(run.folder)


def _weights(file: Path, top: Path) -> Weights:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                digest.update(chunk)
            size = opened.tell()
    except OSError as error:
        raise DataError(f"{from_here(file)} cannot be read: {error.strerror}", run=f"ls -l {as_typed(file)}") from error
    path = str(file.relative_to(top)) if file.is_relative_to(top) else file.name
    return Weights(path=path, sha256=digest.hexdigest(), bytes=size)
