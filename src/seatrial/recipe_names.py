"""The names of the built-in recipes and the modules behind them. Read by the host side and by the recipes."""

from __future__ import annotations

from pathlib import Path

#: Recipe that trains a network → its weights, below the models folder.
WEIGHTS = {
    "mnist": "mnist.safetensors",
    "digits": "digits.safetensors",
    "mnist-deep": "trained-model.safetensors",
    "cifar10": "cifar10.safetensors",
    "spam": "spam/model.safetensors",
}
#: Programs that lie outside of the recipes' folder, and their modules.
_PROGRAMS = {"export": "export", "predict": "serve.predict", "serve": "serve"}


def module_of(recipe: str) -> str:
    """Return the module of a recipe: ``mnist-deep`` is ``seatrial.recipes.mnist_deep``."""
    return f"seatrial.{_PROGRAMS.get(recipe) or 'recipes.' + recipe.replace('-', '_')}"


def source_of(recipe: str) -> Path:
    """Return the file of that module."""
    path = Path(__file__).parent.joinpath(*module_of(recipe).split(".")[1:])
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
