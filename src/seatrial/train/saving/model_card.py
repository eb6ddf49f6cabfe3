"""Read and write the card of an exported model, NAME.json: what a server must know and the file lacks.

Written by export, read by serve; both may import train. A plain file of JSON, so that any program can read it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.train.errors import ModelFileError
from seatrial.train.saving.atomic import write_text

#: NAME.onnx has its card in NAME + this.
SUFFIX = ".json"
#: Changes when an older reader could no longer make sense of it.
VERSION = 1
#: Name in the Open Inference Protocol → numpy's type.
DATATYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    **{f"{word}{bits}": getattr(np, f"{word.lower()}{bits}") for word in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
}
#: The other way round.
NAMES = {np.dtype(kind): name for name, kind in DATATYPES.items()}


def datatype(dtype: object) -> str | None:
    """Return the protocol's name of ``torch.float32`` or ONNX's ``tensor(float)``; None if it has none."""
    word = str(dtype).removeprefix("torch.").removeprefix("tensor(").removesuffix(")")
    word = {"float": "float32", "double": "float64"}.get(word, word)
    if word == "bfloat16":
        return "BF16"
    return next((name for kind, name in NAMES.items() if kind.name == word), None)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of the model.

    Attributes:
        datatype: of the Open Inference Protocol: FP32, INT64, UINT8, BYTES …
        shape: with the batch in front on a card, of one row in the server; -1 where the length varies.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        """Return True if an array of this shape can be the input."""
        same = zip(self.shape, shape, strict=False)
        return len(shape) == len(self.shape) and all(size in (-1, have) for size, have in same)


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
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
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
                TensorSpec(str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
                for each in fields[name]
            )
        for name in ("labels", "scale", "shift", "batches"):
            fields[name] = tuple(fields[name])
        return ModelCard(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} is not a card of an exported model", fix="export the model again") from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}", fix="export the model again") from error
