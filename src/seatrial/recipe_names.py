"""A built-in recipe's name and the module behind it. Imported by the host side, which only reads recipes, and
by the recipes themselves."""

from __future__ import annotations

from pathlib import Path

#: Programs that have a room of their own.
_PROGRAMS = ("serve",)


def module_of(recipe: str) -> str:
    """The module that a recipe's name stands for, ``seatrial.recipes.mnist_deep``."""
    return f"seatrial.{recipe}" if recipe in _PROGRAMS else f"seatrial.recipes.{recipe.replace('-', '_')}"


def source_of(recipe: str) -> Path:
    """The file of that module."""
    path = Path(__file__).parent.joinpath(*module_of(recipe).split(".")[1:])
    return path / "__main__.py" if recipe in _PROGRAMS else path.with_suffix(".py")
