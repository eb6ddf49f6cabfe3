"""From the word after ``--model`` to a model that can be served."""

from __future__ import annotations

import torch

from seatrial.serve.errors import ServeError
from seatrial.serve.served_model import ServedModel

#: Recipes whose models are served.
RECIPES = ("mnist", "digits", "mnist-deep", "cifar10", "spam")


def open_model(spec: str, device: torch.device, *, max_batch: int, name: str | None = None) -> ServedModel:
    """The model that ``spec`` names: a recipe (its files lie in $SEATRIAL_MODELS_DIR), a file, or ``file.py:Class``.

    Args:
        name: in addresses; else the recipe's, the file's or the class's.

    Raises:
        ServeError: there is no such model, it cannot be read, or it is refused.
    """
    if spec in RECIPES:
        from seatrial.serve.models.recipe import open_recipe

        return open_recipe(spec, device, max_batch=max_batch, name=name or spec)
    raise ServeError(f"{spec} is no recipe and no file of a model")
