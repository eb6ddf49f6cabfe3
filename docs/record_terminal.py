"""Records a real terminal as SVG: what was typed and what came out, with its colours.

python docs/record_terminal.py PICTURE COMMAND [COMMAND …]

Run in the folder that the commands need. Each is run by bash on a terminal of its own; what it draws and takes back
again (progress, live lines) is gone in the picture, as it is on the screen when the command has ended.
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 40

#: What moves the cursor or asks the terminal something; colours stay.
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Zac-ln-z]|\x1b[\]P].*?(?:\x07|\x1b\\)|\x1b[=>78]")


def main(picture: Path, commands: list[str]) -> None:
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
    )
    for command in commands:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi(last_state(output(command))))
    svg = console.export_svg(title="seatrial", unique_id="terminal")
    # Without rich's web fonts: the picture loads nothing and falls back to the reader's monospace.
    picture.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")


def output(command: str) -> str:
    """Return the output of a command on a terminal."""
    found: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        found.append(data)
        return data

    os.environ.update(COLUMNS=str(COLUMNS), LINES=str(ROWS), TERM="xterm-256color")
    pty.spawn(["bash", "-c", command], read)
    return b"".join(found).decode("utf-8", "replace")


def last_state(text: str) -> str:
    """Each line as it stands at the end: what was drawn before a carriage return or an erasure is gone."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        drawn = line.split("\x1b[2K")[-1].rstrip("\r").rpartition("\r")[2]
        lines.append(_STEERING.sub("", drawn))
    return "\n".join(lines).rstrip("\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
