"""Read and write the card of an exported model, NAME.json: what a server must know and the file lacks.

Written by export, read by serve; both may import train. A plain file of JSON, so that any program can read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seatrial.train.errors import ModelFileError
from seatrial.train.saving.atomic import write_text

#: NAME.onnx has its card in NAME + this.
SUFFIX = ".json"
#: Changes when an older reader could no longer make sense of it.
VERSION = 1


@dataclass(frozen=True)
class TensorCard:
    """An input or output.

    Attributes:
        datatype: of the Open Inference Protocol, version 2, "Tensor Data Types".
        shape: with the batch in front; -1 where any size is taken.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelCard:
    """The content of a card.

    Attributes:
        format: ``onnx``, ``pt2`` or ``safetensors``. file: its name; sha256: of its bytes.
        kind: what a request holds: ``image``, ``text`` or ``tensors``.
        recipe: which trained it; "" for a model of the user's.
        inputs, outputs: in the order in which the model takes and gives them.
        labels: of the classes, in the order of the last output's last dimension; empty where there are none.
        scale, shift: one number a channel; a byte b of an image becomes b * scale + shift. Empty for other kinds.
        weights: ``train.saving.model_files.weights_digest`` of the original.
        examples: how many inputs it was compared on. real: they come from a test set; else they were drawn at random.
        batches: the batch sizes that were compared.
        largest_difference: of any output from the original's, divided by the original's size where that is above 1.
        largest_absolute_difference: the same, undivided. tolerance: that was allowed of the first.
        opset: of ONNX; 0 for other formats. torch: the version that exported it.
    """

    format: str
    file: str
    sha256: str
    kind: str
    recipe: str
    inputs: tuple[TensorCard, ...]
    outputs: tuple[TensorCard, ...]
    labels: tuple[str, ...]
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    weights: str
    examples: int
    real: bool
    batches: tuple[int, ...]
    largest_difference: float
    largest_absolute_difference: float
    tolerance: float
    opset: int = 0
    torch: str = ""
    version: int = VERSION


def card_path(model: Path) -> Path:
    """Return the path of an exported model's card."""
    return model.with_suffix(SUFFIX)


def save_card(card: ModelCard, path: Path) -> None:
    """Write it, whole or not at all. Raises DiskFullError."""
    write_text(path, json.dumps(asdict(card), indent=1) + "\n")


def read_card(path: Path) -> ModelCard:
    """Read a card. Raises ModelFileError: it is not there, or is none."""
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        if fields["version"] != VERSION:
            raise ModelFileError(f"{path} was written by another version of seatrial", fix="export the model again")
        for name in ("inputs", "outputs"):
            fields[name] = tuple(
                TensorCard(str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
                for each in fields[name]
            )
        for name in ("labels", "scale", "shift", "batches"):
            fields[name] = tuple(fields[name])
        return ModelCard(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} is not a card of an exported model", fix="export the model again") from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}", fix="export the model again") from error
