"""receipt.json, receipt.md and receipt.html in the run's folder; load.py reads the first."""

from __future__ import annotations

import os
from pathlib import Path

from seatrial.errors import DiskError
from seatrial.receipt.load import HTML_NAME, JSON_NAME, MARKDOWN_NAME
from seatrial.receipt.model import Receipt
from seatrial.receipt.rendering import html, markdown
from seatrial.system.typed_path import as_typed


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
