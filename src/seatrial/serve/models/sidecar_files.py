"""What lies beside a model's file: its card, and the examples, which say how its images are normalised."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from seatrial.serve.errors import ServeError
from seatrial.serve.models.datatypes import NUMPY
from seatrial.serve.models.image_recipe import BOXES, ImageModel, Images
from seatrial.serve.models.recipe import told_plainly
from seatrial.serve.served_model import Row, TensorSpec
from seatrial.train.saving.examples import Examples, examples_path, read_examples
from seatrial.train.saving.model_card import ModelCard, card_path, read_card

#: (name, device, largest batch) → the model.
OpenImages = Callable[[str, torch.device, int], ImageModel]


@dataclass(frozen=True)
class SidecarFiles:
    """Each is None where it is not there."""

    card: ModelCard | None
    examples: Examples | None

    @classmethod
    def of(cls, path: Path) -> SidecarFiles:
        """Raises ServeError: one of them is damaged, or the card is of another file."""
        with told_plainly():
            card = read_card(card_path(path)) if card_path(path).is_file() else None
            examples = read_examples(examples_path(path)) if examples_path(path).is_file() else None
        if card is not None and card.file == path.name and card.sha256.removeprefix("sha256:") != _sha256(path):
            raise ServeError(
                f"{path.name} is not the file that {card_path(path).name} was written for: it was changed or cut short",
                "export it again, or copy both files anew",
            )
        return cls(card, examples)

    def specs(self) -> tuple[TensorSpec, ...] | None:
        """Inputs of one row, as far as they are known."""
        if self.card is not None:
            known = [(each.name, each.datatype, each.shape[1:]) for each in self.card.inputs]
            return tuple(TensorSpec(*each) for each in known if each[1] in NUMPY)
        if self.examples is None:
            return None
        inputs = {name: tensor.numpy() for name, tensor in self.examples.inputs.items()}
        names = {np.dtype(kind): name for name, kind in NUMPY.items()}
        return tuple(TensorSpec(name, names[each.dtype], each.shape[1:]) for name, each in inputs.items())

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in their order; empty where nothing tells them."""
        if self.card is not None:
            return tuple(each.name for each in self.card.outputs)
        return tuple(self.examples.outputs) if self.examples is not None else ()

    def image_model(self, network: Callable[[Tensor], Tensor], way: Literal["program", "eager"]) -> OpenImages | None:
        """What opens it as a model of images: their normalisation is known; else None."""
        examples = self.examples
        if examples is None or examples.kind != "image" or examples.normalise is None:
            return None
        (inputs,), (outputs,) = examples.inputs.values(), examples.outputs.values()
        channels, height, width = inputs.shape[1:]
        images = Images((channels, height, width), examples.normalise, examples.labels, BOXES.get(examples.recipe))

        def opened(name: str, device: torch.device, max_batch: int) -> ImageModel:
            model = ImageModel(name, network, images, device, max_batch=max_batch, way=way)
            return model.with_examples(inputs, outputs.softmax(1))

        return opened

    def rows(self, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[Row], list[np.ndarray]] | None:
        """Example rows in the order of these inputs, and the outputs; by place where the names differ."""
        if self.examples is None or len(self.examples.inputs) != len(inputs):
            return None
        if len(self.examples.outputs) != len(outputs):
            return None
        given, found = self.examples.inputs, self.examples.outputs
        columns = [given[name] for name in inputs] if set(inputs) == set(given) else [*given.values()]
        expected = [found[name] for name in outputs] if set(outputs) == set(found) else [*found.values()]
        rows = [tuple(each.numpy() for each in row) for row in zip(*columns, strict=True)]
        return rows, [each.numpy() for each in expected]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
