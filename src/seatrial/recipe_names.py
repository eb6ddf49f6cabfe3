"""A built-in recipe's name and the module behind it. Imported by the host side, which only reads recipes, and
by the recipes themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

#: Recipes that train a network, which bench times and serve opens.
TRAINED = ("mnist", "digits", "mnist-deep", "cifar10", "spam")

#: Programs that have a room of their own.
_PROGRAMS = ("export", "serve")

#: Recipes that take ``--framework``, and what a model of Keras computes with there, beside torch.
KERAS_RECIPES = ("mnist",)
KERAS_FRAMEWORKS = ("tensorflow", "jax")


def framework_of(arguments: Sequence[str]) -> str:
    """What ``--framework NAME`` or ``--framework=NAME`` says last, else torch."""
    named = "torch"
    for word, following in pairwise([*arguments, "torch"]):
        if word == "--framework" or word.startswith("--framework="):
            named = word.partition("=")[2] or following
    return named


def frameworks_of(recipe: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """What the recipe trains with; bench with several, in the order of its ``--compare``."""
    compared = [value for flag, value in pairwise(arguments) if flag == "--compare" and recipe == "bench"]
    named = [name for name in ",".join(compared).split(",") if name in ("torch", *KERAS_FRAMEWORKS)]
    return tuple(named) or (framework_of(arguments),)


def is_keras(recipe: str, arguments: Sequence[str]) -> bool:
    """Whether the recipe trains in Keras with these arguments, and never in torch."""
    takes = recipe in KERAS_RECIPES or recipe == "bench"
    return takes and all(name in KERAS_FRAMEWORKS for name in frameworks_of(recipe, arguments))


def module_of(recipe: str, arguments: Sequence[str] = ()) -> str:
    """The module that a recipe's name stands for, ``seatrial.recipes.mnist_deep``; with these arguments."""
    keras = "_keras" if recipe in KERAS_RECIPES and is_keras(recipe, arguments) else ""
    return f"seatrial.{recipe}" if recipe in _PROGRAMS else f"seatrial.recipes.{recipe.replace('-', '_')}{keras}"


def source_of(recipe: str, arguments: Sequence[str] = ()) -> Path:
    """The file of that module."""
    path = Path(__file__).parent.joinpath(*module_of(recipe, arguments).split(".")[1:])
    return path / "__main__.py" if recipe in _PROGRAMS else path.with_suffix(".py")
