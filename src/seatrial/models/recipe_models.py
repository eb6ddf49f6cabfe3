"""Read a recipe's saved model: the network with its weights, and its examples.

Only safetensors is read: weights and nothing else. Shapes: B rows, L tokens a row, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seatrial.recipes import cifar10, mnist, mnist_deep, spam
from seatrial.train.data.cifar10 import CLASSES as CIFAR10_CLASSES
from seatrial.train.errors import CheckpointError, InputError, ModelFileError, first_line
from seatrial.train.saving.checkpoint import load_model
from seatrial.train.saving.examples import Examples, examples_path, read_examples
from seatrial.train.saving.model_files import read_tensors, weights_digest

#: Recipe → its weights, below the models folder.
WEIGHTS = {
    "mnist": "mnist.safetensors",
    "digits": "digits.safetensors",
    "mnist-deep": "trained-model.safetensors",
    "cifar10": "cifar10.safetensors",
    "spam": "spam/model.safetensors",
}


@dataclass(frozen=True)
class Saved:
    """A trained model.

    Attributes:
        network: in evaluation mode, fp32, on the CPU. Takes the inputs by position, in the order of ``inputs``.
        path: of its weights. weights: their digest.
        kind: ``image`` or ``text``.
        inputs: name → shape of one row; -1 where the length varies.
        examples: None where none were saved: a model of an older version.
        labels: of the classes, in the order of the logits.
        tokenizer: of transformers, for text.
    """

    recipe: str
    network: nn.Module
    path: Path
    weights: str
    kind: str
    inputs: Mapping[str, tuple[int, ...]]
    labels: tuple[str, ...]
    examples: Examples | None = None
    tokenizer: Any = None


class TextClassifier(nn.Module):
    """BertForSequenceClassification as (input_ids [B, L], attention_mask [B, L]) → logits [B, K].

    By the recipe's forward pass: it never looks at a tensor on the host, so it can be captured and exported.
    """

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.model = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return spam.logits(self.model, (input_ids, attention_mask != 0))


def read_saved(models_folder: Path, recipe: str) -> Saved:
    """Read the model that a recipe saved in this folder.

    Raises:
        ModelFileError: there is none, it is truncated, a pickle, or of another recipe.
        InputError: the recipe saves no model.
    """
    if recipe not in WEIGHTS:
        raise InputError(f"{recipe} saves no model; known: {', '.join(WEIGHTS)}", fix="seatrial run digits")
    path = models_folder / WEIGHTS[recipe]
    if not path.is_file():
        pickled = path.with_suffix(".pth")
        also = f"; {pickled.name} is a pickle, which is not read" if pickled.is_file() else ""
        raise ModelFileError(f"no model of {recipe}: {path} does not exist{also}", fix=f"seatrial run {recipe}")
    return read_file(path, recipe)


def read_file(path: Path, recipe: str) -> Saved:
    """Read the recipe's model from this file, in any folder. Raises ModelFileError."""
    read = _read_text if recipe == "spam" else _read_images
    saved = read(recipe, path)
    if (examples := _examples(saved)) is None:
        return saved
    inputs = (
        saved.inputs if saved.kind == "text" else {key: (*each.shape[1:],) for key, each in examples.inputs.items()}
    )
    return replace(saved, examples=examples, inputs=inputs, labels=examples.labels or saved.labels)


def _read_images(recipe: str, path: Path) -> Saved:
    tensors, _ = read_tensors(path)
    network, row = _built(recipe, path, tensors)
    try:
        load_model(network, tensors, str(path))
    except CheckpointError as error:
        raise ModelFileError(error.message, fix=f"seatrial run {recipe}, or name the recipe that saved it") from error
    last = [each for each in network.modules() if isinstance(each, nn.Linear)][-1]
    named = CIFAR10_CLASSES if recipe == "cifar10" else tuple(str(number) for number in range(last.out_features))
    digest = weights_digest(network.state_dict())
    return Saved(recipe, network.float().eval(), path, digest, "image", {"images": row}, named)


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
        raise ModelFileError(
            f"{path} belongs to another model than {recipe}'s: it holds {names or 'nothing'}",
            fix=f"seatrial run {recipe}, or name the recipe that saved it",
        ) from error


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


def _read_text(recipe: str, path: Path) -> Saved:
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
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_fast=True
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
    inputs = {"input_ids": (-1,), "attention_mask": (-1,)}
    network = TextClassifier(model.float()).eval()
    return Saved(recipe, network, path, weights_digest(tensors), "text", inputs, labels, tokenizer=tokenizer)


def _examples(saved: Saved) -> Examples | None:
    """Read the examples of these weights. Raises ModelFileError for others: one file is of another training."""
    path = examples_path(saved.path)
    if not path.is_file():
        return None
    examples = read_examples(path)
    if examples.weights != saved.weights:
        raise ModelFileError(
            f"{path} is of other weights than {saved.path.name}: one of them is from another training",
            fix=f"seatrial run {saved.recipe}, or delete {path}",
        )
    return examples
