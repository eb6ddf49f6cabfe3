"""An image that is there. Apart from building, which a plan need not load."""

from __future__ import annotations

from seatrial.job.plan import Choice, ImagePlan

READY = "image ready"
CACHED = f"{READY} (cached)"


def ready_image(tag: str) -> tuple[ImagePlan, Choice]:
    """The plan for an existing image; entrypoint, cmd, env and python are the caller's to fill in."""
    choice = Choice(what="image", value=tag, reason="an existing image was requested; nothing is built")
    return ImagePlan(tag=tag, build=False, python=None), choice
