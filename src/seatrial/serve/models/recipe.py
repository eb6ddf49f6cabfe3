"""Recipes' models out of the models folder."""

from __future__ import annotations

from math import isqrt

import torch
from safetensors.torch import load_file

from seatrial.recipes.mnist import network
from seatrial.serve.errors import ServeError
from seatrial.serve.models.image_recipe import BOXES, ImageModel
from seatrial.serve.served_model import ServedModel
from seatrial.train import script
from seatrial.train.data.images import Normalisation

# Mean and deviation of the training images' bytes, until they are saved beside the weights.
_STATISTICS = {"digits": (77.8824, 82.8172), "mnist": (33.3184, 78.5675)}


def open_image_recipe(recipe: str, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """Raises ServeError."""
    path = script.default_folder("models") / f"{recipe}.safetensors"
    if not path.is_file():
        raise ServeError(f"no model of {recipe} in {path.parent}", f"seatrial run {recipe}")
    tensors = load_file(path)
    classes = len(tensors["9.bias"])
    side = 28 if isqrt(tensors["7.weight"].shape[1] // 64) == 5 else 0
    model = network(side, side, classes)
    model.load_state_dict(tensors)
    mean, deviation = _STATISTICS[recipe]
    normalise = Normalisation(torch.tensor(1 / deviation).view(1, 1, 1), torch.tensor(-mean / deviation).view(1, 1, 1))
    labels = [str(number) for number in range(classes)]
    return ImageModel(
        name, model, normalise, labels, (1, side, side), device, max_batch=max_batch, box=BOXES.get(recipe)
    )
