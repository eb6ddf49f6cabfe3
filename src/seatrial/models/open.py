"""Open a recipe's saved model, a .pt2 file, or weights with the factory of their network.

A .pt2 file is a program: opening it here is running it, in the container. Weights are only read.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seatrial.models.model import Flat, Original, drawn, keywords_of, outputs_of
from seatrial.models.recipe_models import read_file, read_saved
from seatrial.models.state_dicts import fitted, read_states, usual_first
from seatrial.recipe_names import WEIGHTS
from seatrial.train import options
from seatrial.train.errors import CheckpointError, InputError, ModelFileError, first_line, type_and_line
from seatrial.train.saving.checkpoint import load_model
from seatrial.train.saving.examples import Examples, examples_of
from seatrial.train.saving.model_files import read_tensors, weights_digest

Shapes = Sequence[tuple[int, ...]]
#: Source: torch/serialization.py.
_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
#: Suffixes of files that hold pickled objects.
_PICKLES = (".pth", ".pt", ".pkl", ".pickle", ".joblib", ".bin", ".ckpt")
#: Dimensions that vary.
_NAMES = {0: "batch", 1: "length"}


def open_model(spec: str, factory: str | None = None, shapes: Shapes = ()) -> Original:
    """Open the model that a word names. Raises ModelFileError, InputError: one sentence.

    ``factory``: ``module:factory`` of the network, for weights. ``shapes``: of a row of each input, if not known.
    """
    if spec in WEIGHTS and factory is None and not Path(spec).is_file():
        return read_saved(options.default_folder("models"), spec)
    path = next((each for each in (options.default_folder("models") / spec, Path(spec)) if each.is_file()), Path(spec))
    if not path.is_file():
        raise ModelFileError(f"{path} does not exist", fix=f"a recipe's name ({', '.join(WEIGHTS)}) or a file")
    if path.suffix == ".onnx":
        raise InputError(f"{path} is an ONNX file already: nothing to export from", fix="export the trained weights")
    if path.suffix == ".safetensors":
        examples = examples_of(path)
        recipe = examples.recipe if examples else ""
        if recipe in WEIGHTS and WEIGHTS[recipe].rpartition("/")[2] == path.name and factory is None:
            return read_file(path, recipe)
        return _of_weights(path, {"": read_tensors(path)[0]}, factory, shapes)
    names = _entries(path)
    if any(name.endswith(("archive_format", "serialized_exported_program.json")) for name in names):
        return _of_program(path)
    if any("/code/" in name for name in names):
        fix = "save model.state_dict(), then: seatrial export WEIGHTS --to pt2 --model module:factory"
        raise ModelFileError(f"{path} is TorchScript, which is not read any more", fix=fix)
    return _of_weights(path, read_states(path), factory, shapes)


def refuse_pickle(path: Path) -> None:
    """Raise ModelFileError if the file is a pickle, also under another suffix; torch.save writes one into a zip."""
    with path.open("rb") as file:
        start = file.read(4)
    names = [name.partition("/")[2] for name in _entries(path)] if start == b"PK\x03\x04" else []
    if start[:1] == b"\x80" or path.suffix in _PICKLES or "data.pkl" in names:
        problem = f"{path.name} is a pickle: loading one can run any code of its author, so it is not opened"
        fix = f"seatrial export {path.name} --to pt2 --model module:factory makes a file to serve"
        raise ModelFileError(problem, fix=fix)


def _entries(path: Path) -> list[str]:
    """Return the names in torch's zip archive; none for its older form. Raises ModelFileError."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        with path.open("rb") as file:
            start = file.read(4)
        if start[:1] == b"\x80":  # as torch wrote until 1.5, a pickle behind the other
            return []
        raise ModelFileError(f"{path} is truncated, or no model file", fix="copy or save the file anew") from error


