"""A receipt that was written, read back: without what judges and renders."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from seatrial.errors import RunNotFoundError
from seatrial.receipt.model import Receipt
from seatrial.system.nofollow import read_regular

#: Largest receipt that is read back; one of eight GPUs and a week has 2 MB.
MOST_BYTES = 64 << 20

JSON_NAME = "receipt.json"
MARKDOWN_NAME = "receipt.md"
HTML_NAME = "receipt.html"


def load(run_dir: Path) -> Receipt:
    """The receipt of a run.

    Raises:
        RunNotFoundError: there is none, or what is there is no receipt.
    """
    path = run_dir / JSON_NAME
    try:
        return Receipt.model_validate_json(read_regular(path, most_bytes=MOST_BYTES))
    except FileNotFoundError:
        raise RunNotFoundError(
            f"Run {run_dir.name} has no receipt: {path.name} is missing",
            cause="the run has not ended, or the file was deleted",
            run=f"seatrial runs verify {run_dir.name}",
        ) from None
    except ValidationError as error:
        raise RunNotFoundError(
            f"The receipt of run {run_dir.name} cannot be read by this version of seatrial",
            cause=f"{path}: {_what(error)}",
            run=f"seatrial runs verify {run_dir.name}",
        ) from error


def _what(error: ValidationError) -> str:
    """``it is no JSON``, or the first key that is wrong."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg'].lower()}" if place else "it is not JSON, or not a receipt"
