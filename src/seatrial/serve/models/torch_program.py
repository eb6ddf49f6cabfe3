""".pt2 files: programs, run in the container under its contract."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seatrial.serve.errors import ServeError
from seatrial.serve.models.batches import Eager, Graphed
from seatrial.serve.models.datatypes import NUMPY
from seatrial.serve.models.sidecar_files import SidecarFiles
from seatrial.serve.models.tensor_model import TensorModel
from seatrial.serve.served_model import ServedModel, TensorSpec
from seatrial.train.errors import first_line

#: torch's type → the protocol's name.
DATATYPES = {torch.from_numpy(np.zeros(0, kind)).dtype: name for name, kind in NUMPY.items()}


def open_program(path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """An image model where the examples beside it say how images are normalised; else its bare tensors.

    Raises ServeError: no such file, truncated, or a program that cannot be served.
    """
    beside = SidecarFiles.of(path)
    program, inputs, fixed, keys = _exported(path, device)
    if fixed is None and (images := beside.image_model(program, "program")) is not None:
        return images(name, device, max_batch)

    def forward(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _flat(program(*tensors))

    told = beside.specs() or ()  # a program of *inputs calls them inputs_0, inputs_1 …
    if [each.datatype for each in told] == [each.datatype for each in inputs]:
        inputs = tuple(replace(mine, name=each.name) for mine, each in zip(inputs, told, strict=True))
    known = beside.outputs() or keys or ("output",)

    def names(count: int) -> Sequence[str]:
        return known if len(known) == count else [f"output{number}" for number in range(count)]

    return TensorModel(
        name,
        inputs,
        names,
        _ways(forward, inputs, device, fixed or max_batch, fixed),
        max_batch=max_batch,
        fixed=fixed,
        examples=beside.rows([spec.name for spec in inputs], known),
    )


def _ways(forward: Any, inputs: tuple[TensorSpec, ...], device: torch.device, most: int, fixed: int | None) -> Any:
    """A graph for each size where every side is known and the program can be captured."""
    if device.type != "cuda" or any(side < 0 for spec in inputs for side in spec.shape):
        return Eager(forward, device)
    rows = [(spec.shape, torch.from_numpy(np.zeros(0, NUMPY[spec.datatype])).dtype) for spec in inputs]
    graphed = Graphed(forward, rows, most, device, only=fixed)
    try:
        graphed.prepare()
    except RuntimeError as error:
        sys.stderr.write(f"the program cannot be captured in a CUDA graph and runs without: {first_line(error)}\n")
        return Eager(forward, device)
    return graphed


def _exported(
    path: Path, device: torch.device
) -> tuple[nn.Module, tuple[TensorSpec, ...], int | None, tuple[str, ...]]:
    """(program, its inputs, the one batch that it takes, the keys of a mapping of outputs)."""
    try:
        program = torch.export.load(path)
    except Exception as error:  # whatever a damaged archive leads to: zip, JSON and C++ errors
        raise ServeError(
            f"{path.name} is truncated, damaged or no .pt2 that torch {torch.__version__} reads",
            "export it again with this torch: seatrial export RUN --to pt2",
        ) from error
    if device.type == "cuda":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    named = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs, batches = [], set()
    for name in program.graph_signature.user_inputs:
        value = named[name].meta.get("val") if isinstance(name, str) and name in named else None
        if not isinstance(value, Tensor) or not value.ndim or value.dtype not in DATATYPES:
            raise ServeError(f"the input {name} of {path.name} is no tensor with a batch, which is all that is served")
        sides = tuple(side if isinstance(side, int) else -1 for side in value.shape)
        specs.append(TensorSpec(name, DATATYPES[value.dtype], sides[1:]))
        batches.add(sides[0])
    if len(batches) != 1:
        raise ServeError(f"the inputs of {path.name} have different first dimensions: the first has to be the batch")
    fixed = None if (batch := batches.pop()) < 0 else batch
    returned = program.call_spec.out_spec
    keys = tuple(map(str, returned.context)) if returned is not None and returned.type is dict else ()
    return program.module(), tuple(specs), fixed, keys


def _flat(outputs: Any) -> tuple[Tensor, ...]:
    """Tensors of a tuple, list or mapping, in their order."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    values: Sequence[Any] = [*outputs.values()] if isinstance(outputs, dict) else list(outputs)
    return tuple(tensor for value in values for tensor in _flat(value))
