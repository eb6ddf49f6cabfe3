"""A trained model: of a recipe, a file or a class, and whether the command can open it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seatrial.errors import DataError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.system.typed_path import as_typed, from_here

#: Recipe → the weights that it saves, below the models folder.
WEIGHTS = {name: recipe.weights for name, recipe in RECIPES.items() if recipe.weights is not None}

#: Files that carry their network. Weights need theirs beside them.
PROGRAMS = (".pt2", ".onnx")

#: Inputs and outputs that recipes keep beside a model's weights. Source: train/saving/examples.py.
_BESIDE = ".examples.safetensors"
_PICKLES = (".pkl", ".pickle", ".joblib")
_TORCHSCRIPT = (".torchscript", ".ts")

#: Suffixes of what torch.save writes. ``model_best.pth.tar`` is usual, too.
_CHECKPOINTS = (".pth", ".pt", ".ckpt", ".th", ".pth.tar", ".pt.tar", ".bin")


@dataclass(frozen=True)
class Verb:
    """What a command takes.

    Attributes:
        name: as typed. example: of a whole command.
        done: to a model, in the words of a warning.
        suffixes: of the files of models that it reads. vague: of them those that are not looked for among what a run
            has saved, since data has them, too.
        preferred: of several files that a run saved the one of the first of these groups that one file alone is in.
    """

    name: str
    example: str
    done: str
    suffixes: tuple[str, ...]
    vague: tuple[str, ...]
    preferred: tuple[tuple[str, ...], ...]

    def of(self, word: object) -> str:
        """``seatrial export models/best.pt2 --to onnx``."""
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
    "serve",
    "seatrial serve last",
    "served",
    (".pt2", ".onnx", ".safetensors"),
    (),
    (PROGRAMS, (".safetensors",)),
)

#: What the name of a model's file ends in, whether or not a command reads it; other words name runs.
FILES = tuple(dict.fromkeys((*EXPORT.suffixes, *SERVE.suffixes, *_PICKLES, *_TORCHSCRIPT)))


@dataclass(frozen=True)
class TrainedModel:
    """A model to export or to serve.

    Attributes:
        kind: ``code`` is a class of the user's, which can be served alone.
        model: the recipe's name; the file, below ``folder``; ``file.py:Class``, below the project.
        name: of the exported file, and in the server's addresses.
        folder: what is mounted at /models; None for a class, which loads what it likes.
        files: that the model is loaded from. of_run: the run that made it. warnings: what the user should know.
    """

    kind: Literal["recipe", "file", "code"]
    model: str
    name: str
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    of_run: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_weights_alone(self) -> bool:
        """By its name: a state dict without its network. A recipe's own file has examples beside, which name it."""
        if self.kind != "file" or self.folder is None:
            return False
        path = self.folder / self.model
        return (
            path.name.lower().endswith((".safetensors", *_CHECKPOINTS))
            and not path.with_name(f"{path.stem}{_BESIDE}").is_file()
        )


def of_recipe(name: str, models: Path) -> TrainedModel:
    """Raises DataError: it was not trained into this folder."""
    path = models / WEIGHTS[name]
    if path.is_file():
        return TrainedModel("recipe", name, name, models, (path,))
    older = path.with_suffix(".pth")
    cause = f"{older.name} there is a pickle of an older version, which is not read" if older.is_file() else None
    raise DataError(f"There is no trained {name} model in {from_here(models)}", cause=cause, run=f"seatrial run {name}")


def of_file(path: Path, verb: Verb) -> TrainedModel:
    """A model's file. Raises DataError: it is not there. UsageError: the command reads no such file."""
    if not path.is_file():
        raise DataError(f"There is no file {from_here(path)}", run=f"ls {as_typed(path.absolute().parent)}")
    _check_suffix(path, verb)
    path = path.absolute()
    if path.parts[-2:] == ("spam", "model.safetensors"):  # its network is described by the files beside it
        return TrainedModel("recipe", "spam", "spam", path.parent.parent, (path,))
    beside = path.with_name(f"{path.name}.data")  # ONNX keeps weights above 2 GB there
    files = (path, beside) if path.suffix == ".onnx" and beside.is_file() else (path,)
    stem = path.stem.removesuffix(".pth").removesuffix(".pt")  # of model_best.pth.tar
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip(".-") or "model"
    return TrainedModel("file", path.name, name[:63], path.parent, files)


