"""Draws the README's picture from a real receipt: what ``seatrial runs show`` prints, as SVG.

python docs/make_receipt_picture.py .seatrial/runs/RUN_ID [docs/images/receipt.svg]
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from seatrial.receipt.rendering import terminal
from seatrial.receipt.write import load


def main(run_dir: Path, picture: Path) -> None:
    """Write the picture of the receipt in ``run_dir``."""
    console = Console(record=True, width=terminal.WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    receipt = load(run_dir)
    terminal.render(receipt, console)
    picture.parent.mkdir(parents=True, exist_ok=True)
    # unique_id: without one, the names of the CSS classes and so the picture would differ from run to run.
    svg = console.export_svg(title="seatrial runs show last", unique_id="receipt")
    # Without rich's web fonts: the picture loads nothing and falls back to the reader's monospace.
    picture.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    default = Path(__file__).parent / "images" / "receipt.svg"
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default)
