"""``python -m seatrial.export``."""

from __future__ import annotations

from seatrial.export.program import main
from seatrial.train import script

if __name__ == "__main__":
    script.run(main)