def _check_suffix(path: Path, verb: Verb) -> None:
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise UsageError(
            f"{from_here(path)} is a pickle: loading one can run any code of whoever wrote it, so it is refused",
            cause="safetensors, .pt2, and a state dict of tensors alone can be loaded",
            run="python -c 'torch.save(model.state_dict(), \"model.pth\")'   # in the training script",
        )
    if suffix in _TORCHSCRIPT:
        raise torchscript_error(path)
    if path.name.lower().endswith(verb.suffixes):
        return
    if verb is SERVE and path.name.lower().endswith(_CHECKPOINTS):
        raise UsageError(
            f"{from_here(path)} holds weights without their network, as a pickle, which no server opens",
            cause="a function of yours makes the network: net:make_model is make_model() in net.py",
            run=f"seatrial export {as_typed(path)} --to pt2 --model net:make_model",
        )
    code = suffix == ".py" and verb is SERVE
    raise UsageError(
        f"{from_here(path)} is no model that can be {verb.done}: expected {', '.join(verb.suffixes)}",
        cause="a class of your own is served as file.py:Class" if code else None,
        run=f"seatrial serve {as_typed(path)}:Model" if code else verb.example,
    )


def torchscript_error(path: Path) -> UsageError:
    """Return the refusal of a TorchScript file, which older versions read."""
    return UsageError(
        f"{from_here(path)} is TorchScript, which is not read any more",
        cause="torch has deprecated it; a .pt2 file also carries its network",
        run="seatrial export WEIGHTS --to pt2 --model net:make_model   # make_model() in net.py makes the network",
    )


def is_model(name: str, verb: Verb) -> bool:
    """Whether a file of this name is a model's."""
    suffixes = tuple(suffix for suffix in verb.suffixes if suffix not in verb.vague)
    return name.lower().endswith(suffixes) and not name.endswith(_BESIDE)


def the_one(files: Sequence[Path], verb: Verb) -> Path | None:
    """Of several files the one that tells most of its model; None where that is none, or several."""
    for few in (files, *([path for path in files if path.suffix.lower() in group] for group in verb.preferred)):
        if len(few) == 1:
            return few[0]
    return None


#: Of safetensors: 8 bytes with the header's length, the header in JSON, the tensors. Source: its format page.
_LENGTH_BYTES, _MOST_HEADER_BYTES = 8, 100_000_000


def check_model_file(model: TrainedModel, verb: Verb, *, with_network: bool = False) -> None:
    """Raises DataError: truncated. UsageError: a pickle, or weights without their network.

    Args:
        with_network: the function that makes the network of weights is named beside.
    """
    if model.kind != "file":
        return
    path = model.files[0]
    suffix = path.suffix.lower()
    try:
        whole = _whole_safetensors(path) if suffix == ".safetensors" else suffix == ".onnx" or _whole_zip(path)
        pickled = suffix not in (".safetensors", ".onnx") and whole and _is_pickle(path)
    except OSError as error:
        raise DataError(f"{from_here(path)} cannot be read: {error.strerror}", run=f"ls -l {as_typed(path)}") from error
    if not whole:
        raise DataError(
            f"{from_here(path)} is truncated, or no {suffix} file",
            cause=f"it has {path.stat().st_size} bytes",
            run=f"ls -l {as_typed(path)}   # copy it again, or save it again",
        )
    if not with_network and (pickled or model.is_weights_alone):
        what = "holds weights without their network"
        if pickled and verb is SERVE:
            what = "is a pickle, which can run code of whoever wrote it"
        raise UsageError(
            f"{from_here(path)} {what}, so {'no server opens it' if verb is SERVE else 'it cannot be exported alone'}",
            cause="a function of yours makes the network: net:make_model is make_model() in net.py",
            run=f"seatrial export {as_typed(path)} --to {'pt2' if verb is SERVE else 'onnx'} --model net:make_model",
        )


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
    with path.open("rb") as file:
        return zipfile.is_zipfile(file) or (file.seek(0) == 0 and file.read(1) == b"\x80")


def _is_pickle(path: Path) -> bool:
    """Return True for what torch.save wrote. Raises UsageError for TorchScript."""
    if not zipfile.is_zipfile(path):
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile:
        return False
    if "constants.pkl" in names and "data.pkl" in names:
        raise torchscript_error(path)
    return "data.pkl" in names
