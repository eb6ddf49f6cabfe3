"""Folders of models, and files of other programs': what they are, and the command that makes a file to go on from."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from seatrial.errors import DataError, SeatrialError, UsageError
from seatrial.runs.trained_model import EXPORT, SERVE, Verb, is_model
from seatrial.system.typed_path import as_typed, from_here

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
