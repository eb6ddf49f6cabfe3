"""Recipes' models out of the models folder, with the examples that training left beside the weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from seatrial.models import recipe_models
from seatrial.recipes.spam import LONGEST
from seatrial.serve.errors import ServeError
from seatrial.serve.models.image_recipe import BOXES, ImageModel, Images
from seatrial.serve.models.text_reader import open_tokenizer
from seatrial.serve.models.text_recipe import TextModel
from seatrial.serve.served_model import ServedModel
from seatrial.train import options
from seatrial.train.errors import TrainError
from seatrial.train.saving.examples import Examples, examples_path, read_examples
from seatrial.train.saving.model_files import read_tensors, weights_digest


def open_recipe(recipe: str, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """The model that a recipe saved in the models folder. Raises ServeError."""
    open_kind: Callable[..., ServedModel] = _open_text if recipe == "spam" else _open_image
    with told_plainly():
        path = options.default_folder("models") / recipe_models.WEIGHTS[recipe]
        if not path.is_file():
            raise ServeError(f"there is no model of {recipe}: {path} does not exist", f"seatrial run {recipe}")
        return open_kind(recipe, path, device, max_batch=max_batch, name=name)


def open_weights(path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """The recipe's model that this safetensors file belongs to: the examples beside it say which. Raises ServeError."""
    beside = examples_path(path)
    with told_plainly():
        recipe = read_examples(beside).recipe if beside.is_file() else ""
        if recipe not in recipe_models.WEIGHTS:
            raise ServeError(
                f"{path.name} holds weights without their network",
                "seatrial serve RECIPE, or seatrial export RUN --to pt2 and serve that",
            )
        open_kind: Callable[..., ServedModel] = _open_text if recipe == "spam" else _open_image
        return open_kind(recipe, path, device, max_batch=max_batch, name=name)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors of the training library as the server's."""
    try:
        yield
    except TrainError as error:
        raise ServeError(error.message, error.fix) from error


def _open_image(recipe: str, path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    opened = recipe_models.read_file(path, recipe)
    examples = opened.examples
    if examples is None or examples.normalise is None:
        raise ServeError(
            f"{opened.path.name} has no {examples_path(opened.path).name} beside it, which says how its images are "
            "normalised",
            f"train it again with this version: seatrial run {recipe}",
        )
    (shape,) = opened.inputs.values()
    channels, height, width = shape
    images = Images((channels, height, width), examples.normalise, opened.labels, BOXES.get(recipe))
    model = ImageModel(name, opened.network, images, device, max_batch=max_batch)
    return model.with_examples(examples.inputs["images"], examples.outputs["logits"].softmax(1))


def _open_text(recipe: str, path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """Without transformers, whose import takes seconds."""
    tensors, _ = read_tensors(path)
    config = _json(path.with_name("config.json"))
    names = config.get("id2label") or {}
    labels = [str(names.get(str(number), number)) for number in range(len(tensors.get("classifier.bias", ())))]
    tokenizer = _text(path.with_name("tokenizer.json"))
    words = tensors.get("bert.embeddings.word_embeddings.weight", ())
    if (known := open_tokenizer(tokenizer, LONGEST).get_vocab_size()) > len(words):
        raise ServeError(
            f"the tokenizer beside {path.name} knows {known:,} tokens, the model {len(words):,}",
            f"train it again, or copy the whole folder: seatrial run {recipe}",
        )
    longest = min(LONGEST, int(config.get("max_position_embeddings", LONGEST)))
    model = TextModel(
        name, tensors, config, tokenizer, labels, device, max_batch=max_batch, longest=longest
    )  # fmt: skip
    if not (beside := examples_path(path)).is_file():
        return model
    examples = read_examples(beside)
    # Half a second for BERT-base, while the GPU starts.
    digest = ThreadPoolExecutor(1).submit(weights_digest, tensors)
    lengths = examples.inputs["attention_mask"].sum(1).tolist()
    texts = [
        tokens[:length].int().numpy() for tokens, length in zip(examples.inputs["input_ids"], lengths, strict=True)
    ]

    def same_weights() -> None:
        if digest.result() != examples.weights:
            raise ServeError(
                f"{beside.name} is of other weights than {path.name}: one of them is from another training",
                f"seatrial run {recipe}, or delete {beside}",
            )

    return model.with_examples(texts, _probabilities(examples), same_weights)


def _probabilities(examples: Examples) -> Any:
    return examples.outputs["logits"].softmax(1).numpy()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise ServeError(f"{path} is no JSON", "train the model again, or copy the folder anew") from error
    if not isinstance(found, dict):
        raise ServeError(f"{path} holds no settings of a model", "train the model again, or copy the folder anew")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"cannot read {path}", "train the model again, or copy the whole folder") from error
