"""What each built-in recipe needs in its image. The recipes themselves are never imported on the host side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from seatrial.errors import TargetError, UsageError
from seatrial.job.model import Target
from seatrial.job.serving import Serving
from seatrial.recipe_names import KERAS_FRAMEWORKS, KERAS_RECIPES, framework_of, is_keras


@dataclass(frozen=True)
class Recipe:
    """A recipe as the host side knows it.

    Attributes:
        requirements: for pip; torch is resolved with the rest of the stack. Sources: the import lines of
            recipes/<name>.py and of what they use in train/.
        trains: takes ``--data``, ``--models`` and ``--resume``, and saves a model.
        weights: of the model that it saves, below the models folder. Source: WEIGHTS in recipes/saved.py.
        ranks: runs one process per GPU under torchrun. bench does not: it starts torchrun itself.
    """

    requirements: tuple[str, ...]
    trains: bool = True
    ranks: bool = True
    weights: str | None = None


_TORCH = ("torch", "numpy", "safetensors")

#: What serving needs beside what its model needs. Source: the import lines of serve/, torch's apart.
SERVER = (
    "httptools", "numpy", "pillow", "python-multipart", "starlette", "uvicorn", "uvloop",
)  # fmt: skip

#: What ``--track NAME`` needs besides. Source: TRACKERS in train/trackers.py.
TRACKER_REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow-skinny", "sqlalchemy", "alembic"),
}

#: The targets of ``seatrial run``, by name.
RECIPES: dict[str, Recipe] = {
    "cifar10": Recipe(_TORCH, weights="cifar10.safetensors"),
    "digits": Recipe((*_TORCH, "scikit-learn"), weights="digits.safetensors"),
    "matmul": Recipe(_TORCH, trains=False),
    "mnist": Recipe(_TORCH, weights="mnist.safetensors"),
    "mnist-deep": Recipe(_TORCH, weights="trained-model.safetensors"),
    "spam": Recipe((*_TORCH, "tokenizers", "transformers"), weights="spam/model.safetensors"),
}

#: Programs behind verbs of their own. bench runs another recipe, so it needs that one's packages too.
TOOLS: dict[str, Recipe] = {
    "bench": Recipe(_TORCH, trains=False, ranks=False),
    "export": Recipe(_TORCH, trains=False, ranks=False),
    "predict-spam": Recipe(RECIPES["spam"].requirements, trains=False, ranks=False),
    "serve": Recipe((*SERVER, "torch", "safetensors"), trains=False, ranks=False),
}


def recipe(name: str) -> Recipe:
    """A recipe or tool by name. Raises TargetError for a name that is none."""
    try:
        return {**RECIPES, **TOOLS}[name]
    except KeyError:
        known = ", ".join(sorted(RECIPES))
        raise TargetError(f"There is no recipe {name!r}; known recipes: {known}", run="seatrial run digits") from None


def serving_requirements(serving: Serving, *, gpus: bool) -> tuple[str, ...]:
    """What pip is asked for to serve a model; of a class of the user's, beside what the project needs."""
    if serving.kind == "code":
        return tuple(dict.fromkeys((*SERVER, *_TORCH)))  # which finds the GPU
    if serving.suffix == ".onnx":
        return (*dict.fromkeys((*SERVER, *_TORCH)), "onnxruntime-gpu[cuda,cudnn]" if gpus else "onnxruntime")
    needs = RECIPES[serving.model].requirements if serving.kind == "recipe" else _TORCH
    return tuple(dict.fromkeys((*SERVER, *needs)))


def recipe_requirements(target: Target) -> tuple[str, ...]:
    """What pip is asked for, for a target that is a recipe."""
    _check_framework(target)
    if is_keras(target.value, target.args):
        own: tuple[str, ...] = ("keras", "numpy", framework_of(target.args))
    else:
        own = recipe(target.value).requirements
    inner = [RECIPES[word].requirements for word in target.args if word in RECIPES] if target.value == "bench" else []
    tracked = [packages for name, packages in TRACKER_REQUIREMENTS.items() if tracks(target.args, name)]
    if target.value == "export":
        inner = [_of_export(target.args)]
    together = (own, *inner, *tracked)
    return tuple(dict.fromkeys(name for needs in together for name in needs))


def _check_framework(target: Target) -> None:
    """Raises UsageError: the recipe does not train with the framework named; argparse would say so in a built image."""
    if target.value not in RECIPES:
        return
    framework = framework_of(target.args)
    known = ("torch", *(KERAS_FRAMEWORKS if target.value in KERAS_RECIPES else ()))
    if framework not in known:
        raise UsageError(
            f"The recipe {target.value} does not train with {framework or 'no framework'}: --framework takes "
            f"{', '.join(known)}",
            cause=None if target.value in KERAS_RECIPES else f"{', '.join(KERAS_RECIPES)} alone is written for others",
            run=f"seatrial run {KERAS_RECIPES[0]} -- --framework {KERAS_FRAMEWORKS[-1]}",
        )


def _of_export(arguments: Sequence[str]) -> tuple[str, ...]:
    """What this format and this model need. Source: the import lines of export/ and of what it opens."""
    words = set(pairwise(arguments))
    needs = ["tokenizers", "transformers"] if ("--model", "spam") in words else []
    if ("--to", "onnx") in words:
        needs += ["onnx", "onnxruntime"]
        needs += ["onnxscript"] if any(word.endswith(".pt2") for word in arguments) else []
    return tuple(needs)


def tracks(arguments: Sequence[str], name: str) -> bool:
    """Whether ``--track NAME`` or ``--track=NAME`` is among them."""
    return f"--track={name}" in arguments or ("--track", name) in pairwise(arguments)
