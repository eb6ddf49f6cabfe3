"""What can be served: a recipe's model, a model file, a class of the user's.

A front opens readers from this package: nothing here imports torch before a model is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.serve.errors import ServeError
from seatrial.serve.served_model import ServedModel

if TYPE_CHECKING:
    import torch


def open_model(
    spec: str, device: torch.device, *, max_batch: int | None = None, name: str | None = None
) -> ServedModel:
    """The model that ``spec`` names, on ``device``. Raises ServeError: none can be opened in this version."""
    raise ServeError(f"{spec} is nothing that can be served")
