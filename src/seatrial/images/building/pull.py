"""pull: an image that others have made, fetched and told as a build is (building/telling.py)."""

from __future__ import annotations

import time
from collections.abc import Callable

from seatrial.backends.base import ImageStore
from seatrial.images.building.progress import PULLING
from seatrial.images.building.ready import READY
from seatrial.job.units import format_seconds


def pull(store: ImageStore, reference: str, progress: Callable[[str], None]) -> None:
    """Make the image present. Raises ImageError naming the reference and the next command."""
    began_s = time.monotonic()
    progress(f"{PULLING}{reference}")
    store.pull(reference, progress)
    seconds = format_seconds(time.monotonic() - began_s)
    progress(f"{READY}: {reference}, pulled in {seconds}")
