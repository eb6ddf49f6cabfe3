"""What can be told of a model's file before an image is built: that it cannot be served, or exported."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from seatrial.errors import DataError, UsageError
from seatrial.runs.trained_model import SERVE, TrainedModel, Verb, torchscript_error
from seatrial.system.typed_path import as_typed, from_here

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
