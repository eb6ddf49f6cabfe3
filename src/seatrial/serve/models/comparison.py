"""Whether the answers of the served model are those of the trained one."""

from __future__ import annotations

import numpy as np

from seatrial.serve.errors import ServeError

#: Largest difference of a probability. fp32 on another device and fp16 differ by less than 0.005 on trained networks;
#: a wrong normalisation, weight or order of classes by tenths.
TOLERANCE = 0.02
WARM_UP_SEED = 0


def compare(answers: np.ndarray, expected: np.ndarray, *, last: bool, tolerance: float = TOLERANCE) -> float | None:
    """The largest absolute difference; None where it is beyond tolerance and another way is left to try.

    Raises ServeError: with ``last``, the answers differ or are not finite.
    """
    if answers.shape != expected.shape:
        raise ServeError(
            f"the model answers {answers.shape[1:]} where {expected.shape[1:]} was saved beside it",
            "train or export it again: the model and its examples are written together",
        )
    finite = bool(np.isfinite(answers).all())
    difference = float(np.abs(answers.astype(np.float64) - expected).max()) if finite else float("inf")
    if finite and difference <= tolerance:
        return difference
    if not last:
        return None
    if not finite:
        raise ServeError("the model's outputs are not finite numbers", "train it again: its weights are damaged")
    raise ServeError(
        f"the model's outputs differ by {difference:.3g} from those saved beside it (at most {tolerance:g})",
        "train or export it again: the model and its examples are written together",
    )