def _of_weights(
    path: Path, states: Mapping[str, Mapping[str, Tensor]], factory: str | None, shapes: Shapes
) -> Original:
    if factory is None:
        fix = f"seatrial export {path.name} --to onnx --model module:factory"
        raise InputError(f"{path} holds weights without their network", fix=fix)
    network, given = make_network(factory)
    places = usual_first(states)
    fits = {place: tensors for place in places if (tensors := fitted(states[place], network)) is not None}
    taken = next(iter(fits), places[0])
    if len(fits) > 1:
        others = ", ".join(place for place in fits if place != taken)
        print(f"{path.name} has weights for this network as {taken}, which are taken, and as {others}", flush=True)
    try:
        load_model(network, fits.get(taken, states[taken]), str(path))
    except CheckpointError as error:
        raise ModelFileError(error.message, fix=f"a factory of the network that saved it, not {factory}") from error
    network.eval()
    return _of_user(path, network, given or _inputs(path, network, shapes, factory), given=bool(given))


@dataclass(frozen=True)
class Program:
    """A .pt2 file's program. ``inputs``: name → a tensor without data, of the input's type and shape."""

    exported: Any
    inputs: Mapping[str, Tensor]


@contextmanager
def _only_tensors() -> Iterator[None]:
    """Let torch.load refuse objects: torch.export unpickles a file's example inputs, and tries again without limits."""
    earlier = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        yield
    finally:
        os.environ.pop(_FORCED)
        os.environ.update({} if earlier is None else {_FORCED: earlier})


def load_program(path: Path) -> Program:
    """Load a .pt2 file. Raises ModelFileError: truncated, of another torch, or with inputs that are not tensors."""
    try:
        with _only_tensors():
            exported = torch.export.load(path)
        exported.module()
    except Exception as error:  # a damaged archive leads to zip, JSON and C++ errors
        raise ModelFileError(
            f"{path.name} is truncated, damaged or no .pt2 file that torch {torch.__version__} reads: "
            f"{first_line(error)}",
            fix="export it again with this torch: seatrial export RUN --to pt2",
        ) from error
    nodes = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    inputs: dict[str, Tensor] = {}
    for name in map(str, exported.graph_signature.user_inputs):
        if not isinstance(value := nodes.get(name), Tensor):
            raise ModelFileError(f"the input {name} of {path.name} is not a tensor", fix="a network that takes tensors")
        inputs[name] = value
    return Program(exported, inputs)


def _of_program(path: Path) -> Original:
    program = load_program(path)
    varying = {
        name: {at: _NAMES.get(at, f"size_{at}") for at, size in enumerate(value.shape) if not isinstance(size, int)}
        for name, value in program.inputs.items()
    }
    if (examples := examples_of(path)) is not None:
        inputs = dict(zip(program.inputs, examples.inputs.values(), strict=False))
    else:
        free = all(0 in each for each in varying.values())
        rows = 16 if free else int(next(iter(program.inputs.values())).shape[0])
        sizes = {name: value.shape[1:] for name, value in program.inputs.items()}
        shapes = {name: [size if isinstance(size, int) else 8 for size in each] for name, each in sizes.items()}
        inputs = drawn(shapes, {name: value.dtype for name, value in program.inputs.items()}, rows)
    exported = program.exported
    original = _of_user(path, exported.module(), inputs, given=False, state=exported.state_dict)
    return replace(original, program=exported, dynamic=varying)


def _of_user(
    path: Path, network: Any, inputs: Mapping[str, Tensor], *, given: bool, state: Mapping[str, Tensor] | None = None
) -> Original:
    """Run a network with inputs once, so that its outputs have names."""
    keywords = () if state is not None else keywords_of(network, [*inputs])
    try:
        with torch.no_grad():
            outputs = outputs_of(Flat(network, keywords).call(*inputs.values()))
    except InputError:
        raise
    except Exception as error:  # a stranger's code
        shapes = ", ".join(f"{name} {tuple(each.shape)}" for name, each in inputs.items())
        fix = f"--input-shape {_fitting(network, [each.shape[1:] for each in inputs.values()])}"
        raise InputError(f"the model fails on inputs {shapes}: {first_line(error)}", fix=fix) from error
    own = {name: each.detach() for name, each in (state or network.state_dict()).items()}
    digest = weights_digest(own)
    examples = examples_of(path) or Examples("", "tensors", digest, inputs, {}, real=False)
    saved = examples.outputs if examples.weights == digest else {}  # else their inputs alone are of use
    plain = set(outputs) == {"output"} and not keywords
    named = tuple(outputs)
    if len(examples.outputs) == len(outputs) and {*examples.outputs} != {*outputs}:
        named = tuple(examples.outputs)
    module = network if plain else Flat(network, keywords)
    traced = replace(examples, weights=digest, inputs=inputs, outputs=saved, real=given or examples.real)
    return Original(path.name.partition(".")[0], module, own, traced, named, {name: {0: "batch"} for name in inputs})


