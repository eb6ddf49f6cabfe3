"""From the word after ``--model`` to a model that can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.serve.errors import ServeError
from seatrial.serve.served_model import ServedModel

if TYPE_CHECKING:
    import torch

#: Recipes whose models are served.
RECIPES = ("mnist", "digits", "mnist-deep", "cifar10", "spam")
#: Rows of a batch at most where nobody has said: (on a GPU, elsewhere).
IMAGES_AT_ONCE, TEXTS_AT_ONCE, ROWS_AT_ONCE = (256, 64), (128, 32), (64, 32)


def open_model(
    spec: str, device: torch.device, *, max_batch: int | None = None, name: str | None = None
) -> ServedModel:
    """The model that ``spec`` names: a recipe (its files lie in $SEATRIAL_MODELS_DIR), a file, or ``file.py:Class``.

    Args:
        max_batch: rows of a batch at most; else what suits the kind of model.
        name: in addresses; else the recipe's, the file's or the class's.

    Raises:
        ServeError: there is no such model, it cannot be read, or it is refused.
    """
    place = 0 if device.type == "cuda" else 1
    if spec in RECIPES:
        from seatrial.serve.models.recipe import open_recipe

        most = max_batch or (TEXTS_AT_ONCE if spec == "spam" else IMAGES_AT_ONCE)[place]
        return open_recipe(spec, device, max_batch=most, name=name or spec)
    raise ServeError(f"{spec} is no recipe and no file of a model")
