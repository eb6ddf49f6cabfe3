"""Keep a few real inputs and the trained model's answers with its weights: NAME.examples.safetensors.

A program that loads, exports or serves the model computes them again and compares. The outputs are computed on the CPU
in fp32, so that they do not depend on the number format or the kernels of the training. Shapes: N examples, B rows,
C channels, H and W pixels.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.errors import ModelFileError
from seatrial.train.saving.atomic import write_file
from seatrial.train.saving.model_files import read_tensors, save_model, weights_digest


@dataclass(frozen=True)
class Normalisation:
    """Bytes to numbers of mean 0 and deviation 1: ``image * scale + shift``, [C, 1, 1] each."""

    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, images_NCHW: Tensor) -> Normalisation:
        """Read from the data, one mean and deviation a channel; exact, through a histogram of the bytes."""
        planes = images_NCHW.unbind(1)
        counts = torch.stack([torch.bincount(plane.flatten(), minlength=256) for plane in planes]).cpu().double()
        values = torch.arange(256, dtype=torch.double)
        mean = (counts * values).sum(1) / counts.sum(1)
        variance = (counts * values.square()).sum(1) / counts.sum(1) - mean.square()
        deviation = variance.clamp(min=1e-12).sqrt()
        return cls((1 / deviation).float()[:, None, None], (-mean / deviation).float()[:, None, None])

    def to(self, device: torch.device) -> Normalisation:
        """Copy it to another device."""
        return Normalisation(self.scale.to(device), self.shift.to(device))

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        return torch.addcmul(self.shift, images_BCHW, self.scale)


#: Examples that are kept: enough for a batch, and a small file (16 images of 3×32×32 take 197 kB).
EXAMPLES = 16
#: NAME.safetensors has its examples in NAME + this.
SUFFIX = ".examples.safetensors"
#: (model, inputs) → outputs.
Forward = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
_INPUT, _OUTPUT, _SCALE, _SHIFT = "input.", "output.", "normalise.scale", "normalise.shift"


@dataclass(frozen=True)
class Examples:
    """The content of one file.

    Attributes:
        recipe: which trained the model; "" for a model of the user's.
        kind: what a request holds: ``image``, ``text`` or ``tensors``.
        weights: ``weights_digest`` of the model that gave the outputs.
        inputs: name → [N, …], as the network takes them: images are normalised.
        outputs: name → [N, …] fp32.
        labels: of the classes, in the order of the logits.
        normalise: how bytes of an image become the network's numbers; scale and shift are [C, 1, 1].
        real: the inputs come from a test set; else they were drawn at random.
    """

    recipe: str
    kind: str
    weights: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    labels: tuple[str, ...] = ()
    normalise: Normalisation | None = None
    real: bool = True

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


def image_examples(
    recipe: str, model: nn.Module, test_NCHW: Tensor, normalise: Normalisation, labels: Sequence[str]
) -> Examples:
    """Keep the first images of a test set of bytes."""
    on_cpu = normalise.to(torch.device("cpu"))
    images = {"images": on_cpu(test_NCHW[:EXAMPLES].cpu().float())}
    logits = {"logits": outputs_on_cpu(model, tuple(images.values()))}
    return Examples(recipe, "image", weights_digest(model.state_dict()), images, logits, tuple(labels), on_cpu)


def save_images_model(
    recipe: str, path: Path, model: nn.Module, test_NCHW: Tensor, normalise: Normalisation, labels: Sequence[str]
) -> None:
    """Write a recipe's model as PATH.pth and PATH.safetensors with examples, and print the paths."""
    saved = save_model(model, path.parent, path.name)
    saved.append(save_examples(image_examples(recipe, model, test_NCHW, normalise, labels), saved[-1]))
    for written in saved:
        print(f"saved {written}", flush=True)


def numbered(classes: int) -> tuple[str, ...]:
    """Return labels of classes that have no names."""
    return tuple(str(number) for number in range(classes))


def outputs_on_cpu(model: nn.Module, inputs: tuple[Tensor, ...], forward: Forward | None = None) -> Tensor:
    """Return the outputs in fp32 and evaluation mode of a copy of the model on the CPU; nothing is drawn at random."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().cpu(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().cpu()
    twin = copy.deepcopy(model, memo).float().eval()
    with torch.no_grad():
        outputs: Tensor = forward(twin, inputs) if forward else twin(*inputs)
    return outputs.float().contiguous()


def examples_path(weights: Path) -> Path:
    """Return the path of a model file's examples."""
    return weights.with_name(weights.name.removesuffix(weights.suffix) + SUFFIX)


def save_examples(examples: Examples, weights: Path) -> Path:
    """Write them next to the model's file, whole or not at all; return the path. Raises DiskFullError."""
    from safetensors.torch import save

    tensors = {_INPUT + name: tensor.contiguous() for name, tensor in examples.inputs.items()}
    tensors |= {_OUTPUT + name: tensor.contiguous() for name, tensor in examples.outputs.items()}
    if examples.normalise is not None:
        tensors |= {_SCALE: examples.normalise.scale, _SHIFT: examples.normalise.shift}
    words = {"format": "pt", "recipe": examples.recipe, "kind": examples.kind, "weights": examples.weights}
    words |= {"labels": json.dumps(examples.labels), "inputs": json.dumps([*examples.inputs])}
    words |= {"outputs": json.dumps([*examples.outputs])}  # safetensors sorts names
    words |= {"real": "yes" if examples.real else "no"}
    path = examples_path(weights)
    write_file(path, lambda file: file.write(save(tensors, metadata=words)))
    return path


def examples_of(weights: Path) -> Examples | None:
    """Read the examples of a model's file; None if it has none. Raises ModelFileError."""
    path = examples_path(weights)
    return read_examples(path) if path.is_file() else None


def read_examples(path: Path) -> Examples:
    """Read one file. Raises ModelFileError: it is truncated, or holds something else."""
    tensors, words = read_tensors(path)
    try:
        labels, names = (json.loads(words[key]) for key in ("labels", "inputs"))
        inputs = {name: tensors[_INPUT + name] for name in names}
        given = [name.removeprefix(_OUTPUT) for name in tensors if name.startswith(_OUTPUT)]
        outputs = {name: tensors[_OUTPUT + name] for name in json.loads(words.get("outputs", json.dumps(given)))}
        sizes = {len(each) for each in (*inputs.values(), *outputs.values())}
        whole = bool(inputs) and bool(outputs) and len(sizes) == 1 and sizes != {0}
        if not whole or not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ValueError
        normalise = Normalisation(tensors[_SCALE], tensors[_SHIFT]) if _SCALE in tensors else None
        recipe, kind, weights = words["recipe"], words["kind"], words["weights"]
        real = words.get("real") != "no"
    except (KeyError, ValueError, TypeError) as error:
        fix = "delete it, or train the model again: both are written together"
        raise ModelFileError(f"{path} holds no examples of a model", fix=fix) from error
    return Examples(recipe, kind, weights, inputs, outputs, tuple(labels), normalise, real)