def _inputs(path: Path, network: Any, shapes: Shapes, factory: str | None) -> dict[str, Tensor]:
    """Return the saved examples, or draw inputs of the given shapes, or of a first layer's."""
    examples = examples_of(path)
    if examples is not None and not shapes:
        return dict(examples.inputs)
    first = _first_layer(network)
    if not shapes and isinstance(first, nn.Linear):
        shapes = [(first.in_features,)]
    if not shapes:
        also = f", or let {factory} return (model, (inputs, …))" if factory else ""
        fix = f"--input-shape 1,28,28 (of one row, once for each input){also}"
        raise InputError(f"nothing shows the shape of the inputs of {path.name}", fix=fix)
    names = [f"input_{number}" for number in range(len(shapes))] if len(shapes) > 1 else ["input"]
    return drawn(dict(zip(names, shapes, strict=True)), {})


def _first_layer(network: nn.Module) -> nn.Linear | nn.Conv2d | None:
    return next((each for each in network.modules() if isinstance(each, (nn.Linear, nn.Conv2d))), None)


def _fitting(network: nn.Module, rows: Sequence[Sequence[int]]) -> str:
    """Return the shape of one row that the first layer takes, close to the given one, or words for it."""
    first, row = _first_layer(network), rows[0] if len(rows) == 1 else ()
    fits: list[int] = []
    if isinstance(first, nn.Linear) and len(row) == 1:
        fits = [first.in_features]
    elif isinstance(first, nn.Conv2d) and len(row) == 3:
        fits = [first.in_channels, *row[1:]]
    return ",".join(map(str, fits)) if fits and fits != [*row] else "SIZE,SIZE,… of one row"


def make_network(factory: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the network of the user's ``module:factory`` and inputs to compare on, {} if it gave none.

    The factory takes nothing and returns a network, or a network and its inputs: a tensor, several, or a mapping.
    Raises InputError if it is not there, fails, or returns something else.
    """
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"--model {factory} is not module:factory", fix="--model net:make_model")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a stranger's code runs
        problem = f"cannot import {module_name}: {type_and_line(error)}"
        raise InputError(problem, fix=f"python -c 'import {module_name}'") from error
    if not callable(made := getattr(module, name, None)):
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module_name}
        networks = (key for key, value in own.items() if isinstance(value, type) and issubclass(value, nn.Module))
        close = [*difflib.get_close_matches(name, own, n=1), *networks, "NAME"][0]
        raise InputError(f"{module_name} has no function {name}", fix=f"--model {module_name}:{close}")
    try:
        result = made()
    except Exception as error:  # a stranger's code runs
        fix = f"python -c 'import {module_name} as m; m.{name}()'"
        raise InputError(f"{factory}() failed: {type_and_line(error)}", fix=fix) from error
    network, inputs = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(network, nn.Module):
        problem = f"{factory}() returned a {type(network).__name__}, not a torch.nn.Module"
        raise InputError(problem, fix="return the network")
    if any(is_lazy(each) for each in (*network.parameters(), *network.buffers())):
        fix = "call it once on an example before returning it"
        raise InputError(f"{factory}() returned a network with lazy layers, whose sizes nobody has set", fix=fix)
    return network, _named(inputs)


def _named(inputs: Any) -> dict[str, Tensor]:
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, Mapping):
        names = ["input"] if len(inputs) == 1 else [f"input_{number}" for number in range(len(inputs))]
        inputs = dict(zip(names, inputs, strict=True))
    if not all(isinstance(each, Tensor) and each.ndim and len(each) for each in inputs.values()):
        fix = "return model, torch.zeros(4, 1, 28, 28)"
        raise InputError("the factory's inputs are not tensors with a batch in front", fix=fix)
    return {str(name): each.detach() for name, each in inputs.items()}
