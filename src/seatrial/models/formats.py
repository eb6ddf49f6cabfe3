"""Name the types of numbers in model files. numpy alone: fronts of the server import it."""

from __future__ import annotations

import numpy as np

#: Name in the Open Inference Protocol → numpy's type.
DATATYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
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
