"""What each built-in recipe needs in its image. The recipes themselves are never imported on the host side."""

from __future__ import annotations

from seatrial.errors import TargetError

#: Recipe → requirements for pip; torch is settled with the rest of the stack. Sources: the import lines of
#: recipes/<name>.py and of what they use in train/.
RECIPE_REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "digits": ("torch", "numpy", "safetensors", "scikit-learn"),
    "mnist": ("torch", "numpy", "safetensors"),
}


def recipe_requirements(name: str) -> tuple[str, ...]:
    """Requirements of one recipe. Raises TargetError for a name that is none."""
    try:
        return RECIPE_REQUIREMENTS[name]
    except KeyError:
        known = ", ".join(sorted(RECIPE_REQUIREMENTS))
        raise TargetError(f"No recipe is called {name!r}; there are: {known}", run="seatrial run digits") from None
