"""receipt.json, receipt.md and receipt.html in the run's folder, and back."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from seatrial.errors import DiskError, RunNotFoundError
from seatrial.receipt.model import Receipt
from seatrial.receipt.rendering import html, markdown
from seatrial.system.nofollow import read_regular
from seatrial.system.typed_path import as_typed

#: Largest receipt that is read back; one of eight GPUs and a week has 2 MB.
MOST_BYTES = 64 << 20

JSON_NAME = "receipt.json"
MARKDOWN_NAME = "receipt.md"
HTML_NAME = "receipt.html"


def write_receipt(run_dir: Path, receipt: Receipt) -> None:
    """Write all three, each aside and then renamed: a reader sees a whole receipt, the old or the new.

    Raises:
        DiskError: no space or no permission; no half-written file is left.
    """
    texts = {
        MARKDOWN_NAME: markdown.render(receipt),
        HTML_NAME: html.render(receipt),
        JSON_NAME: receipt.model_dump_json(indent=2) + "\n",  # last: who waits for it finds the others there
    }
    for name, text in texts.items():
        aside = run_dir / f".{name}.{os.getpid()}"
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(run_dir / name)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise DiskError(
                f"cannot write {run_dir / name}: {error.strerror}",
                run=f"df -h {as_typed(run_dir)}; ls -ld {as_typed(run_dir)}",
            ) from error


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
