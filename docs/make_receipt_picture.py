"""Draws the README's picture from a real receipt: what ``seatrial runs show`` prints, as SVG.

python docs/make_receipt_picture.py RUN_FOLDER [docs/images/receipt.svg [SECTION …]]

RUN_FOLDER: .seatrial/runs/RUN_ID, or a folder of docs/receipts. With names of sections (Criteria, Diagnosis) those
alone are drawn below the verdict, and … stands for the others.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from seatrial.receipt.model import load
from seatrial.receipt.render import terminal

#: Columns of the picture.
_WIDTH = 80

#: What colours a line.
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def main(run_dir: Path, picture: Path, sections: Sequence[str]) -> None:
    """Write the picture of the receipt in ``run_dir``."""
    printed = Console(width=_WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    terminal.render(load(run_dir), printed)
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    assert isinstance(printed.file, io.StringIO)
    for line in shown(printed.file.getvalue(), sections):
        console.print(Text.from_ansi(line), soft_wrap=True)
    picture.parent.mkdir(parents=True, exist_ok=True)
    # unique_id: without one, the names of the CSS classes and so the picture would differ from run to run.
    svg = console.export_svg(title="seatrial runs show last", unique_id="receipt")
    # Without rich's web fonts: the picture loads nothing and falls back to the reader's monospace.
    picture.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")


def shown(printed: str, sections: Sequence[str]) -> Iterator[str]:
    """The lines of a receipt, without the sections that are not named; none named: all."""
    verdict, *others = re.split(r"\n\n(?=\S*[A-Z])", printed.rstrip())
    yield from verdict.splitlines()
    left_out = False
    for section in others:
        if not sections or _STYLE.sub("", section.partition("\n")[0]) in sections:
            yield from ("", *section.splitlines())
            left_out = False
        elif not left_out:
            yield from ("", "…")
            left_out = True


if __name__ == "__main__":
    default = Path(__file__).parent / "images" / "receipt.svg"
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default, sys.argv[3:])
