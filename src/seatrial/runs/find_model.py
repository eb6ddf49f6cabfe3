"""Find the trained model that a reference names, or say what is there in its place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.errors import DataError, RunNotFoundError, SeatrialError, UsageError
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.runs.trained_model import (
    EXPORT,
    FILES,
    SERVE,
    WEIGHTS,
    TrainedModel,
    Verb,
    is_model,
    of_file,
    of_recipe,
    the_one,
)
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed, from_here

if TYPE_CHECKING:
    from seatrial.receipt.model import Receipt


_MOST_FILES = 200_000

#: File times are of a coarse clock, and a run's receipt is written a moment after its target has ended.
_SLACK_S = 2.0

_CLASS = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def find_model(word: str, project: Path, models: Path, store: RunStore, verb: Verb) -> TrainedModel:
    """What the word means: a file, a recipe with a trained model in ``models``, a run; to serve, ``file.py:Class``.

    Raises:
        DataError: the recipe was not trained, or the file is not there.
        UsageError: it is none of these, or a run that failed, made no model, or several.
    """
    if verb is SERVE and (match := _CLASS.fullmatch(word)) is not None:
        return _code(match["file"], match["name"], project)
    path = Path(word)
    if path.name.lower().endswith(FILES) or path.is_file():
        check_other_file(path, verb)
        return of_file(path, verb)
    if word in WEIGHTS and (models / WEIGHTS[word]).is_file():
        return of_recipe(word, models)
    from seatrial.runs.resume import run_to_resume  # all of planning

    try:
        run = run_to_resume(store, word)  # last: the newest that trains
    except RunNotFoundError as error:
        raise _nothing(word, models, verb, error) from None
    return of_run(run, verb)


def of_run(run: Run, verb: Verb) -> TrainedModel:
    """The model that a run has saved. Raises UsageError: it has not ended, failed, or made none, or several."""
    plan, shown = run.plan(), f"Run {run.id}"
    if plan.job.serve is not None:
        raise UsageError(f"{shown} is a server itself", run=verb.of(plan.job.serve.typed.partition(" ")[0]))
    if not plan.on_this_host:
        raise UsageError(
            f"{shown} saved its model on the cluster's volume",
            run=f"seatrial runs cp {run.id}:FILE ./models; {verb.of('./models/FILE')}",
        )
    if not run.ended:
        raise UsageError(f"{shown} has not ended", run=f"seatrial runs logs -f {run.id}")
    receipt = _receipt(run)
    if receipt.exit_code not in (0, 4):  # 4: it ended well, and a criterion was unmet
        raise UsageError(
            f"{shown} failed, so it has no trained model: {receipt.exit_cause.words}",
            run=f"seatrial runs show {run.id}",
        )
    target, project = plan.job.target, plan.job.project
    if target.kind == "recipe" and target.value == "export":
        return replace(of_file(project / plan.job.criteria.model[0], verb), of_run=run.id)
    folder = plan.job.models.source if plan.job.models else project / "models"
    if target.kind == "recipe":
        if target.value not in WEIGHTS:
            raise UsageError(
                f"{shown}, {target.value}, trains no model", run=f"seatrial run digits && {verb.of('digits')}"
            )
        found = of_recipe(target.value, folder)
        return replace(found, of_run=run.id, warnings=_written_since(run, receipt, found, verb))
    folders = [folder, project] if plan.job.models else [project]
    return replace(of_file(_saved_by(run, receipt, folders, verb), verb), of_run=run.id)


def _code(file: str, name: str, project: Path) -> TrainedModel:
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
    return TrainedModel("code", f"{inside}:{name}", name, files=(path,))


def _nothing(word: str, models: Path, verb: Verb, error: SeatrialError) -> SeatrialError:
    if word in WEIGHTS:
        try:
            of_recipe(word, models)
        except DataError as untrained:
            return untrained
    if word and Path(word).is_dir():
        return folder_error(Path(word), verb)
    there = next((name for name in WEIGHTS if (models / WEIGHTS[name]).is_file()), None)
    return UsageError(
        f'There is no run, recipe or file "{word}" in this project',
        cause=f"recipes: {', '.join(WEIGHTS)}",
        run=verb.of(there) if there else error.run,
    )


def _saved_by(run: Run, receipt: Receipt, folders: Sequence[Path], verb: Verb) -> Path:
    """The model in these folders that was written while the run went on; nothing that a link leads to."""
    started = receipt.header.started_at or receipt.header.judged_at
    found: dict[Path, None] = {}
    for folder in folders:
        for entry in nofollow.files_below(folder, most_entries=_MOST_FILES, skip=nofollow.NO_RESULTS):
            if not is_model(entry.name, verb):
                continue
            modified = entry.stat(follow_symlinks=False).st_mtime
            if started - _SLACK_S <= modified <= receipt.header.judged_at + _SLACK_S:
                found[Path(entry.path)] = None
    saved = sorted(found)
    if (one := the_one(saved, verb)) is not None:
        return one
    if not saved:
        raise UsageError(
            f"Run {run.id} saved no model that is still there: looked for {', '.join(verb.suffixes)}",
            run=f"seatrial runs show {run.id}",
        )
    names = ", ".join(from_here(path) for path in saved[:8])
    raise UsageError(f"Run {run.id} saved {len(saved)} models: {names}", run=verb.of(saved[0]))


def _written_since(run: Run, receipt: Receipt, found: TrainedModel, verb: Verb) -> tuple[str, ...]:
    """Recipes save under one name: a later training has replaced what this run made."""
    if all(path.stat().st_mtime <= receipt.header.judged_at + _SLACK_S for path in found.files):
        return ()
    return (f"{from_here(found.files[0])} was written after run {run.id} had ended: it is {verb.done} as it is now",)


def _receipt(run: Run) -> Receipt:
    from seatrial.receipt.store import load  # 35 ms, for words that mean runs alone

    return load(run.folder)


#: Models of Keras. Source: keras.saving.
KERAS = (".keras", ".h5", ".hdf5")
_FACTORY = "a function of yours makes the network: net:make_model is make_model() in net.py"
_MOST_NAMED = 8


def check_other_file(path: Path, verb: Verb) -> None:
    """Raises UsageError: another program's model, with how it becomes one that is read."""
    suffix, shown = path.suffix.lower(), from_here(path)
    if suffix in KERAS:
        name = str(path.with_suffix(".onnx"))
        called = "m(keras.ops.zeros((1, *m.input_shape[1:])))"  # Keras exports no model that was never called
        written = f'm.export({_text(name)}, format="onnx")'
        code = f"import keras; m = keras.saving.load_model({_text(path)}); {called}; {written}"
        raise UsageError(
            f"{shown} is a model of Keras, which is neither exported nor served; Keras writes it as ONNX",
            run=f"python -c {shlex.quote(code)} && {SERVE.of(Path(name))}",
        )
    if suffix == ".onnx" and verb is EXPORT:
        raise UsageError(f"{shown} is an ONNX file already, and no model that can be exported", run=SERVE.of(path))


