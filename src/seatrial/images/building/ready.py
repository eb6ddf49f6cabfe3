"""The line that says that an image is there. Apart from building, which a plan need not load."""

from __future__ import annotations

READY = "image ready"
CACHED = f"{READY} (cached)"
