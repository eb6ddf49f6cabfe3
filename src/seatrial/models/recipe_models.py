"""Read a recipe's network, weights (safetensors alone) and examples. Shapes: B rows, L tokens a row, K classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from seatrial.models.model import Original, drawn
from seatrial.recipe_names import WEIGHTS
from seatrial.recipes import cifar10, mnist, mnist_deep, spam
from seatrial.train.data.cifar10 import CLASSES as CIFAR10_CLASSES
from seatrial.train.errors import CheckpointError, InputError, ModelFileError, first_line
from seatrial.train.saving.checkpoint import load_model
from seatrial.train.saving.examples import Examples, examples_of, examples_path, numbered
from seatrial.train.saving.model_files import read_tensors, weights_digest


class TextClassifier(nn.Module):
    """BertForSequenceClassification as (input_ids [B, L], attention_mask [B, L]) → logits [B, K].

    By the recipe's forward pass: it never looks at a tensor on the host, so it can be captured and exported.
    """

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.model = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return spam.logits(self.model, (input_ids, attention_mask != 0))


def read_saved(models_folder: Path, recipe: str) -> Original:
    """Read the model that a recipe saved here. Raises ModelFileError: missing, truncated, a pickle or another's."""
    path = models_folder / WEIGHTS[recipe]
    if not path.is_file():
        pickled = path.with_suffix(".pth")
        also = f"; {pickled.name} is a pickle, which is not read" if pickled.is_file() else ""
        raise ModelFileError(f"no model of {recipe}: {path} does not exist{also}", fix=f"seatrial run {recipe}")
    return read_file(path, recipe)


def read_file(path: Path, recipe: str) -> Original:
    """Read the recipe's model from this file, in any folder. Raises ModelFileError."""
    return _read_text(path, recipe) if recipe == "spam" else _read_images(path, recipe)


def _read_images(path: Path, recipe: str) -> Original:
    tensors, _ = read_tensors(path)
    network, row = _built(recipe, path, tensors)
    try:
        load_model(network, tensors, str(path))
    except CheckpointError as error:
        raise ModelFileError(error.message, fix=f"seatrial run {recipe}, or name the recipe that saved it") from error
    last = [each for each in network.modules() if isinstance(each, nn.Linear)][-1]
    labels = CIFAR10_CLASSES if recipe == "cifar10" else numbered(last.out_features)
    digest, inputs = weights_digest(network.state_dict()), drawn({"images": row}, {})
    examples = _examples(path, Examples(recipe, "image", digest, inputs, {}, labels, real=False))
    state = {name: tensor.detach() for name, tensor in network.float().eval().state_dict().items()}
    return Original(recipe, network, state, examples, ("logits",), {name: {0: "batch"} for name in examples.inputs})


def _built(recipe: str, path: Path, tensors: Mapping[str, Tensor]) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network of random weights, sized by the tensors' shapes, and the shape of an image."""
    build: dict[str, Callable[[Mapping[str, Tensor]], tuple[nn.Module, tuple[int, ...]]]] = {
        "mnist": _mnist,
        "digits": _mnist,
        "mnist-deep": _mnist_deep,
        "cifar10": _cifar10,
    }
    try:
        return build[recipe](tensors)
    except (KeyError, IndexError, ValueError, InputError) as error:
        names = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in [*tensors.items()][:4])
        problem = f"{path} belongs to another model than {recipe}'s: it holds {names or 'nothing'}"
        raise ModelFileError(problem, fix=f"seatrial run {recipe}, or name the recipe that saved it") from error


def _mnist(tensors: Mapping[str, Tensor]) -> tuple[nn.Module, tuple[int, ...]]:
    """Derive the size of square images from the features, up to three pixels, which the pools drop; 28 is MNIST's."""
    classes, features = tensors["9.weight"].shape[0], tensors["7.weight"].shape[1]
    side = math.isqrt(features // 64)
    if 64 * side * side != features:
        raise ValueError("not square")
    pixels = 28 if side == 5 else 4 * side + 6
    return mnist.network(pixels, pixels, classes), (1, pixels, pixels)


def _mnist_deep(tensors: Mapping[str, Tensor]) -> tuple[nn.Module, tuple[int, ...]]:
    channels = tensors["0.weight"].shape[1]
    last = max((int(name.partition(".")[0]), name) for name in tensors if name.endswith(".weight"))[1]
    pixels = 28 if channels == 1 else 32
    return mnist_deep.network(channels, tensors[last].shape[0]), (channels, pixels, pixels)


def _cifar10(tensors: Mapping[str, Tensor]) -> tuple[nn.Module, tuple[int, ...]]:
    widths = [tensors[f"blocks.{number}.first.weight"].shape[0] for number in range(3)]
    return cifar10.Network(tensors["head.weight"].shape[0], widths), (3, 32, 32)


def _read_text(path: Path, recipe: str) -> Original:
    """Read the folder that transformers has written. Weights are compared by name before they are loaded."""
    folder = path.parent
    tensors, _ = read_tensors(path)
    transformers = spam.import_transformers()
    fix = f"seatrial run {recipe} --from-scratch"
    try:
        config = transformers.BertConfig.from_pretrained(folder, local_files_only=True)
        model, info = transformers.BertForSequenceClassification.from_pretrained(
            folder, config=config, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises what a file leads it to: KeyError, TypeError, RuntimeError …
        raise ModelFileError(f"{folder} cannot be read as {recipe}'s model: {first_line(error)}", fix=fix) from error
    wrong = [f"{name} is {what}" for what, key in (("missing", "missing_keys"), ("unknown", "unexpected_keys"))
             for name in sorted(map(str, info[key]))]  # fmt: skip
    wrong += [f"{each[0]} has another shape" for each in info["mismatched_keys"]]
    if wrong:
        more = f"; and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise ModelFileError(f"{path} belongs to another model: {'; '.join(wrong[:6])}{more}", fix=fix)
    labels = tuple(str(model.config.id2label[number]) for number in range(model.config.num_labels))
    inputs = drawn({"input_ids": (16,)}, {"input_ids": torch.int64})
    inputs |= {"attention_mask": torch.ones_like(inputs["input_ids"])}
    examples = _examples(path, Examples(recipe, "text", weights_digest(tensors), inputs, {}, labels, real=False))
    classifier, longest = TextClassifier(model.float()).eval(), int(model.config.max_position_embeddings)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    dynamic = {name: {0: "batch", 1: "length"} for name in inputs}
    return Original(recipe, classifier, state, examples, ("logits",), dynamic, longest)


def _examples(weights: Path, known: Examples) -> Examples:
    """Read these weights' examples; ``known`` where none are saved. Raises ModelFileError for another training's."""
    examples, path = examples_of(weights), examples_path(weights)
    if examples is None:
        return known
    if examples.weights != known.weights:
        problem = f"{path} belongs to other weights than {weights.name}: they are from different trainings"
        raise ModelFileError(problem, fix=f"seatrial run {known.recipe}, or delete {path}")
    return replace(examples, recipe=known.recipe, labels=examples.labels or known.labels)
