"""Probabilities of classes as ``POST /predict`` gives them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def class_answer(labels: Sequence[str], probabilities_C: np.ndarray) -> dict[str, Any]:
    """``{"label", "probability", "probabilities": {label: …}}``, to six digits."""
    numbers = [round(number, 6) for number in probabilities_C.tolist()]
    likeliest = max(range(len(numbers)), key=numbers.__getitem__)
    return {
        "label": labels[likeliest],
        "probability": numbers[likeliest],
        "probabilities": dict(zip(labels, numbers, strict=True)),
    }
