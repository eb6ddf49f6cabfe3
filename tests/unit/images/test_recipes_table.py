"""Packages of a recipe, and the answer to an option that it no longer has."""

from __future__ import annotations

import pytest

from seatrial.errors import UsageError
from seatrial.images.recipes import recipe_requirements
from seatrial.job.model import Target


def needs(recipe: str, *args: str) -> set[str]:
    return set(recipe_requirements(Target(kind="recipe", value=recipe, args=args)))


@pytest.mark.parametrize("recipe", ["bench", "predict"])
def test_recipe_that_names_another_gets_its_requirements(recipe: str) -> None:
    assert needs(recipe, "train", "spam") >= {"torch", "safetensors", "transformers", "tokenizers"}
    assert "transformers" not in needs(recipe, "train", "mnist")


@pytest.mark.parametrize("words", [("--framework", "jax"), ("--framework=tensorflow",), ("--framework", "torch")])
def test_framework_option_answers_with_the_example(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="has no option --framework any more") as refused:
        needs("mnist", *words)
    assert "examples/keras-mnist/train.py" in str(refused.value.cause)
