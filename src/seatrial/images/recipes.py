"""List the requirements of each built-in recipe, which the host never imports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from seatrial.errors import TargetError
from seatrial.job.model import Target
from seatrial.job.tables import Serving
from seatrial.system.nofollow import files_below
from seatrial.system.text import from_here

#: Most files searched for a recipe's data.
_MOST_FILES = 10_000


class Recipe(NamedTuple):
    """A recipe as the host side knows it.

    Attributes:
        requirements: for pip; torch is resolved with the rest of the stack. Sources: the import lines of
            recipes/<name>.py and of what they use in train/.
        trains: takes ``--data``, ``--models`` and ``--resume``, and saves a model.
        opens: reads a trained model from ``--models``.
        ranks: runs one process per GPU under torchrun. bench does not: it starts torchrun itself.
        data: what ``--data`` has to hold, in words; None for a recipe that carries its own.
        files: one of these patterns fits the name of a file of that, in the folder or below it.
    """

    requirements: tuple[str, ...]
    trains: bool = True
    opens: bool = False
    ranks: bool = True
    data: str | None = None
    files: tuple[str, ...] = ()


_TORCH = ("torch", "numpy", "safetensors")

#: Requirements of serving, in addition to its model's. Source: the import lines of serve/, except torch.
SERVER = (
    "httptools", "numpy", "pillow", "python-multipart", "starlette", "uvicorn", "uvloop",
)  # fmt: skip

#: Requirements that ``--track NAME`` adds. Source: TRACKERS in train/trackers.py.
TRACKER_REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow-skinny", "sqlalchemy", "alembic"),
}

#: The targets of ``seatrial run``, by name.
RECIPES: dict[str, Recipe] = {
    "cifar10": Recipe(_TORCH, data="CIFAR-10's files", files=("cifar-10*", "data_batch_1*")),
    "bench": Recipe(_TORCH, trains=False, ranks=False),
    "digits": Recipe((*_TORCH, "scikit-learn")),
    "matmul": Recipe(_TORCH, trains=False),
    "mnist": Recipe(_TORCH, data="MNIST's four IDX files", files=("train-images*",)),
    "mnist-deep": Recipe(_TORCH, data="MNIST's four IDX files", files=("train-images*",)),
    "predict": Recipe((*_TORCH, "pillow"), trains=False, opens=True, ranks=False),
    "spam": Recipe(
        (*_TORCH, "tokenizers", "transformers"),
        data="SMSSpamCollection",
        files=("SMSSpamCollection*", "spam.tsv"),
    ),
}

#: Recipes that run or open another one, named in their arguments, and need its packages too.
_NAME_ANOTHER = ("bench", "predict")

#: Programs that verbs of their own start.
TOOLS: dict[str, Recipe] = {
    "export": Recipe(_TORCH, trains=False, ranks=False),
    "serve": Recipe((*SERVER, "torch", "safetensors"), trains=False, ranks=False),
}


def recipe(name: str) -> Recipe:
    """Return a recipe or tool by its name. Raises TargetError for an unknown name."""
    if (found := {**RECIPES, **TOOLS}.get(name)) is None:
        known = ", ".join(sorted(RECIPES))
        raise TargetError(f"Unknown recipe {name!r}; available: {known}", run="seatrial run digits")
    return found


def require_data(target: Target, project: Path, *, folder: Path | None, mounted: bool) -> None:
    """Check that the recipe's data is in ``folder`` (``--data``) or ``mounted`` at its place. Raises TargetError."""
    known = RECIPES.get(target.value) if target.kind == "recipe" else None
    own = any(word.split("=")[0] in ("--data", "--download") for word in target.args)
    if known is None or known.data is None or mounted or own:
        return
    place = folder or project / "data"
    fetches = target.value not in ("cifar10", "spam")
    fetch = f" -- --download   # fetches them into ./data; or: seatrial run {target.value} --data DIR"
    run = f"seatrial run {target.value}{fetch if fetches else ' --data DIR'}"
    needs = f"The recipe {target.value} needs {known.data}"
    if folder is None and not place.exists():
        cause = "seatrial brings no datasets; the recipe digits needs none"
        raise TargetError(f"{needs}: pass --data or make a folder data in {project}", cause=cause, run=run)
    if not _holds(place, known.files):
        cause = f"no file in it is called {' or '.join(known.files)}"
        raise TargetError(f"{needs}: there are none in {from_here(place)}", cause=cause, run=run)


def _holds(folder: Path, patterns: Sequence[str]) -> bool:
    """Return True if a file of the folder has such a name, or may have: unreadable, or among too many files."""
    for looked_at, entry in enumerate(files_below(folder, hidden=True, links=True), 1):
        if looked_at == _MOST_FILES or any(fnmatch(entry.name, pattern) for pattern in patterns):
            return True
    return not os.access(folder, os.R_OK | os.X_OK)


def serving_requirements(serving: Serving, *, gpus: bool) -> tuple[str, ...]:
    """Return the requirements for serving a model."""
    if serving.suffix == ".onnx":
        return (*dict.fromkeys((*SERVER, *_TORCH)), "onnxruntime-gpu[cuda,cudnn]" if gpus else "onnxruntime")
    needs = RECIPES[serving.model].requirements if serving.kind == "recipe" else _TORCH
    return tuple(dict.fromkeys((*SERVER, *needs)))


def recipe_requirements(target: Target) -> tuple[str, ...]:
    """Return the requirements that pip installs for a recipe."""
    another = [word for word in target.args if word in RECIPES] if target.value in _NAME_ANOTHER else []
    needs = [recipe(name).requirements for name in (target.value, *another)]
    for name, packages in TRACKER_REQUIREMENTS.items():
        if f"--track={name}" in target.args or ("--track", name) in pairwise(target.args):
            needs.append(packages)
    if target.value == "export":
        needs += [_of_export(target.args)]
    return tuple(dict.fromkeys(name for few in needs for name in few))


def _of_export(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the requirements of this format and model. Source: the import lines of export/ and of what it opens."""
    words = set(pairwise(arguments))
    needs = ["tokenizers", "transformers"] if ("--model", "spam") in words else []
    if ("--to", "onnx") in words:
        needs += ["onnx", "onnxruntime"]
        needs += ["onnxscript"] if any(word.endswith(".pt2") for word in arguments) else []
    return tuple(needs)
