"""From the word after ``--model`` to a model that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.recipe_names import TRAINED
from seatrial.serve.errors import ServeError
from seatrial.serve.models.pickled import refuse_pickles
from seatrial.serve.served_model import ServedModel

if TYPE_CHECKING:
    import torch

#: Rows of a batch at most where nobody has said: (on a GPU, elsewhere). Elsewhere 64 images no longer fit into a core's
#: cache: an image of digits took 290 µs and not 138 (docs/benchmarks.md).
IMAGES_AT_ONCE, TEXTS_AT_ONCE, ROWS_AT_ONCE = (256, 32), (128, 32), (64, 32)


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
    if spec in TRAINED:
        from seatrial.serve.models.recipe import open_recipe

        most = max_batch or (TEXTS_AT_ONCE if spec == "spam" else IMAGES_AT_ONCE)[place]
        return open_recipe(spec, device, max_batch=most, name=name or spec)
    if ".py:" in spec:
        from seatrial.serve.models.user_class import UserModel
        from seatrial.train.options import default_folder

        return UserModel(spec, device, folder=default_folder("models"), max_batch=max_batch, name=name)
    return _open_file(Path(spec), device, max_batch or ROWS_AT_ONCE[place], name)


def _open_file(path: Path, device: torch.device, max_batch: int, name: str | None) -> ServedModel:
    if not path.is_file():
        known = ", ".join(TRAINED)
        raise ServeError(
            f"{path} is no recipe ({known}), no file of a model and no class",
            "seatrial serve digits, seatrial serve model.onnx, or seatrial serve serve.py:Model",
        )
    refuse_pickles(path)
    name = name or path.stem
    if path.suffix == ".onnx":
        from seatrial.serve.models.onnx_file import open_onnx

        return open_onnx(path, device, max_batch=max_batch, name=name)
    if path.suffix == ".pt2":
        from seatrial.serve.models.torch_program import open_program

        return open_program(path, device, max_batch=max_batch, name=name)
    if path.suffix == ".safetensors":
        from seatrial.serve.models.recipe import open_weights

        return open_weights(path, device, max_batch=max_batch, name=name)
    raise ServeError(
        f"{path.name} is of no kind that is served: .pt2, .onnx, .safetensors of a recipe",
        "seatrial export RUN --to pt2",
    )
