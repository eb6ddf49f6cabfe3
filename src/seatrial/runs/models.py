"""Find the trained model that a reference names, a recipe's, a file or a run's, and check that it can be opened."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from seatrial.errors import DataError, RunNotFoundError, SeatrialError, UsageError, fallback, os_errors
from seatrial.recipe_names import WEIGHTS
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.system import nofollow
from seatrial.system.files import ArchiveFile
from seatrial.system.text import as_typed, from_here

if TYPE_CHECKING:
    from seatrial.receipt.model import Receipt

_MOST_FILES = 200_000
#: File times are of a coarse clock, and a run's receipt is written a moment after its target has ended.
_SLACK_S = 2.0
#: Models of Keras. Source: keras.saving.
_KERAS = (".keras", ".h5", ".hdf5")
_FACTORY = "export's --model names the function that makes it: net:make_model stands for make_model() in net.py"
#: Files that hold their network.
PROGRAMS = (".pt2", ".onnx")
#: Inputs and outputs that recipes keep next to a model's weights. Source: train/saving/examples.py.
_BESIDE = ".examples.safetensors"
_PICKLES = (".pkl", ".pickle", ".joblib")
#: Suffixes of files that torch.save writes. ``model_best.pth.tar`` is usual, too.
_CHECKPOINTS = (".pth", ".pt", ".ckpt", ".th", ".pth.tar", ".pt.tar", ".bin")
#: A safetensors file is 8 bytes with the header's length, the header in JSON, and the tensors. Source: its format page.
#: A hundred bytes describe a tensor.
_LENGTH_BYTES, _MOST_HEADER_BYTES = 8, 10_000_000


class Verb(NamedTuple):
    """The models that a command, ``name``, takes.

    Attributes:
        example: of a whole command. done: the participle.
        suffixes: of models that it reads. vague: suffixes that data has, too, so that a run's files are not looked at.
        preferred: suffixes; of several files that a run saved, the only one of the first such group is taken.
    """

    name: str
    example: str
    done: str
    suffixes: tuple[str, ...]
    vague: tuple[str, ...]
    preferred: tuple[tuple[str, ...], ...]

    def of(self, word: object) -> str:
        """Return ``seatrial export models/best.pt2 --to onnx`` for a file, or for a run's name in place of ``last``."""
        return self.example.replace("last", as_typed(word) if isinstance(word, Path) else str(word))


EXPORT = Verb(
    "export",
    "seatrial export last --to onnx",
    "exported",
    (".pt2", ".safetensors", *_CHECKPOINTS),
    (".bin",),
    ((".pt2",), (".safetensors",)),
)
SERVE = Verb(
    "serve", "seatrial serve last", "served", (".pt2", ".onnx", ".safetensors"), (), (PROGRAMS, (".safetensors",))
)
#: Ends of the names of models' files, whether or not a command reads them; other words name runs.
FILES = tuple(dict.fromkeys((*EXPORT.suffixes, *SERVE.suffixes, *_PICKLES, *_KERAS)))


@dataclass(frozen=True)
class TrainedModel:
    """A model to export or to serve: a recipe's name, or a file below ``folder``, which is mounted at /models.

    ``name``: of the exported file, and in the server's addresses. ``of_run``: the run that made it.
    """

    kind: Literal["recipe", "file"]
    model: str
    name: str
    folder: Path
    files: tuple[Path, ...] = ()
    of_run: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_weights_alone(self) -> bool:
        """Return whether its name is a state dict's and its network is unknown: no examples of a recipe lie by it."""
        path = self.folder / self.model
        weights = self.kind == "file" and path.name.lower().endswith((".safetensors", *_CHECKPOINTS))
        return weights and not path.with_name(f"{path.stem}{_BESIDE}").is_file()


def of_recipe(name: str, models: Path) -> TrainedModel:
    """Return a recipe's model. Raises DataError: it was not trained into this folder."""
    path = models / WEIGHTS[name]
    if path.is_file():
        return TrainedModel("recipe", name, name, models, (path,))
    raise DataError(f"No trained {name} model in {from_here(models)}", run=f"seatrial run {name}")


