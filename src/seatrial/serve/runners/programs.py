"""Open and run .pt2 and ONNX files, with the card and the examples that export saved with them.

ONNX files run by onnxruntime: on the GPU when the server has one, and never silently elsewhere.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.models.open import load_program
from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.readers.others import TensorReader
from seatrial.serve.runners.graphs import EagerRunner, GraphedRunner, batch_sizes
from seatrial.serve.runners.images import ImageModel, Mode
from seatrial.serve.served_model import Answer, Description, Reader, Row, ServedModel, WarmUp, compare
from seatrial.train.errors import first_line
from seatrial.train.saving.examples import examples_of
from seatrial.train.saving.model_card import DATATYPES, NAMES, TensorSpec, card_path, datatype, read_card

CUDA = "CUDAExecutionProvider"
#: Rows of each input → [N, …] of each output.
Runs = Callable[[Sequence[Sequence[np.ndarray]]], list[np.ndarray]]
#: A side of an input that has no fixed length is as long as this in the warm-up.
SOME_LENGTH = 8
#: Largest difference from the saved outputs.
TOLERANCE = 1e-2


class TensorModel:
    """Rows of one shape are one batch; for a program with a fixed batch it is filled up.

    ``outputs``: names, if there are as many; else they are numbered. ``fixed``: the only batch size that the program
    takes; None: any. ``examples``: rows, and the trained model's outputs for them: an array for each output.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[TensorSpec, ...],
        outputs: Sequence[str],
        run: Runs,
        *,
        max_batch: int,
        fixed: int | None = None,
        examples: tuple[list[Row], list[np.ndarray]] | None = None,
    ) -> None:
        self._run, self._fixed, self._examples = run, fixed, examples
        self.max_batch = min(max_batch, fixed) if fixed else max_batch
        sides = [tuple(SOME_LENGTH if side < 0 else side for side in spec.shape) for spec in inputs]
        zeros = tuple(np.zeros(shape, DATATYPES[spec.datatype]) for spec, shape in zip(inputs, sides, strict=True))
        self._row = examples[0][0] if examples else zeros
        self.description = Description(name, "tensors", inputs, self._specs(inputs, outputs))
        self.reader: Reader = TensorReader(self.description)

    def warm_up(self) -> WarmUp:
        """Run every batch size once; compare with the saved outputs."""
        began, difference = time.perf_counter(), 0.0
        rows, expected = self._examples or ([], [])
        parts = [self.predict(rows[at : at + self.max_batch]) for at in range(0, len(rows), self.max_batch)]
        answers = [answer for part in parts for answer in part]
        for number, want in enumerate(expected):
            got = np.stack([answer[number] for answer in answers])
            difference = max(difference, compare(got, want, TOLERANCE))
        for size in batch_sizes(self.max_batch):
            self.predict([self._row] * size)
        return WarmUp(len(rows), difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Return an array for each output, for each row."""
        for row in rows:
            for spec, array in zip(self.description.inputs, row, strict=True):
                if not spec.fits(array.shape) or array.dtype != DATATYPES[spec.datatype]:
                    have = list(array.shape)
                    raise BadInputError(f"The input {spec.name} has shape {have}, not {list(spec.shape)}.")
        answers: list[Answer] = [()] * len(rows)

        def shapes(number: int) -> tuple[tuple[int, ...], ...]:
            return tuple(array.shape for array in rows[number])

        for _, together in groupby(sorted(range(len(rows)), key=shapes), key=shapes):
            members = list(together)
            outputs = self._run_together([rows[number] for number in members])
            for place, number in enumerate(members):
                answers[number] = tuple(output[place] for output in outputs)
        return answers

    def _run_together(self, rows: list[Row]) -> list[np.ndarray]:
        filled = rows if self._fixed is None else rows + [rows[-1]] * (self._fixed - len(rows))
        outputs = self._run([list(column) for column in zip(*filled, strict=True)])
        for output in outputs:
            if output.ndim == 0 or len(output) != len(filled):
                given = f"the model gives an output of shape {output.shape} for a batch of {len(filled)}"
                fix = "export it with a batch as the first dimension of inputs and outputs"
                raise ServeError(f"{given}: its first dimension must be the batch", fix=fix)
        return outputs

    def _specs(self, inputs: tuple[TensorSpec, ...], names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """Determine the outputs by running one row."""
        try:
            arrays = self._run_together([self._row])
        except ServeError:
            raise
        except Exception as error:
            message = f"the model cannot be run on its own inputs: {first_line(error)}"
            raise ServeError(message, fix="export it again") from error
        if unknown := [array.dtype for array in arrays if array.dtype not in NAMES]:
            raise ServeError(f"the model gives outputs of type {unknown[0]}, which JSON has no numbers for")
        if len(names) != len(arrays):
            names = [f"output{number}" for number in range(len(arrays))]
        varies = any(side < 0 for spec in inputs for side in spec.shape)
        return tuple(
            TensorSpec(name, NAMES[array.dtype], (-1,) * (array.ndim - 1) if varies else array.shape[1:])
            for name, array in zip(names, arrays, strict=True)
        )


class SavedWith:
    """A model file's card and examples, each None if missing. Raises TrainError: damaged, or of another file."""

    def __init__(self, path: Path) -> None:
        card, self.examples = card_path(path), examples_of(path)
        self.card = read_card(card) if card.is_file() else None
        if self.card is None or self.card.file != path.name:
            return
        if self.card.sha256.removeprefix("sha256:") != hashlib.sha256(path.read_bytes()).hexdigest():
            message = f"{path.name} is not the file that {card.name} was written for: it was changed or cut short"
            raise ServeError(message, fix="export it again, or copy both files anew")

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of a row, as far as they are known."""
        if self.card is not None:
            known = [replace(each, shape=each.shape[1:]) for each in self.card.inputs]
            return tuple(spec for spec in known if spec.datatype in DATATYPES)
        inputs = {name: each.numpy() for name, each in (self.examples.inputs if self.examples else {}).items()}
        return tuple(TensorSpec(name, NAMES[each.dtype], each.shape[1:]) for name, each in inputs.items())

    def outputs(self) -> tuple[str, ...]:
        """Return the names of the outputs, in their order, as far as they are known."""
        if self.card is not None:
            return tuple(each.name for each in self.card.outputs)
        return tuple(self.examples.outputs) if self.examples is not None else ()

    def image_model(
        self, name: str, network: Callable[[Tensor], Tensor], device: torch.device, max_batch: int, mode: Mode
    ) -> ImageModel | None:
        """Return a model of images, if the examples hold their normalisation."""
        examples = self.examples
        if examples is None or examples.kind != "image" or examples.normalise is None:
            return None
        return ImageModel(name, network, examples, examples.labels, device, max_batch=max_batch, mode=mode)

    def rows(self, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[Row], list[np.ndarray]] | None:
        """Return example rows in the order of these inputs, and the outputs; by place where the names differ."""
        if self.examples is None or len(self.examples.inputs) != len(inputs):
            return None
        if len(self.examples.outputs) != len(outputs):
            return None
        given, found = self.examples.inputs, self.examples.outputs
        columns = [given[name] for name in inputs] if set(inputs) == set(given) else [*given.values()]
        expected = [found[name] for name in outputs] if set(outputs) == set(found) else [*found.values()]
        rows = [tuple(each.numpy() for each in row) for row in zip(*columns, strict=True)]
        return rows, [each.numpy() for each in expected]


def open_pt2(path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """Open a model of images if examples hold its normalisation, else of tensors. Raises TrainError if it cannot."""
    saved, program = SavedWith(path), load_program(path)
    if device.type == "cuda":
        from torch.export.passes import move_to_device_pass

        program = replace(program, exported=move_to_device_pass(program.exported, device))
    inputs, fixed = _specs(path, [(name, value.dtype, value.shape) for name, value in program.inputs.items()])
    module = program.exported.module()
    if fixed is None and (model := saved.image_model(name, module, device, max_batch, "program")) is not None:
        return model

    def forward(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _flat(module(*tensors))

    named = saved.inputs()  # a program of *inputs calls them inputs_0, inputs_1 …
    if [each.datatype for each in named] == [each.datatype for each in inputs]:
        inputs = tuple(replace(mine, name=each.name) for mine, each in zip(inputs, named, strict=True))
    returned = program.exported.call_spec.out_spec
    keys = tuple(map(str, returned.context)) if returned is not None and returned.type is dict else ()
    outputs = saved.outputs() or keys or ("output",)
    runner = _runner(forward, inputs, device, fixed or max_batch, fixed)
    examples = saved.rows([spec.name for spec in inputs], outputs)
    return TensorModel(name, inputs, outputs, runner, max_batch=max_batch, fixed=fixed, examples=examples)


def _runner(
    forward: Any, inputs: tuple[TensorSpec, ...], device: torch.device, max_batch: int, fixed: int | None
) -> Runs:
    """Return a graph for each size if every side is known and the program can be captured."""
    if device.type != "cuda" or any(side < 0 for spec in inputs for side in spec.shape):
        return EagerRunner(forward, device)
    rows = [(spec.shape, torch.from_numpy(np.zeros(0, DATATYPES[spec.datatype])).dtype) for spec in inputs]
    graphed = GraphedRunner(forward, rows, max_batch, device, only=fixed)
    try:
        graphed.prepare()
    except RuntimeError as error:
        sys.stderr.write(f"the program cannot be captured in a CUDA graph and runs without: {first_line(error)}\n")
        return EagerRunner(forward, device)
    return graphed


def open_onnx(path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """Open an ONNX file. Raises TrainError: damaged, or a GPU that onnxruntime does not use."""
    saved, session = SavedWith(path), _session(path, device)
    inputs, fixed = _specs(path, [(each.name, each.type, each.shape) for each in session.get_inputs()])
    outputs = [each.name for each in session.get_outputs()]

    def run(columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        fed = {spec.name: np.stack(column) for spec, column in zip(inputs, columns, strict=True)}
        found: list[np.ndarray] = session.run(None, fed)
        return found

    def network(images: Tensor) -> Tensor:
        return torch.from_numpy(run([list(images.cpu().numpy())])[0]).to(images.device)

    if fixed is None and (model := saved.image_model(name, network, device, max_batch, "eager")) is not None:
        return model
    examples = saved.rows([spec.name for spec in inputs], outputs)
    return TensorModel(name, inputs, outputs, run, max_batch=max_batch, fixed=fixed, examples=examples)


def _specs(path: Path, given: Sequence[tuple[str, Any, Sequence[Any]]]) -> tuple[tuple[TensorSpec, ...], int | None]:
    """Return the inputs of a row, and the only batch that the program takes.

    ``given``: (name, type, shape) of each input, the batch in front; a side that varies is not a positive integer.
    """
    specs, batches = [], set()
    for name, dtype, shape in given:
        known = datatype(dtype)
        if known not in DATATYPES or not len(shape):
            raise ServeError(
                f"the input {name} of {path.name} is {dtype} {list(shape)}, and only tensors with a batch are served"
            )
        sides = tuple(side if isinstance(side, int) and side > 0 else -1 for side in shape)
        specs.append(TensorSpec(name, known, sides[1:]))
        batches.add(sides[0])
    if len(batches) != 1:
        raise ServeError(f"the inputs of {path.name} have different first dimensions: the first must be the batch")
    batch = batches.pop()
    return tuple(specs), None if batch < 0 else batch


def _session(path: Path, device: torch.device) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ServeError(f"{path.name} needs onnxruntime, which is missing", fix="pip install onnxruntime") from error
    on_gpu = device.type == "cuda"
    if on_gpu and CUDA not in onnxruntime.get_available_providers():
        raise ServeError(
            f"{path.name} would run on the CPU: this onnxruntime has no CUDA",
            fix="pip install onnxruntime-gpu in place of onnxruntime, or serve it with --gpus none",
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not on_gpu:
        options.intra_op_num_threads = torch.get_num_threads()
    providers: list[Any] = [(CUDA, {"device_id": device.index or 0})] if on_gpu else ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # its own types, made in C++
        message = f"{path.name} is truncated, damaged or no ONNX model that onnxruntime {onnxruntime.__version__} reads"
        raise ServeError(message, fix="export it again: seatrial export RUN --to onnx") from error
    session.disable_fallback()
    if on_gpu and CUDA not in session.get_providers():
        message = f"{path.name} would run on the CPU: onnxruntime could not start CUDA and fell back"
        raise ServeError(message, fix="install the onnxruntime-gpu of this CUDA version, or serve it with --gpus none")
    return session


def _flat(outputs: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a tuple, list or mapping, in their order."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    values: Sequence[Any] = [*outputs.values()] if isinstance(outputs, dict) else list(outputs)
    return tuple(tensor for value in values for tensor in _flat(value))
