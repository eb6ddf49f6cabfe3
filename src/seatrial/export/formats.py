"""The formats: how each is written, and how it is loaded back to be compared."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.models.model import Original
from seatrial.train.saving.model_files import read_tensors

#: Of the exporter that traces; ONNX Runtime runs it from 1.12 on (its "ONNX Runtime compatibility" table), and torch
#: writes it from 2.1 (constant folding, layer normalisation as one node).
OPSET = 17
#: Of the exporter for .pt2 files: what it writes without converting (torch 2.6 to 2.13, torch.onnx.export's text).
PROGRAM_OPSET = 18

#: (inputs) → outputs, in the order of Original.outputs.
Run = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


def write_onnx(original: Original, path: Path) -> None:
    """Write with the exporter that traces; a .pt2 file's program with the other one, which reads only programs.

    Tracing was chosen for networks: 0.4 s for digits and 1 s for a small BERT, where the other takes 11 and 27 s (torch
    2.13, two cores), needs onnxscript besides, and gives the same outputs.
    """
    _quiet()
    names, outputs = [*original.inputs], [*original.outputs]
    if original.program is not None:
        torch.onnx.export(
            original.program,
            (),
            str(path),
            dynamo=True,
            input_names=names,
            output_names=outputs,
            opset_version=PROGRAM_OPSET,
            external_data=False,
            verbose=False,
        )
        return
    axes = {name: dict(dimensions) for name, dimensions in original.dynamic.items()}
    axes |= {name: {0: "batch"} for name in outputs} if original.fixed_batch is None else {}
    torch.onnx.export(
        original.module,
        original.rows(max(2, len(original.examples))),
        str(path),
        dynamo=False,
        input_names=names,
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=OPSET,
    )


def load_onnx(path: Path, original: Original) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        fed = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return tuple(torch.from_numpy(each) for each in session.run(None, fed))

    return run


def write_pt2(original: Original, path: Path) -> None:
    _quiet()
    if original.program is not None:
        torch.export.save(original.program, path)
        return
    dims = {"batch": torch.export.Dim("batch"), "length": torch.export.Dim("length", max=max(2, original.longest))}
    shapes = tuple({place: dims[name] for place, name in each.items()} for each in original.dynamic.values())
    rows = original.rows(max(2, len(original.examples)))
    given = (shapes,) if _takes_any_number(original) else shapes
    program = torch.export.export(original.module, rows, dynamic_shapes=given, strict=False)
    torch.export.save(program, path)


def load_pt2(path: Path, original: Original) -> Run:
    module = torch.export.load(path).module()
    return lambda inputs: _tuple(module(*inputs))


def write_safetensors(original: Original, path: Path) -> None:
    from safetensors.torch import save_file

    # Tensors that share memory are refused by the format: each is written on its own.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in original.state.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def load_safetensors(path: Path, original: Original) -> Run:
    """Put the weights into a copy of the network."""
    tensors, _ = read_tensors(path)
    module: Any = copy.deepcopy(original.module)
    own = module.state_dict()
    prefix = next((name for name in ("", "model.", "inner.") if {f"{name}{key}" for key in tensors} == own.keys()), "")
    module.load_state_dict({f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    return lambda inputs: _tuple(module(*inputs))


#: The formats of ``--to``, which are their files' suffixes, too: how the original is written to a path, and how it is
#: loaded again; the original gives the network that weights need.
FORMATS: dict[str, tuple[Callable[[Original, Path], None], Callable[[Path, Original], Run]]] = {
    "onnx": (write_onnx, load_onnx),
    "pt2": (write_pt2, load_pt2),
    "safetensors": (write_safetensors, load_safetensors),
}


def run_original(original: Original) -> Run:
    """Return the original in the form that loaded files have."""
    return lambda inputs: _tuple(original.module(*inputs))


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _takes_any_number(original: Original) -> bool:
    """Return True if its forward takes ``*inputs``, for which torch.export wants the shapes one tuple deeper."""
    parameters = inspect.signature(original.module.forward).parameters.values()
    return any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)


def _quiet() -> None:
    """Silence the exporters' warnings; their files are compared."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