def of_file(path: Path, verb: Verb) -> TrainedModel:
    """Return a model's file. Raises DataError: it does not exist. UsageError: the command reads no such file."""
    if not path.is_file():
        raise DataError(f"File not found: {from_here(path)}", run=f"ls {as_typed(path.absolute().parent)}")
    if path.suffix.lower() in _KERAS or (path.suffix.lower() == ".onnx" and verb is EXPORT):
        what = "an ONNX file already" if path.suffix.lower() == ".onnx" else "a model of Keras: let Keras export ONNX"
        onnx = path.with_suffix(".onnx")
        raise UsageError(f"{from_here(path)} is {what}, and cannot be {verb.done}", run=SERVE.of(onnx))
    _check_suffix(path, verb)
    path = path.absolute()
    if path.parts[-2:] == ("spam", "model.safetensors"):  # its network is described by the files next to it
        return TrainedModel("recipe", "spam", "spam", path.parent.parent, (path,))
    external = path.with_name(f"{path.name}.data")  # ONNX keeps weights above 2 GB there
    files = (path, external) if path.suffix == ".onnx" and external.is_file() else (path,)
    stem = path.stem.removesuffix(".pth").removesuffix(".pt")  # of model_best.pth.tar
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip(".-") or "model"
    return TrainedModel("file", path.name, name[:63], path.parent, files)


def _check_suffix(path: Path, verb: Verb) -> None:
    if path.suffix.lower() in _PICKLES:
        message = f"{from_here(path)} is a pickle: loading one can run any code of its author, so it is refused"
        cause = "safetensors, .pt2, and a state dict of tensors alone can be loaded"
        run = "python -c 'torch.save(model.state_dict(), \"model.pth\")'   # in the training script"
        raise UsageError(message, cause=cause, run=run)
    if path.name.lower().endswith(verb.suffixes):
        return
    if verb is SERVE and path.name.lower().endswith(_CHECKPOINTS):
        message = f"{from_here(path)} holds weights without their network, as a pickle, which no server opens"
        run = f"seatrial export {as_typed(path)} --to pt2 --model MODULE:FUNCTION"
        raise UsageError(message, cause=_FACTORY, run=run)
    message = f"{from_here(path)} is not a model that can be {verb.done}: expected {', '.join(verb.suffixes)}"
    raise UsageError(message, run=verb.example)


def is_model(name: str, verb: Verb) -> bool:
    """Return whether a file of this name is a model's."""
    suffixes = tuple(suffix for suffix in verb.suffixes if suffix not in verb.vague)
    return name.lower().endswith(suffixes) and not name.endswith(_BESIDE)


def check_model_file(model: TrainedModel, verb: Verb, *, with_network: bool = False) -> None:
    """Check a model's file. Raises DataError: truncated. UsageError: a pickle, or weights without ``with_network``."""
    if model.kind != "file":
        return
    path = model.files[0]
    suffix = path.suffix.lower()
    with os_errors(DataError, f"{from_here(path)} cannot be read", f"ls -l {as_typed(path)}"):
        whole = _whole_safetensors(path) if suffix == ".safetensors" else suffix == ".onnx" or _whole_zip(path)
        pickled = suffix not in (".safetensors", ".onnx") and whole and _is_pickle(path)
    if not whole:
        message = f"{from_here(path)} is truncated, or no {suffix} file"
        cause = f"it has {path.stat().st_size} bytes"
        raise DataError(message, cause=cause, run=f"ls -l {as_typed(path)}   # copy it again, or save it again")
    if not with_network and (pickled or model.is_weights_alone):
        what, so, to = "holds weights without their network", "it cannot be exported alone", "onnx"
        if verb is SERVE:
            what = "is a pickle, which can run code of its author" if pickled else what
            so, to = "no server opens it", "pt2"
        run = f"seatrial export {as_typed(path)} --to {to} --model MODULE:FUNCTION"
        raise UsageError(f"{from_here(path)} {what}, so {so}", cause=_FACTORY, run=run)