def folder_error(folder: Path, verb: Verb) -> SeatrialError:
    """That a folder is no model's file: what lies in it, and what to name instead."""
    shown, typed = from_here(folder), as_typed(folder)
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return DataError(f"The folder {shown} cannot be read: {error.strerror}", run=f"ls -l {typed}")
    models = [name for name in names if is_model(name, verb)]
    if "config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names):
        library = "sentence-transformers" if "modules.json" in names else "transformers"
        made = f"transformers.{_class(folder)}.from_pretrained({_text(folder)})"
        code = f'import torch, transformers; torch.save({made}.state_dict(), "model.pth")'
        served = "seatrial serve serve.py:Model   # the class is in docs/serving.md, A class of yours"
        exported = f"python -c {shlex.quote(code)} && seatrial export model.pth --to onnx --model net:make_model"
        return UsageError(
            f"The folder {shown} is a model of {library}, whose own code makes the network",
            cause="a class of yours that loads it is served" if verb is SERVE else _FACTORY,
            run=served if verb is SERVE else exported,
        )
    if ".metadata" in names and any(name.endswith(".distcp") for name in names):
        module = "torch.distributed.checkpoint.format_utils"
        return UsageError(
            f"The folder {shown} is a checkpoint in parts, of torch.distributed.checkpoint",
            cause=f"torch makes one file of it; {_FACTORY}",
            run=f"python -m {module} dcp_to_torch {typed} model.pth && seatrial export model.pth --to pt2 "
            "--model net:make_model",
        )
    if "saved_model.pb" in names:
        return UsageError(
            f"The folder {shown} is a model of TensorFlow, which is neither exported nor served",
            run=f"python -m tf2onnx.convert --saved-model {typed} --output model.onnx && seatrial serve model.onnx",
        )
    if not models:
        found = f"there are {', '.join(names[:_MOST_NAMED])}" if names else "it is empty"
        return UsageError(f"The folder {shown} has no model in it: {found}", run=f"ls {typed}")
    return UsageError(
        f"The folder {shown} is no model itself; in it are {', '.join(models[:_MOST_NAMED])}",
        run=verb.of(folder / models[0]),
    )


def _text(path: Path | str) -> str:
    """A path as Python's text, whatever is in the name."""
    return json.dumps(str(path))


def _class(folder: Path) -> str:
    """Of transformers, that the folder's configuration names."""
    try:
        name = json.loads((folder / "config.json").read_text())["architectures"][0]
    except (OSError, ValueError, LookupError, TypeError):
        name = ""
    return name if isinstance(name, str) and name.isidentifier() else "AutoModel"
