"""The formats: how each is written and loaded back, and the comparison of its outputs with the original's."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.models.model import Original
from seatrial.train.errors import TrainError
from seatrial.train.saving.model_files import read_tensors

#: Operator set of the exporter that traces: ONNX Runtime runs it from 1.12 on (its "ONNX Runtime compatibility" table),
#: and torch writes it from 2.1 on (constant folding, layer normalisation as one node).
OPSET = 17
#: The exporter for .pt2 files writes this one without converting (torch 2.6 to 2.13, torch.onnx.export's text).
PROGRAM_OPSET = 18
#: (inputs) → outputs, in the order of Original.outputs.
Run = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
#: Allowed by default, of what ``scaled`` measures. Sources: fp32 and fp64, sums of some thousand terms in another
#: order (a thousand times the type's epsilon, 1.2e-7 and 2.2e-16, is 1e-4 and less than 1e-8); fp16 and bf16, ten times
#: their epsilon (9.8e-4, 7.8e-3): each product is rounded to it.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
#: Size of an output that is zero everywhere: the smallest normal fp32, 1.2e-38.
LEAST = 1.2e-38


def write_onnx(original: Original, path: Path) -> None:
    """Write with the exporter that traces; a .pt2 file's program with the other one, which reads only programs.

    Tracing was chosen for networks: 0.4 s for digits and 1 s for a small BERT, where the other takes 11 and 27 s (torch
    2.13, two cores), needs onnxscript besides, and gives the same outputs.
    """
    _quiet()
    named: dict[str, Any] = {"input_names": [*original.inputs], "output_names": [*original.outputs]}
    if original.program is not None:
        named |= {"dynamo": True, "opset_version": PROGRAM_OPSET, "external_data": False, "verbose": False}
        torch.onnx.export(original.program, (), str(path), **named)
        return
    axes = {name: dict(dimensions) for name, dimensions in original.dynamic.items()}
    axes |= {name: {0: "batch"} for name in original.outputs} if original.fixed_batch is None else {}
    named |= {"dynamo": False, "dynamic_axes": axes, "opset_version": OPSET}
    torch.onnx.export(original.module, original.rows(max(2, len(original.examples))), str(path), **named)


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


class DisagreesError(TrainError):
    """The exported model does not compute what the original computes."""


class Difference(NamedTuple):
    """The result of the comparison.

    Attributes:
        scaled: largest |a - b| / max(|b|, r), b the original's and r its root mean square over the output, so that
            probabilities of many classes are measured as logits are. absolute: largest |a - b|.
        batches: sizes compared.
    """

    scaled: float
    absolute: float
    batches: tuple[int, ...]


@torch.no_grad()
def compare(original: Original, before: Run, after: Run) -> Difference:
    """Compare at batch 1, with all inputs, and with a larger batch; and with the outputs saved after training.

    Raises DisagreesError: other shapes, other types, or other places that are not finite.
    """
    scaled = absolute = 0.0
    count = len(original.examples)
    sizes = (original.fixed_batch,) if original.fixed_batch else (1, count, 2 * count + 5)
    for size in sizes:
        rows = original.rows(size)
        got, wanted = after(rows), before(rows)
        pairs = [*_pairs(original, got, wanted, size)]
        if size == count and original.examples.outputs:
            pairs += [*_pairs(original, got, tuple(original.examples.outputs.values()), size)]
        for mine, theirs in pairs:
            distance = (mine - theirs).abs()
            absolute = max(absolute, float(distance.max()))
            size_of_output = max(float(theirs.square().mean().sqrt()), LEAST)
            scaled = max(scaled, float((distance / theirs.abs().clamp(min=size_of_output)).max()))
    return Difference(scaled, absolute, tuple(sizes))


def _pairs(
    original: Original, got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each output of both in double precision, without numbers that are not finite at the same places."""
    if len(got) != len(wanted):
        raise DisagreesError(f"the exported model gives {len(got)} outputs, the original {len(wanted)}")
    for name, mine, theirs in zip(original.outputs, got, wanted, strict=False):
        if mine.shape != theirs.shape:
            raise DisagreesError(
                f"with {rows} rows the exported {name} is {tuple(mine.shape)}, the original's {tuple(theirs.shape)}",
                fix="a network that does not fix its batch size: look for sizes that are taken from the first batch",
            )
        mine, theirs = mine.double(), theirs.double()
        same = (mine == theirs) | (mine.isnan() & theirs.isnan())
        if not bool((same | (mine.isfinite() & theirs.isfinite())).all()):
            problem = f"with {rows} rows {name} is not finite in one of the two models, and finite in the other"
            raise DisagreesError(problem)
        finite = torch.where(same, torch.zeros_like(mine), mine), torch.where(same, torch.zeros_like(theirs), theirs)
        if mine.numel():
            yield finite