def _whole_safetensors(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(size - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            return False
        try:
            header = json.loads(file.read(length))
            ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
            return size == _LENGTH_BYTES + length + max(ends, default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            return False


def _whole_zip(path: Path) -> bool:
    with ArchiveFile(path) as file:
        return zipfile.is_zipfile(file) or (file.seek(0) == 0 and file.read(1) == b"\x80")


@fallback(False, on=(zipfile.BadZipFile, ValueError, NotImplementedError))  # names of other bytes, a later version
def _is_pickle(path: Path) -> bool:
    """Return True for what torch.save wrote."""
    if not zipfile.is_zipfile(path):
        return True
    with ArchiveFile(path) as file, zipfile.ZipFile(file) as archive:
        return any(name.rpartition("/")[2] == "data.pkl" for name in archive.namelist())


# -- which model a reference names


def find_model(word: str, models: Path, store: RunStore, verb: Verb) -> TrainedModel:
    """Find a file, a recipe with a trained model in ``models``, or a run.

    Raises DataError if the recipe was not trained or the file does not exist, UsageError if it is none of these, or a
    run that failed, made no model, or several.
    """
    if (script := re.fullmatch(r"(.+\.py)(:\w+)?", word)) is not None:
        then = " --publish 8000:8000" if verb is SERVE else "   # then: seatrial export last"
        message = f"{word} is a script, not a model's file"
        cause = "a custom server is started as a script" if verb is SERVE else "its run saves the model"
        raise UsageError(message, cause=cause, run=f"seatrial run {as_typed(Path(script[1]))}{then}")
    path = Path(word)
    if path.name.lower().endswith(FILES) or path.is_file():
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
    """Return the model that a run has saved. Raises UsageError: it has not ended, failed, or made none, or several."""
    plan, shown = run.plan(), f"Run {run.id}"
    if plan.job.serve is not None:
        raise UsageError(f"{shown} is a server itself", run=verb.of(plan.job.serve.typed.partition(" ")[0]))
    if not plan.on_this_host:
        message = f"{shown} saved its model on the cluster's volume"
        raise UsageError(message, run=f"seatrial runs cp {run.id}:FILE ./models; {verb.of('./models/FILE')}")
    if not run.ended:
        raise UsageError(f"{shown} has not ended", run=f"seatrial runs logs -f {run.id}")
    from seatrial.receipt.model import load  # 35 ms, only for words that name a run

    receipt = load(run.folder)
    if receipt.exit_code not in (0, 4):  # 4: it ended well, and a criterion was unmet
        message = f"{shown} failed, so it has no trained model: {receipt.exit_cause.words}"
        raise UsageError(message, run=f"seatrial runs show {run.id}")
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
        # A later training may have replaced it: recipes save under one name.
        if any(path.stat().st_mtime > receipt.header.judged_at + _SLACK_S for path in found.files):
            since = f"{from_here(found.files[0])} was written after run {run.id} had ended"
            found = replace(found, warnings=(f"{since}: it is {verb.done} as it is now",))
        return replace(found, of_run=run.id)
    folders = [folder, project] if plan.job.models else [project]
    return replace(of_file(_saved_by(run, receipt, folders, verb), verb), of_run=run.id)


def _nothing(word: str, models: Path, verb: Verb, error: SeatrialError) -> SeatrialError:
    if word in WEIGHTS:
        try:
            of_recipe(word, models)
        except DataError as untrained:
            return untrained
    if word and Path(word).is_dir():
        return _folder_error(Path(word), verb)
    there = next((name for name in WEIGHTS if (models / WEIGHTS[name]).is_file()), None)
    message = f'No run, recipe or file "{word}" in this project'
    return UsageError(message, cause=f"recipes: {', '.join(WEIGHTS)}", run=verb.of(there) if there else error.run)


def _saved_by(run: Run, receipt: Receipt, folders: Sequence[Path], verb: Verb) -> Path:
    """Find the model in these folders that was written during the run; links are not followed."""
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
    preferred = (saved, *([path for path in saved if path.suffix.lower() in group] for group in verb.preferred))
    if one := next((few[0] for few in preferred if len(few) == 1), None):
        return one
    if not saved:
        message = f"Run {run.id} saved no model that is still there: looked for {', '.join(verb.suffixes)}"
        raise UsageError(message, run=f"seatrial runs show {run.id}")
    names = ", ".join(from_here(path) for path in saved[:8])
    raise UsageError(f"Run {run.id} saved {len(saved)} models: {names}", run=verb.of(saved[0]))


def _folder_error(folder: Path, verb: Verb) -> SeatrialError:
    """Return that a folder is not a model's file, with a model in it if there is one."""
    shown, typed = from_here(folder), as_typed(folder)
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return DataError(f"The folder {shown} cannot be read: {error.strerror}", run=f"ls -l {typed}")
    if models := [name for name in names if is_model(name, verb)]:
        message = f"The folder {shown} is not a model itself; in it are {', '.join(models[:8])}"
        return UsageError(message, cause=_FACTORY, run=verb.of(folder / models[0]))
    cause = "models of other libraries: docs/exporting.md, Which files are opened"
    return UsageError(f"The folder {shown} has no model in it that can be {verb.done}", cause=cause, run=f"ls {typed}")
