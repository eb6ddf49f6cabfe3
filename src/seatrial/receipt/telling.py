"""Which of the numbers that a script reported say most: one loss and one accuracy."""

from __future__ import annotations

from collections.abc import Collection

#: What was not trained on comes first: it is what the model is good for.
_PHASES = ("val_", "valid_", "test_", "eval_", "", "end_", "train_")
_ACCURACIES = ("accuracy", "acc", "f1", "auc", "score", "reward")


def telling(names: Collection[str]) -> tuple[str, str]:
    """(name of a loss, name of an accuracy), each "" where there is none."""
    return _first(names, ("loss", "step_loss")), _first(names, _ACCURACIES)


def _first(names: Collection[str], wanted: tuple[str, ...]) -> str:
    candidates = (f"{phase}{name}" for name in wanted for phase in _PHASES)
    return next((name for name in candidates if name in names), "")
