"""The training library. A model of your own needs these names: ``from seatrial.train import Step, batches, fit``.

Each is imported at its first use: most of the library is used without the rest, and some of it without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seatrial.train.data.batches import batches as batches
    from seatrial.train.data.images import affine as affine
    from seatrial.train.data.images import crop as crop
    from seatrial.train.data.images import flip as flip
    from seatrial.train.distributed import ranks as ranks
    from seatrial.train.evaluation import Test as Test
    from seatrial.train.fitting import fit as fit
    from seatrial.train.optim.optimizer import adam as adam
    from seatrial.train.optim.optimizer import adamw as adamw
    from seatrial.train.optim.optimizer import sgd as sgd
    from seatrial.train.optim.schedules import cosine as cosine
    from seatrial.train.optim.schedules import staircase as staircase
    from seatrial.train.optim.schedules import triangle as triangle
    from seatrial.train.step import Step as Step

#: Name → the file that has it.
_PLACES = {
    "Step": "step", "Test": "evaluation", "adam": "optim.optimizer", "adamw": "optim.optimizer",
    "affine": "data.images", "batches": "data.batches", "cosine": "optim.schedules", "crop": "data.images",
    "fit": "fitting", "flip": "data.images", "ranks": "distributed", "sgd": "optim.optimizer",
    "staircase": "optim.schedules", "triangle": "optim.schedules",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
