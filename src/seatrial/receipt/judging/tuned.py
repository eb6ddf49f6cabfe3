"""How a tune came out, in the sentence that a receipt begins with."""

from __future__ import annotations

from seatrial.common.contract.tunables import in_words
from seatrial.receipt.model import ExitCause, TuneRecord


def with_result(cause: ExitCause, tune: TuneRecord | None) -> ExitCause:
    """The cause with what was found, or why nothing could be."""
    if tune is None:
        return cause
    if tune.refusal is not None:
        return cause.model_copy(update={"words": f"The script cannot be tuned: {tune.refusal}"})
    if cause.id != "finished" or not tune.done:
        return cause
    found = "nothing that was tried makes the script faster and trains the same"
    whole = tune.combination
    if tune.kept and whole is not None and whole.steps_per_s and whole.against:
        found = f"{whole.steps_per_s / whole.against:.2f} times as fast with {in_words(tune.kept)}"
    return cause.model_copy(update={"words": f"{cause.words}: {found}"})
